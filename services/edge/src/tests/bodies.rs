//! Bodies of requests: the memory that they take, and clients that do not send them whole.

use std::time::Duration;

use domain::ErrorCode;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::RawConfig;
use crate::memory::STEP;
use crate::testing::*;

const PATH: &str = "/v1/chat/completions";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";
/// Steps of memory in a bed of [`narrow`].
const STEPS: usize = 300;
/// A body of which two find no room in it.
const MUCH: usize = 200 * STEP;

/// A bed with little memory for bodies.
async fn narrow(engine: &Engine) -> Bed {
    let all = STEPS as u64 * STEP as u64;
    let edge = RawConfig { body_limit_bytes: all, body_memory_bytes: all, ..RawConfig::default() };
    Setup { edge, ..Setup::default() }.start(&[engine]).await
}

/// Sends a head, and what there is of a body.
async fn begin(bed: &Bed, headers: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    stream
}

fn length(bytes: usize) -> String {
    format!("content-length: {bytes}\r\n")
}

fn chunk(bytes: usize) -> Vec<u8> {
    format!("{bytes:x}\r\n{:bytes$}\r\n", "").into_bytes()
}

/// A request with a body of so many bytes.
fn chat(bytes: usize) -> String {
    let text = "x".repeat(bytes + "hi".len() - STREAM.len());
    STREAM.replace("hi", &text)
}

/// Whether a body is that of a client but for the usage that a stream is asked for.
fn is_told_usage(body: &[u8], sent: &str) -> bool {
    let added = br#","stream_options":{"include_usage":true}}"#;
    body.strip_suffix(added).is_some_and(|rest| Some(rest) == sent.as_bytes().strip_suffix(b"}"))
}

async fn await_held(bed: &Bed, steps: usize) {
    let free = STEPS - steps;
    eventually("another memory is held", || bed.gateway.body_memory.available_permits() == free)
        .await;
}

#[tokio::test]
async fn a_body_that_is_announced_has_its_memory_before_it_comes_until_its_client_leaves() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = narrow(&engine).await;
    let first = begin(&bed, &length(MUCH), b"").await;
    await_held(&bed, 200).await;
    let refused = bed.client.chat(&chat(MUCH)).await;
    assert_error(&refused, ErrorCode::Overloaded);
    assert_eq!(refused.header("retry-after"), Some("1"));
    await_held(&bed, 200).await;
    drop(first);
    await_held(&bed, 0).await;
    assert_eq!(bed.client.chat(&chat(MUCH)).await.status, 200);
    assert_eq!(engine.requests().len(), 1);
    bed.assert_idle().await;
    await_held(&bed, 0).await;
}

#[tokio::test]
async fn of_a_body_that_finds_no_room_nothing_is_kept_and_its_sender_is_told() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = narrow(&engine).await;
    let _first = begin(&bed, &length(MUCH), b"").await;
    await_held(&bed, 200).await;
    // It is told to go on by nobody.
    let headers = length(MUCH) + "expect: 100-continue\r\n";
    let reply = read_reply(&mut begin(&bed, &headers, b"").await, "POST").await;
    assert_error(&reply, ErrorCode::Overloaded);
    assert_eq!(reply.header("connection"), Some("close"));
    // It sends all of it, and its connection is as good as before.
    let body = chat(MUCH);
    let mut sending = begin(&bed, &length(MUCH), &body.as_bytes()[..MUCH - 1]).await;
    eventually("it is not there", || bed.gateway.families.in_flight.get() == 2).await;
    assert_eq!(bed.gateway.body_memory.available_permits(), STEPS - 200);
    sending.write_all(&body.as_bytes()[MUCH - 1..]).await.unwrap();
    let reply = read_reply(&mut sending, "POST").await;
    assert_error(&reply, ErrorCode::Overloaded);
    assert_eq!(reply.header("connection"), None);
    // It stops in the midst of it.
    let mut stopped = begin(&bed, &length(MUCH), &body.as_bytes()[..MUCH / 2]).await;
    assert_error(&read_reply(&mut stopped, "POST").await, ErrorCode::Overloaded);
    assert!(engine.requests().is_empty());
    bed.assert_metric(r#"warmpath_edge_rejected_total{reason="overloaded"} 3"#);
}

#[tokio::test]
async fn a_body_of_unknown_length_takes_its_room_step_by_step_and_is_refused_at_the_last() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = narrow(&engine).await;
    let first = begin(&bed, &length(MUCH), b"").await;
    await_held(&bed, 200).await;
    let mut second = begin(&bed, CHUNKED, &chunk(10)).await;
    await_held(&bed, 201).await;
    second.write_all(&chunk(40 * STEP)).await.unwrap();
    await_held(&bed, 264).await;
    second.write_all(&chunk(40 * STEP)).await.unwrap();
    assert_error(&read_reply(&mut second, "POST").await, ErrorCode::Overloaded);
    await_held(&bed, 200).await;
    drop(first);
    let mut third = begin(&bed, CHUNKED, &chunk(10)).await;
    for _ in 0..7 {
        third.write_all(&chunk(40 * STEP)).await.unwrap();
    }
    await_held(&bed, STEPS).await;
    drop(third);
    await_held(&bed, 0).await;
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_body_that_fields_are_taken_out_of_needs_room_for_both() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = narrow(&engine).await;
    let with = |bytes: usize| chat(bytes).replacen('{', r#"{"priority":1,"#, 1);
    let refused = bed.client.chat(&with(MUCH)).await;
    assert_error(&refused, ErrorCode::Overloaded);
    assert_eq!(refused.header("retry-after"), Some("1"));
    await_held(&bed, 0).await;
    assert!(engine.requests().is_empty());
    assert_eq!(bed.client.chat(&with(MUCH / 2)).await.status, 200);
    assert!(is_told_usage(&engine.requests()[0].body, &chat(MUCH / 2)), "only the field is gone");
    bed.assert_idle().await;
    await_held(&bed, 0).await;
}

