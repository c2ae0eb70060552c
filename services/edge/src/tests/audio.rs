//! Forms with a file: passed on byte for byte, by the model that they name.

use std::time::Duration;

use domain::ErrorCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::{RawConfig, RawTimeouts};
use crate::testing::*;

const PATH: &str = "/v1/audio/transcriptions";
const PLAIN: &str = "multipart/form-data; boundary=XX";
/// How a form may end; the last one is right.
const ENDS: [&[u8]; 4] = [b"", b"--XX", b"--XX-", b"--XX--"];

fn file(bytes: &[u8]) -> Vec<u8> {
    let head = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
                Content-Type: audio/wav\r\n\r\n";
    [head.as_bytes(), bytes, b"\r\n"].concat()
}

fn field(name: &str, value: &str) -> Vec<u8> {
    format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into()
}

/// Bytes of every value, among them what looks like a boundary.
fn sound(length: usize) -> Vec<u8> {
    let marks = b"\r\n--XXX\r\n--X --XX \0\xff";
    (0..length)
        .map(|i| if i % 1000 < marks.len() { marks[i % 1000] } else { (i % 251) as u8 })
        .collect()
}

async fn send(bed: &Bed, kind: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    let length = body.len();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A refusal may come before all of it is sent.
    let _ = stream.write_all(body).await;
    stream
}

async fn post(bed: &Bed, kind: &str, body: &[u8]) -> Reply {
    read_reply(&mut send(bed, kind, body).await, "POST").await
}

