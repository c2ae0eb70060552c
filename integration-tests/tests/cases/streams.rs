//! Event streams: every byte, at once, and no more of them than the reader takes.

use std::sync::Arc;

use bytes::Bytes;
use integration_tests::client::Client;
use integration_tests::cluster::MODEL;
use integration_tests::scenarios::chat;
use integration_tests::scripted::{
    DONE, Gate, ROLE, ScriptedEngine, Step, chunk, part, stream_end, stream_head, token, usage,
};
use integration_tests::wait::{PATIENCE, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::before;

#[tokio::test]
async fn every_event_reaches_the_client_before_the_engine_sends_the_next() {
    let gate = Gate::default();
    let events = (0..40).flat_map(|n| [part(&token(&format!("t{n};"))), Step::Await(gate.clone())]);
    let steps: Vec<Step> = [stream_head(), part(ROLE)]
        .into_iter()
        .chain(events)
        .chain([part(DONE), stream_end()])
        .collect();
    let engine = ScriptedEngine::with(steps).await;
    let cluster = before(&[&engine]).build().await;
    let mut open = cluster.client().open("/v1/chat/completions", &chat("x", 40, true)).await;
    for n in 0..40 {
        assert!(open.read_until(format!("t{n};").as_bytes(), 1).await, "{}", open.seen());
        gate.let_pass(1);
    }
    assert!(open.read_until(DONE.as_bytes(), 1).await);
    drop(open);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn events_of_any_length_arrive_whole_and_what_follows_them_is_read() {
    let long = |bytes: usize| token(&"x".repeat(bytes));
    let events = [ROLE, &long(70_000), &long(1_100_000), &long(20_000_000), &token("end")].concat();
    let mut body = events.clone().into_bytes();
    let counted = usage(11, 4);
    let sent = [events.as_bytes(), counted.as_bytes(), DONE.as_bytes()].concat();
    body.extend_from_slice(DONE.as_bytes());
    // In small writes, as engines make them, and those of a chunk not in step with events.
    let pieces = sent.chunks(1024).map(|piece| Step::Send(chunk(piece).into()));
    let steps: Vec<Step> =
        std::iter::once(stream_head()).chain(pieces).chain([stream_end()]).collect();
    let engine = ScriptedEngine::with(steps).await;
    let cluster = before(&[&engine]).build().await;
    let reply = cluster.client().chat(chat("x", 4, true)).await;
    assert!(reply.status == 200 && reply.whole);
    assert!(reply.body == body, "{} bytes of {}", reply.body.len(), body.len());
    cluster.assert_idle().await;
    assert_eq!(cluster.metrics().await.sum("warmpath_edge_prompt_tokens_total", &[]), 11.0);
    cluster.stop().await;
}

#[tokio::test]
async fn characters_and_markers_cut_at_every_byte_arrive_as_they_were_sent() {
    let body = [ROLE, &token("安🚀é"), "data: [DONE]\r\n\r\n"].concat();
    let pieces = body.as_bytes().chunks(1).map(|byte| Step::Send(chunk(byte).into()));
    let steps: Vec<Step> =
        std::iter::once(stream_head()).chain(pieces).chain([stream_end()]).collect();
    let engine = ScriptedEngine::with(steps).await;
    let cluster = before(&[&engine]).build().await;
    let reply = cluster.client().chat(chat("x", 4, true)).await;
    assert!(body.contains('安') && body.contains('🚀'), "the bytes are raw");
    assert_eq!((reply.text(), reply.whole), (body, true));
    cluster.stop().await;
}

/// Sends a request and reads nothing; what the kernel takes on this side is little.
async fn ask_and_read_nothing(address: std::net::SocketAddr) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let body = chat("x", 4, true);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_reader_that_stops_stops_the_engine_and_is_cut_off() {
    const READERS: u64 = 4;
    const STREAM: u64 = 200 << 20;
    // What the kernel takes on the three sockets between, and a little of ours.
    const ON_THE_WAY: u64 = 64 << 20;
    let piece = Bytes::from(chunk(token(&"x".repeat(1 << 20)).as_bytes()));
    let pieces = (0..STREAM >> 20).map(|_| Step::Send(piece.clone()));
    let steps: Vec<Step> =
        std::iter::once(stream_head()).chain(pieces).chain([stream_end()]).collect();
    let engine = ScriptedEngine::with(steps).await;
    let limit = "[edge.timeouts]\nwrite_stall = \"1s\"";
    let cluster = before(&[&engine]).config(limit).build().await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(ask_and_read_nothing(cluster.edge()).await);
    }
    engine.await_asked(READERS as usize).await;
    engine.await_in_course(0).await;
    let written = engine.written();
    assert!(written < READERS * ON_THE_WAY, "{} MiB were taken", written >> 20);
    cluster.assert_idle().await;
    let metrics = cluster.metrics().await;
    let cancelled = [("outcome", "cancelled")];
    assert_eq!(metrics.sum("warmpath_edge_requests_total", &cancelled), READERS as f64);
    drop(readers);
    cluster.stop().await;
}

#[tokio::test]
async fn a_slow_reader_gets_all_of_it_and_the_engine_waits_for_it() {
    let gate = Gate::default();
    let piece = token(&"x".repeat(100_000));
    let steps: Vec<Step> = std::iter::once(stream_head())
        .chain((0..20).flat_map(|_| [part(&piece), Step::Await(gate.clone())]))
        .chain([part(DONE), stream_end()])
        .collect();
    gate.open();
    let engine = ScriptedEngine::with(steps).await;
    let cluster = before(&[&engine]).build().await;
    let mut stream = ask_and_read_nothing(cluster.edge()).await;
    engine.await_asked(1).await;
    let mut seen = Vec::new();
    let mut some = [0; 4096];
    while !seen.ends_with(b"0\r\n\r\n") {
        let n = stream.read(&mut some).await.unwrap();
        assert!(n > 0, "it broke after {} bytes", seen.len());
        seen.extend_from_slice(&some[..n]);
        tokio::task::yield_now().await;
    }
    assert!(seen.len() > 2_000_000);
    drop(stream);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn answers_of_one_and_of_five_tokens_come_over_one_connection_without_a_break() {
    let engine = ScriptedEngine::start(&[MODEL.to_owned()]).await;
    engine.answer_by(|asked| {
        let tokens = asked.json()["max_tokens"].as_u64().unwrap_or(1);
        let events = (0..tokens).map(|n| part(&token(&format!("t{n}"))));
        [stream_head(), part(ROLE)]
            .into_iter()
            .chain(events)
            .chain([part(DONE), stream_end()])
            .collect()
    });
    let cluster = before(&[&engine]).build().await;
    let client: Client = cluster.client();
    let mut session = integration_tests::client::Session::new(&client).await;
    for n in 0..300 {
        let tokens = if n % 2 == 0 { 1 } else { 5 };
        let reply = session.post("/v1/chat/completions", chat("x", tokens, true)).await;
        assert_eq!(reply.events().contents, tokens as usize);
        assert!(reply.events().is_complete() && reply.whole);
    }
    drop(session);
    let idle = || async { cluster.held().await.edge_in_flight == 0 };
    eventually(PATIENCE, "nothing is open", idle).await;
    cluster.stop().await;
    drop(Arc::new(engine));
}
