//! Realtime sessions over WebSockets.

use std::time::Duration;

use domain::ErrorCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::{RawConfig, RawTenant};
use crate::guard::{Policy, RawFields};
use crate::testing::*;

const ASK: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\n\
                   upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: realtime\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nauthorization: Bearer sk-wp-x-y\r\n\r\n";
const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                      sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn agrees() -> Vec<Step> {
    vec![Step::Send(AGREED.as_bytes().to_vec()), Step::Echo]
}

async fn ask(bed: &Bed) -> TcpStream {
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    stream.write_all(ASK.as_bytes()).await.unwrap();
    stream
}

/// The head of an answer that switches protocols.
async fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap().to_ascii_lowercase()
}

async fn echo(stream: &mut TcpStream, words: &[u8]) {
    stream.write_all(words).await.unwrap();
    let mut back = vec![0; words.len()];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(back, words);
}

#[tokio::test]
async fn a_session_carries_bytes_both_ways_until_its_client_ends_it() {
    let engine = Engine::start("e", vec![agrees()]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut client = ask(&bed).await;
    let head = head(&mut client).await;
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    assert!(head.contains("upgrade: websocket") && head.contains("x-request-id: req-"), "{head}");
    for length in [1, 10, 200_000] {
        echo(&mut client, &vec![7; length]).await;
    }
    let sent = &engine.requests()[0];
    assert_eq!(sent.line(), "GET /v1/realtime?model=m HTTP/1.1");
    assert_eq!(sent.header("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
    assert_eq!(sent.header("sec-websocket-protocol"), Some("realtime"));
    assert_eq!(sent.header("upgrade"), Some("websocket"));
    assert_eq!(sent.header("authorization"), None);
    assert_eq!(bed.router.open_leases(), 1, "it counts as load while it lasts");
    assert!(bed.router.routes()[0].prompt.is_none());
    drop(client);
    engine.await_all_closed().await;
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_session_that_an_engine_cannot_take_is_another_ones() {
    for script in [vec![Step::Reset], vec![answer("503 Service Unavailable", "", "full")]] {
        let bad = Engine::start("a", vec![script]).await;
        let good = Engine::start("b", vec![agrees()]).await;
        let bed = Bed::start(&[&bad, &good]).await;
        let mut client = ask(&bed).await;
        assert!(head(&mut client).await.starts_with("http/1.1 101"));
        echo(&mut client, b"hello").await;
        drop(client);
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn an_engines_refusal_of_a_session_reaches_the_client() {
    let engine = Engine::start("a", vec![vec![answer("422 No", "x-why: no\r\n", "no")]]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = read_reply(&mut ask(&bed).await, "GET").await;
    assert_eq!((reply.status, reply.text().as_str()), (422, "no"));
    assert_eq!(reply.header("x-why"), Some("no"));
    bed.assert_idle().await;
}

#[tokio::test]
async fn an_engine_that_refuses_the_gateways_key_is_passed_over_and_is_no_clients_business() {
    let refuses = vec![answer("401 Unauthorized", "www-authenticate: Bearer\r\n", "a wrong key")];
    let picky = Engine::start("picky", vec![refuses]).await;
    assert_passed_over(&picky).await;
    let bed = Bed::start(&[&picky]).await;
    let reply = read_reply(&mut ask(&bed).await, "GET").await;
    assert_error(&reply, ErrorCode::UpstreamUnavailable);
    assert_eq!(reply.header("www-authenticate"), None);
    assert!(reply.text().contains("the gateway's own key"), "{}", reply.text());
    bed.assert_metric("warmpath_edge_engine_unauthorized_total 1");
    bed.assert_idle().await;
}

#[tokio::test]
async fn an_engine_that_closes_any_session_is_passed_over_and_heard_where_it_is_alone() {
    let refuses = vec![answer("403 Forbidden", "x-why: no\r\n", "no")];
    let picky = Engine::start("picky", vec![refuses]).await;
    assert_passed_over(&picky).await;
    let bed = Bed::start(&[&picky]).await;
    let reply = read_reply(&mut ask(&bed).await, "GET").await;
    assert_eq!((reply.status, reply.text().as_str()), (403, "no"));
    assert_eq!(reply.header("x-why"), Some("no"));
    bed.assert_metric("warmpath_edge_engine_unauthorized_total 0");
    bed.assert_idle().await;
}

/// Another engine takes the session, and the one that does not is not held to be broken.
async fn assert_passed_over(picky: &Engine) {
    let good = Engine::start("good", vec![agrees()]).await;
    let bed = Bed::start(&[picky, &good]).await;
    let mut client = ask(&bed).await;
    assert!(head(&mut client).await.starts_with("http/1.1 101"));
    drop(client);
    bed.assert_idle().await;
    assert_eq!(bed.router.events()[0], ["failed back_pressure"]);
}

async fn ask_with(bed: &Bed, asked: &str) -> TcpStream {
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    stream.write_all(asked.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_handshake_that_lacks_any_part_reaches_no_engine() {
    let engine = Engine::start("e", vec![vec![answer("500 No", "", "")]]).await;
    let bed = Bed::start(&[&engine]).await;
    const LIST: &str = "connection: keep-alive, Upgrade\r\n";
    const KEY: &str = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (line, instead) in [
        (LIST, ""),
        (LIST, "connection: keep-alive\r\n"),
        (LIST, "connection: upgraded\r\n"),
        ("upgrade: websocket\r\n", ""),
        ("upgrade: websocket\r\n", "upgrade: h2c\r\n"),
        (KEY, ""),
        (KEY, "sec-websocket-key: \r\n"),
        (KEY, "sec-websocket-key: dGhlIHNhbXBsZSBub25j\r\n"),
        (KEY, "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=\r\n"),
        (KEY, "sec-websocket-key: dGhlIHNhbXBsZSBub25jZ===\r\n"),
        (KEY, "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQAA\r\n"),
        (KEY, "sec-websocket-key: dGhlIHNhbXBsZSB_b25jZQ==\r\n"),
        (KEY, &KEY.repeat(2)),
        (KEY, &format!("{KEY}content-length: 5\r\n")),
        (KEY, &format!("{KEY}transfer-encoding: chunked\r\n")),
        ("HTTP/1.1", "HTTP/1.0"),
    ] {
        let asked = ASK.replace(line, instead);
        assert_ne!(asked, ASK);
        let reply = read_reply(&mut ask_with(&bed, &asked).await, "GET").await;
        assert_error(&reply, ErrorCode::InvalidRequest);
    }
    let posted = read_reply(&mut ask_with(&bed, &ASK.replace("GET", "POST")).await, "POST").await;
    assert_error(&posted, ErrorCode::MethodNotAllowed);
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}

#[tokio::test]
async fn another_version_of_websockets_is_told_which_one_is_taken() {
    let engine = Engine::start("e", vec![vec![answer("500 No", "", "")]]).await;
    let bed = Bed::start(&[&engine]).await;
    let version = "sec-websocket-version: 13\r\n";
    for other in ["", "sec-websocket-version: 8\r\n", "sec-websocket-version: 13, 8\r\n"] {
        let asked = ASK.replace(version, other);
        let reply = read_reply(&mut ask_with(&bed, &asked).await, "GET").await;
        assert_error(&reply, ErrorCode::UpgradeRequired);
        assert_eq!(reply.header("sec-websocket-version"), Some("13"));
        assert_eq!(reply.header("upgrade"), Some("websocket"));
        assert_eq!(reply.header("connection"), Some("upgrade"));
    }
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_handshake_may_write_its_words_in_lists_and_in_any_letters() {
    let engine = Engine::start("e", vec![agrees()]).await;
    let bed = Bed::start(&[&engine]).await;
    let asked = ASK
        .replace("connection: keep-alive, Upgrade", "connection: keep-alive\r\nConnection: UPGRADE")
        .replace("upgrade: websocket", "upgrade: h2c, WebSocket");
    let mut client = ask_with(&bed, &asked).await;
    assert!(head(&mut client).await.starts_with("http/1.1 101"));
    assert_eq!(engine.requests()[0].header("upgrade"), Some("websocket"));
    drop(client);
    bed.assert_idle().await;
}

#[tokio::test]
async fn what_is_no_websocket_or_names_no_model_is_refused() {
    let engine = Engine::start("e", vec![agrees()]).await;
    let bed = Bed::start(&[&engine]).await;
    assert_error(&bed.client.get("/v1/realtime?model=m").await, ErrorCode::InvalidRequest);
    let reply = bed.client.post("/v1/realtime", "", "").await;
    assert_error(&reply, ErrorCode::MethodNotAllowed);
    for (query, code) in [
        ("", ErrorCode::InvalidRequest),
        ("?model=m&model=org/m", ErrorCode::InvalidRequest),
        ("?model=none", ErrorCode::ModelNotFound),
    ] {
        let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
        let asked = ASK.replace("?model=m", query);
        stream.write_all(asked.as_bytes()).await.unwrap();
        assert_error(&read_reply(&mut stream, "GET").await, code);
    }
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_session_counts_against_its_tenants_open_requests() {
    let engine = Engine::start("e", vec![agrees()]).await;
    let limited = |tenant: &mut RawTenant| tenant.max_concurrency = Some(1);
    let tenants = vec![tenant("anonymous", limited)];
    let bed = Setup { tenants, ..Setup::default() }.start(&[&engine]).await;
    let mut client = ask(&bed).await;
    head(&mut client).await;
    assert_error(&bed.client.chat(STREAM).await, ErrorCode::ConcurrencyLimitExceeded);
    drop(client);
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_drain_ends_sessions_after_its_notice() {
    let engine = Engine::start("e", vec![agrees()]).await;
    let edge = RawConfig { drain_notice: "10ms".parse().unwrap(), ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let mut client = ask(&bed).await;
    head(&mut client).await;
    echo(&mut client, b"hello").await;
    bed.lifecycle.begin_drain();
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    engine.await_all_closed().await;
    bed.assert_idle().await;
}

#[tokio::test]
async fn headers_that_are_the_operators_are_so_for_sessions() {
    let asked = ASK.replace("host: x\r\n", "host: x\r\nx-vllm-priority: -1\r\n");
    for (policy, sent) in [(Some(Policy::Allow), Some("-1")), (None, None)] {
        let engine = Engine::start("e", vec![agrees()]).await;
        let fields = RawFields { priority: policy, ..RawFields::default() };
        let edge = RawConfig { fields, ..RawConfig::default() };
        let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
        let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
        stream.write_all(asked.as_bytes()).await.unwrap();
        assert!(head(&mut stream).await.starts_with("http/1.1 101"));
        assert_eq!(engine.requests()[0].header("x-vllm-priority"), sent);
    }
    let engine = Engine::start("e", vec![agrees()]).await;
    let fields = RawFields { priority: Some(Policy::Reject), ..RawFields::default() };
    let edge = RawConfig { fields, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    stream.write_all(asked.as_bytes()).await.unwrap();
    let reply = read_reply(&mut stream, "GET").await;
    assert_error(&reply, ErrorCode::InvalidRequest);
    assert!(reply.text().contains("x-vllm-priority"), "{}", reply.text());
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_in_which_nobody_says_anything_is_ended_and_one_with_words_is_not() {
    let engine = Engine::start("e", vec![agrees()]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut client = ask(&bed).await;
    head(&mut client).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(14 * 60)).await;
        echo(&mut client, b"hello").await;
    }
    let last = tokio::time::Instant::now();
    assert_eq!(client.read(&mut [0; 1]).await.unwrap_or(0), 0, "it ends");
    let took = last.elapsed();
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    assert!(took >= minutes(15) - Duration::from_secs(1) && took < minutes(16), "{took:?}");
    engine.await_all_closed().await;
    bed.assert_idle().await;
    bed.assert_metric(
        r#"warmpath_edge_requests_total{model="m",outcome="cancelled",route="realtime"} 1"#,
    );
}

#[tokio::test(start_paused = true)]
async fn the_router_hears_of_a_session_for_as_long_as_it_lasts() {
    let engine = Engine::start("e", vec![agrees()]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut client = ask(&bed).await;
    head(&mut client).await;
    // Some more than ten minutes, in which the client says something once.
    tokio::time::sleep(Duration::from_secs(301)).await;
    echo(&mut client, b"hello").await;
    tokio::time::sleep(Duration::from_secs(301)).await;
    let told = bed.router.events()[0].len();
    assert!((9..=11).contains(&told), "{:?}", bed.router.events());
    drop(client);
    bed.assert_idle().await;
    assert_eq!(bed.router.events()[0].last().unwrap(), "finished");
}