fn ok() -> Vec<Vec<Step>> {
    vec![vec![answer("200 OK", "", r#"{"text":"hello"}"#)]]
}

#[tokio::test]
async fn a_form_reaches_an_engine_of_its_model_byte_for_byte_wherever_the_model_stands() {
    let (model, end) = (field("model", "org/m"), b"--XX--\r\n".to_vec());
    for length in [0, 10, 100_000, 5_000_000] {
        let (file, language) = (file(&sound(length)), field("language", "en"));
        for (kind, body) in [
            (PLAIN, [model.clone(), file.clone(), language.clone(), end.clone()].concat()),
            (PLAIN, [file.clone(), language.clone(), model.clone(), end.clone()].concat()),
            ("multipart/form-data; boundary=\"XX\"", [file, model.clone(), end.clone()].concat()),
        ] {
            let engine = Engine::start("e", ok()).await;
            let bed = Bed::start(&[&engine]).await;
            let reply = post(&bed, kind, &body).await;
            assert_eq!(reply.text(), r#"{"text":"hello"}"#, "{length}");
            let sent = &engine.requests()[0];
            assert_eq!(sent.line(), format!("POST {PATH} HTTP/1.1"));
            assert_eq!(sent.header("content-type"), Some(kind));
            assert!(sent.body == body, "{length} bytes differ");
            let route = &bed.router.routes()[0];
            assert_eq!(route.model.as_str(), "org/m");
            assert!(route.prompt.is_none());
            bed.assert_idle().await;
            assert_eq!(bed.gateway.body_memory.available_permits(), 1024 * 1024);
        }
    }
}

#[tokio::test]
async fn a_large_form_is_passed_on_while_it_comes() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let body = [field("model", "m"), file(&sound(2_000_000)), b"--XX--".to_vec()].concat();
    let length = body.len();
    let mut client = TcpStream::connect(bed.client.address).await.unwrap();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {PLAIN}\r\ncontent-length: {length}\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(&body[..1_000_000]).await.unwrap();
    eventually("the engine was not connected", || engine.accepted() == 1).await;
    client.write_all(&body[1_000_000..]).await.unwrap();
    assert_eq!(read_reply(&mut client, "POST").await.status, 200);
    assert!(engine.requests()[0].body == body);
}

#[tokio::test]
async fn what_is_no_form_or_names_no_model_is_refused() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let (model, end) = (field("model", "m"), b"--XX--".to_vec());
    let file = file(b"x");
    for (kind, body, param) in [
        ("application/json", b"{}".to_vec(), None),
        ("multipart/form-data", [model.clone(), end.clone()].concat(), None),
        (PLAIN, b"nothing of the kind".to_vec(), None),
        (PLAIN, [model.clone(), file.clone()].concat(), None),
        (PLAIN, [file.clone(), end.clone()].concat(), Some("model")),
        (PLAIN, [model.clone(), file, model.clone(), end.clone()].concat(), Some("model")),
    ] {
        let reply = post(&bed, kind, &body).await;
        assert_error(&reply, ErrorCode::InvalidRequest);
        let error: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(error["error"]["param"].as_str(), param);
    }
    let unknown = [field("model", "none"), end].concat();
    assert_error(&post(&bed, PLAIN, &unknown).await, ErrorCode::ModelNotFound);
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_second_model_in_a_form_that_is_passed_on_breaks_it_off() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let twice =
        [field("model", "m"), file(&sound(2_000_000)), field("model", "org/m"), b"--XX--".to_vec()];
    let reply = post(&bed, PLAIN, &twice.concat()).await;
    assert_error(&reply, ErrorCode::InvalidRequest);
    assert!(engine.requests().is_empty(), "it never had it whole");
    bed.assert_idle().await;
    assert_eq!(bed.router.events(), [["failed client_error"]]);
}

/// The form in chunks.
async fn send_in_chunks(bed: &Bed, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {PLAIN}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A refusal may come before all of it is sent.
    for piece in body.chunks(100_000) {
        let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        let _ = stream.write_all(&chunk).await;
    }
    let _ = stream.write_all(b"0\r\n\r\n").await;
    stream
}

#[tokio::test]
async fn a_form_that_ends_without_its_closing_boundary_is_no_engines_whole_request() {
    // Held whole; held to about its end; passed on.
    for length in [1000, 262_000, 270_000, 2_000_000] {
        for (end, in_chunks) in ENDS.into_iter().flat_map(|end| [(end, false), (end, true)]) {
            let engine = Engine::start("e", ok()).await;
            let bed = Bed::start(&[&engine]).await;
            let body = [&field("model", "m")[..], &file(&sound(length)), end].concat();
            let mut client = match in_chunks {
                false => send(&bed, PLAIN, &body).await,
                true => send_in_chunks(&bed, &body).await,
            };
            let reply = read_reply(&mut client, "POST").await;
            if end == b"--XX--" {
                assert_eq!((reply.status, engine.requests().len()), (200, 1), "{length}");
                continue;
            }
            assert_error(&reply, ErrorCode::InvalidRequest);
            let text = reply.text();
            assert!(text.contains("does not end with its boundary"), "{length}: {text}");
            bed.assert_idle().await;
            engine.await_all_closed().await;
            assert!(engine.requests().is_empty(), "{length}: it had it whole");
        }
    }
}

#[tokio::test]
async fn a_form_over_the_limit_is_refused_whether_its_length_is_told_or_not() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let edge = RawConfig { body_limit_bytes: 600_000, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let body = [field("model", "m"), file(&sound(1_000_000)), b"--XX--".to_vec()].concat();
    assert_error(&post(&bed, PLAIN, &body).await, ErrorCode::RequestTooLarge);
    assert_eq!(engine.accepted(), 0);
    let mut client = TcpStream::connect(bed.client.address).await.unwrap();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {PLAIN}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    for piece in body.chunks(50_000) {
        let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        if client.write_all(&chunk).await.is_err() {
            break;
        }
    }
    assert_error(&read_reply(&mut client, "POST").await, ErrorCode::RequestTooLarge);
    engine.await_all_closed().await;
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_small_form_is_sent_again_and_a_large_one_only_before_it_was_begun() {
    for (length, script, status) in [
        (1000, vec![Step::Reset], 200),
        (2_000_000, vec![Step::Reset], 502),
        (2_000_000, vec![answer("503 Service Unavailable", "", "full")], 503),
    ] {
        let (bad, good) = (Engine::start("a", vec![script]).await, Engine::start("b", ok()).await);
        let bed = Bed::start(&[&bad, &good]).await;
        let body = [field("model", "m"), file(&sound(length)), b"--XX--".to_vec()].concat();
        assert_eq!(post(&bed, PLAIN, &body).await.status, status, "{length}");
        bed.assert_idle().await;
    }
    let (bad, good) = (Engine::refusing("a").await, Engine::start("b", ok()).await);
    let bed = Bed::start(&[&bad, &good]).await;
    let body = [field("model", "m"), file(&sound(2_000_000)), b"--XX--".to_vec()].concat();
    assert_eq!(post(&bed, PLAIN, &body).await.status, 200);
    assert!(good.requests()[0].body == body);
}

#[tokio::test]
async fn a_client_that_stops_sending_its_form_is_told_so() {
    for sent in [100, 1_000_000] {
        let engine = Engine::start("e", ok()).await;
        let timeouts = RawTimeouts { body: "50ms".parse().unwrap(), ..RawTimeouts::default() };
        let edge = RawConfig { timeouts, ..RawConfig::default() };
        let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
        let body = [field("model", "m"), file(&sound(2_000_000))].concat();
        let mut client = TcpStream::connect(bed.client.address).await.unwrap();
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {PLAIN}\r\ncontent-length: 3000000\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&body[..sent]).await.unwrap();
        assert_error(&read_reply(&mut client, "POST").await, ErrorCode::RequestTimeout);
        bed.assert_idle().await;
    }
}

/// The head of a form of three megabytes.
fn long_head() -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {PLAIN}\r\ncontent-length: 3000000\r\n\r\n"
    )
}

