//! Draining, HTTP/2, and both at once.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lifecycle::ShutdownOutcome;

use crate::testing::*;

#[tokio::test(start_paused = true)]
async fn a_drain_serves_on_for_its_notice_and_lets_streams_end() {
    let slow = vec![
        sse(),
        event(&token("a")),
        Step::Pause(Duration::from_secs(40)),
        event(DONE),
        Step::Send(b"0\r\n\r\n".to_vec()),
    ];
    let scripts = vec![slow, events(&[&token("b"), DONE])];
    let engine = Engine::start("e", scripts).await;
    let bed = Bed::start(&[&engine]).await;
    let mut stream = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    engine.await_requests(1).await;
    bed.lifecycle.begin_drain();
    let during = bed.client.chat(STREAM).await;
    assert_eq!((during.status, during.header("connection")), (200, Some("close")));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(tokio::net::TcpStream::connect(bed.client.address).await.is_err());
    let (reply, outcome) = tokio::join!(
        read_reply(&mut stream, "POST"),
        bed.lifecycle.shutdown(Duration::from_secs(60))
    );
    assert_eq!(reply.text(), [&token("a"), DONE].concat());
    assert!(reply.whole);
    assert_eq!(outcome, ShutdownOutcome::Clean);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_do_not_hold_a_drain_up() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut kept = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    assert!(read_reply(&mut kept, "POST").await.whole);
    let started = tokio::time::Instant::now();
    let outcome = bed.lifecycle.shutdown(Duration::from_secs(60)).await;
    assert_eq!(outcome, ShutdownOutcome::Clean);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_hung_stream_is_ended_with_an_error_event_when_the_drain_takes_too_long() {
    let engine = Engine::start("e", vec![vec![sse(), event(&token("a")), Step::AwaitClose]]).await;
    let setup = Setup { drain_limit: Some(Duration::from_secs(20)), ..Setup::default() };
    let bed = setup.start(&[&engine]).await;
    let mut hung = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    engine.await_requests(1).await;
    let (reply, outcome) = tokio::join!(
        read_reply(&mut hung, "POST"),
        bed.lifecycle.shutdown(Duration::from_secs(21))
    );
    let tail = reply.text().split_off(token("a").len());
    assert!(tail.contains("shutting down") && tail.ends_with(DONE), "{tail}");
    assert!(reply.whole);
    assert_eq!(outcome, ShutdownOutcome::Clean);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_is_refused_when_the_drain_takes_too_long() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let setup = Setup { drain_limit: Some(Duration::from_secs(20)), ..Setup::default() };
    let bed = setup.start(&[&engine]).await;
    let mut hung = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    engine.await_requests(1).await;
    let (reply, outcome) = tokio::join!(
        read_reply(&mut hung, "POST"),
        bed.lifecycle.shutdown(Duration::from_secs(21))
    );
    assert_error(&reply, domain::ErrorCode::Overloaded);
    assert_eq!(outcome, ShutdownOutcome::Clean);
}

type H2 = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

async fn h2(bed: &Bed) -> H2 {
    let stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
    // Else what is sent may wait for the system, while the clock of the test does not.
    stream.set_nodelay(true).unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    bed.lifecycle.spawn("h2-client", async move {
        let _ = connection.await;
    });
    sender
}

fn request() -> http::Request<Full<Bytes>> {
    http::Request::post("http://gateway/v1/chat/completions").body(Full::from(STREAM)).unwrap()
}

#[tokio::test]
async fn http_2_without_tls_streams_like_http_1() {
    let engine = Engine::start("e", vec![events(&[ROLE, &token("a"), USAGE, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut sender = h2(&bed).await;
    let response = sender.send_request(request()).await.unwrap();
    assert_eq!(response.version(), http::Version::HTTP_2);
    assert!(response.headers().contains_key("x-request-id"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, [ROLE, &token("a"), DONE].concat());
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_reset_http_2_stream_closes_the_upstream() {
    let script = vec![sse(), event(&token("a")), Step::AwaitClose];
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut sender = h2(&bed).await;
    let response = sender.send_request(request()).await.unwrap();
    drop(response);
    engine.await_all_closed().await;
    bed.assert_idle().await;
    assert_eq!(bed.router.events()[0].last().unwrap(), "cancelled");
}

#[tokio::test(start_paused = true)]
async fn an_http_2_stream_that_is_not_read_is_cut_off_and_its_engine_freed() {
    let chunk = event(&token(&"x".repeat(1_000_000)));
    let engine = Engine::start("e", vec![[vec![sse()], vec![chunk; 60]].concat()]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut sender = h2(&bed).await;
    let response = sender.send_request(request()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(70)).await;
    engine.await_all_closed().await;
    bed.assert_idle().await;
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_http_2_client_that_only_answers_pings_is_let_go() {
    let engine = Engine::start("e", vec![events(&[ROLE, &token("a"), USAGE, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut sender = h2(&bed).await;
    let response = sender.send_request(request()).await.unwrap();
    response.into_body().collect().await.unwrap();
    // The client's library answers pings for as long as the connection is there.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.gateway.families.connections.get(), 1);
    tokio::time::sleep(Duration::from_secs(30)).await;
    eventually("the connection is open", || bed.gateway.families.connections.get() == 0).await;
    assert!(sender.ready().await.is_err());
}

/// On one connection: two streams that are silent after a token, and one that waits for its head.
#[tokio::test(start_paused = true)]
async fn http_2_requests_are_told_one_by_one_when_the_drain_takes_too_long() {
    let scripts = vec![
        vec![sse(), event(&token("a")), Step::AwaitClose],
        vec![sse(), event(&token("b")), Step::AwaitClose],
        vec![Step::AwaitClose],
    ];
    let engine = Engine::start("e", scripts).await;
    let setup = Setup { drain_limit: Some(Duration::from_secs(20)), ..Setup::default() };
    let bed = setup.start(&[&engine]).await;
    let mut sender = h2(&bed).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let body = sender.send_request(request()).await.unwrap().into_body();
        streams.push(body.collect());
    }
    let without_head = sender.send_request(request());
    engine.await_requests(3).await;
    let (streams, refused, outcome) = tokio::join!(
        futures_util::future::join_all(streams),
        without_head,
        bed.lifecycle.shutdown(Duration::from_secs(21))
    );
    for (stream, text) in streams.into_iter().zip(["a", "b"]) {
        let body = String::from_utf8(stream.unwrap().to_bytes().to_vec()).unwrap();
        let tail = body.strip_prefix(&token(text)).unwrap();
        assert!(tail.contains("shutting down") && tail.ends_with(DONE), "{tail}");
    }
    assert_eq!(refused.unwrap().status(), 503);
    assert_eq!(outcome, ShutdownOutcome::Clean);
}
