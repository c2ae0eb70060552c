//! What clients are told when the edge is to end, on connections that would go on for ever.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lifecycle::ShutdownOutcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::testing::h2::*;
use crate::testing::*;

/// A stream with content, a pause, and its end.
fn slow() -> Vec<Step> {
    let pause = Step::Pause(Duration::from_secs(15));
    vec![sse(), event(&token("a")), pause, event(DONE), Step::Send(b"0\r\n\r\n".to_vec())]
}

#[tokio::test(start_paused = true)]
async fn an_idle_http_2_connection_is_told_to_go_away_without_an_error_and_closed() {
    let engine = Engine::start("e", vec![slow()]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    assert_eq!(read_frame(&mut stream).await.unwrap().0, SETTINGS);
    bed.lifecycle.begin_drain();
    let mut told = Vec::new();
    while let Some((kind, flags, payload)) = read_frame(&mut stream).await {
        match (kind, flags & ACK) {
            (PING, 0) => stream.write_all(&frame(PING, ACK, 0, &payload)).await.unwrap(),
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap(),
            (GOAWAY, _) => {
                let number =
                    |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
                told.push((number(0), number(4)));
            }
            _ => {}
        }
    }
    // First that there will be no more, then the last one that was taken: none.
    assert_eq!(told, [(i32::MAX as u32, 0), (0, 0)]);
    let outcome = bed.lifecycle.shutdown(Duration::from_secs(60)).await;
    assert_eq!(outcome, ShutdownOutcome::Clean);
}

#[tokio::test(start_paused = true)]
async fn an_http_2_stream_ends_whole_while_its_connection_takes_no_more() {
    let engine = Engine::start("e", vec![slow()]).await;
    let bed = Bed::start(&[&engine]).await;
    let io = TokioIo::new(TcpStream::connect(bed.client.address).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let client = lifecycle::Lifecycle::new();
    let ended = client.spawn("h2-client", async move { connection.await.unwrap() });
    let request = || {
        let body = Full::new(Bytes::from_static(STREAM.as_bytes()));
        http::Request::post("http://gateway/v1/chat/completions").body(body).unwrap()
    };
    let response = sender.send_request(request()).await.unwrap();
    bed.lifecycle.begin_drain();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(sender.send_request(request()).await.is_err(), "it goes elsewhere");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, [&token("a"), DONE].concat());
    let outcome = bed.lifecycle.shutdown(Duration::from_secs(60)).await;
    assert_eq!(outcome, ShutdownOutcome::Clean);
    eventually("the connection ends in good order", || ended.is_finished()).await;
    assert_eq!(engine.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kept_http_1_connection_is_told_to_close_with_its_next_answer_and_is_closed() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut kept = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    let first = read_reply(&mut kept, "POST").await;
    assert_eq!((first.status, first.header("connection")), (200, None));
    bed.lifecycle.begin_drain();
    kept.write_all(&request_bytes("POST", "/v1/chat/completions", "", STREAM)).await.unwrap();
    let last = read_reply(&mut kept, "POST").await;
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert_eq!(kept.read(&mut [0; 1]).await.unwrap(), 0, "and that at once");
    let outcome = bed.lifecycle.shutdown(Duration::from_secs(60)).await;
    assert_eq!(outcome, ShutdownOutcome::Clean);
}