/// Sends a byte every so often until the gateway has had enough, which it says.
async fn drip_until_late(client: &mut TcpStream, every: Duration) {
    let (mut reading, mut writing) = client.split();
    let dripping = async {
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(every).await;
        }
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = dripping => {}
        _ = reading.read_to_end(&mut answer) => {}
    }
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test(start_paused = true)]
async fn a_form_that_drips_before_its_model_is_given_up() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let mut client = TcpStream::connect(bed.client.address).await.unwrap();
    let begun = [long_head().as_bytes(), &file(&sound(800_000))[..700_000]].concat();
    client.write_all(&begun).await.unwrap();
    let started = tokio::time::Instant::now();
    drip_until_late(&mut client, Duration::from_secs(1)).await;
    assert!(started.elapsed() < Duration::from_secs(35), "{:?}", started.elapsed());
    bed.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_form_that_drips_while_it_is_passed_on_is_given_up() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let mut client = TcpStream::connect(bed.client.address).await.unwrap();
    let begun = [long_head().into_bytes(), field("model", "m"), file(&sound(800_000))].concat();
    client.write_all(&begun).await.unwrap();
    eventually("the engine was not connected", || engine.accepted() == 1).await;
    let started = tokio::time::Instant::now();
    drip_until_late(&mut client, Duration::from_secs(7)).await;
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
    engine.await_all_closed().await;
    bed.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_form_that_streams_has_no_limit_over_its_length() {
    let minutes = |minutes: u64| Step::Pause(Duration::from_secs(60 * minutes));
    let pieces = (0..12).flat_map(|_| [event(&token("a")), minutes(1)]);
    let end = [event(DONE), Step::Send(b"0\r\n\r\n".to_vec())];
    let script = std::iter::once(sse()).chain(pieces).chain(end).collect();
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let form = [field("model", "m"), field("stream", "true"), file(b"x"), b"--XX--".to_vec()];
    let reply = post(&bed, PLAIN, &form.concat()).await;
    assert_eq!(reply.text(), [&token("a").repeat(12), DONE].concat());
    assert_eq!(bed.router.events()[0].last().unwrap(), "finished");

    // Between two reads there is one.
    let silent = vec![sse(), event(&token("a")), minutes(3), event(DONE)];
    let engine = Engine::start("e", vec![silent]).await;
    let bed = Bed::start(&[&engine]).await;
    let text = post(&bed, PLAIN, &form.concat()).await.text();
    let tail = text.strip_prefix(&token("a")).unwrap();
    assert!(tail.contains(r#""code":"timeout""#) && tail.ends_with(DONE), "{tail}");
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_sends_frees_the_engine() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let body = [field("model", "m"), file(&sound(2_000_000))].concat();
    let mut client = TcpStream::connect(bed.client.address).await.unwrap();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: {PLAIN}\r\ncontent-length: 3000000\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(&body[..1_000_000]).await.unwrap();
    eventually("the engine was not connected", || engine.accepted() == 1).await;
    drop(client);
    engine.await_all_closed().await;
    bed.assert_idle().await;
    assert_eq!(bed.router.events(), [["cancelled"]]);
    bed.assert_metric("warmpath_edge_upstream_cancelled_total 1");
    bed.assert_metric(
        r#"warmpath_edge_requests_total{model="m",outcome="cancelled",route="transcription"} 1"#,
    );
}