#[tokio::test]
async fn a_body_that_fields_were_taken_out_of_is_gone_when_an_engine_is_asked() {
    let response = format!(r#"{{"model":"m","input":"{}"}}"#, "x".repeat(MUCH / 2));
    for (path, body) in [(PATH, chat(MUCH / 2)), ("/v1/responses", response)] {
        let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
        let bed = narrow(&engine).await;
        let with = body.replacen('{', r#"{"priority":1,"#, 1);
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{}", length(with.len()));
        let mut client = TcpStream::connect(bed.client.address).await.unwrap();
        client.write_all(format!("{head}\r\n{with}").as_bytes()).await.unwrap();
        eventually("the engine has it not", || !engine.requests().is_empty()).await;
        await_held(&bed, body.len().div_ceil(STEP)).await;
        drop(client);
        await_held(&bed, 0).await;
    }
}

#[tokio::test]
async fn the_keys_of_a_long_prompt_count_until_an_engine_has_it() {
    let answer = answer("200 OK", "", "{}");
    let engine = Engine::start("e", vec![vec![Step::AwaitClose], vec![answer]]).await;
    let bed = narrow(&engine).await;
    let ids = "7,".repeat(50 * STEP);
    let body = format!(r#"{{"model":"m","token_ids":[{ids}7],"sampling_params":{{}}}}"#);
    let head = format!("POST /inference/v1/generate HTTP/1.1\r\nhost: x\r\n{}", length(body.len()));
    let mut client = TcpStream::connect(bed.client.address).await.unwrap();
    client.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
    eventually("the engine has it not", || !engine.requests().is_empty()).await;
    let keys: usize = {
        let prompt = bed.router.routes()[0].prompt.clone().unwrap();
        prompt.keys.iter().map(|list| size_of_val(&*list.keys)).sum()
    };
    assert_eq!(keys, 4096 / 16 * 8, "of as many tokens as the backend takes");
    let (length, keys) = (body.len().div_ceil(STEP), keys.div_ceil(STEP));
    await_held(&bed, length + keys).await;
    drop(client);
    await_held(&bed, 0).await;
    assert_eq!(bed.client.post("/inference/v1/generate", "", &body).await.status, 200);
    assert!(engine.requests()[1].body == body.as_bytes());
    await_held(&bed, 0).await;
}

#[tokio::test]
async fn a_long_prompt_without_room_for_its_keys_goes_without() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = narrow(&engine).await;
    assert_eq!(bed.client.chat(&chat(MUCH)).await.status, 200);
    let prompt = bed.router.routes()[0].prompt.clone().unwrap();
    assert!(prompt.keys.is_empty());
    assert!(prompt.tokens as usize > MUCH / 5, "its length is known");
    bed.assert_metric("warmpath_edge_prompts_without_keys_total 1");
    assert!(is_told_usage(&engine.requests()[0].body, &chat(MUCH)));
}

#[tokio::test(start_paused = true)]
async fn a_long_body_has_to_come_as_fast_as_it_was_announced_long() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    for (announced, seconds) in [(16 << 20, 30), (64 << 10, 60)] {
        // Enough for a body that holds no more than has come, or was announced little longer.
        let started = tokio::time::Instant::now();
        let mut slow = begin(&bed, &length(announced), &[b' '; 20 << 10]).await;
        tokio::time::sleep(Duration::from_secs(29)).await;
        slow.write_all(&[b' '; 20 << 10]).await.unwrap();
        assert_error(&read_reply(&mut slow, "POST").await, ErrorCode::RequestTimeout);
        let took = started.elapsed().as_secs();
        assert!((seconds - 2..=seconds + 2).contains(&took), "{announced}: {took}");
    }
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_sends_counts_as_one_that_left() {
    for (headers, body) in [(length(MUCH), vec![b' '; 1000]), (CHUNKED.to_owned(), chunk(1000))] {
        for reset in [false, true] {
            let log = Log::start();
            let engine = Engine::start("e", vec![vec![]]).await;
            let bed = narrow(&engine).await;
            let client = begin(&bed, &headers, &body).await;
            eventually("the body does not come", || {
                bed.gateway.body_memory.available_permits() < STEPS
            })
            .await;
            if reset {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(client);
            bed.assert_idle().await;
            await_held(&bed, 0).await;
            let line = log.requests().pop().unwrap();
            assert_eq!(line["outcome"], "cancelled", "{line}");
            assert_eq!(line["error.code"], "client_closed_request");
            assert_eq!(line["status"], 499);
            bed.assert_metric(
                r#"warmpath_edge_requests_total{model="other",outcome="cancelled",route="chat"} 1"#,
            );
            assert!(!bed.metrics().contains("warmpath_edge_rejected_total{"));
        }
    }
}

#[tokio::test]
async fn chunks_that_are_none_are_refused() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    for broken in ["x\r\n", "5\r\nhellooo\r\n", "fffffffffffffffff\r\n"] {
        let body = [&chunk(10), broken.as_bytes()].concat();
        let mut client = begin(&bed, CHUNKED, &body).await;
        assert_error(&read_reply(&mut client, "POST").await, ErrorCode::InvalidRequest);
        // Nothing after them can be told from them.
        assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
    }
    bed.assert_metric(r#"warmpath_edge_rejected_total{reason="invalid_request"} 3"#);
}
