//! Routes, models, bodies, and the gateway's own errors.

use domain::ErrorCode;

use crate::config::RawConfig;
use crate::testing::*;

#[tokio::test]
async fn only_known_routes_answer() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    for path in ["/sleep", "/reset_prefix_cache", "/v1/load_lora_adapter", "/", "/v1//models"] {
        assert_error(&bed.client.post(path, "", WHOLE).await, ErrorCode::RouteNotFound);
    }
    let reply = bed.client.get("/v1/chat/completions").await;
    assert_error(&reply, ErrorCode::MethodNotAllowed);
    assert_eq!(reply.header("allow"), Some("POST"));
    let reply = bed.client.request("OPTIONS", "/v1/models", "", "").await;
    assert_error(&reply, ErrorCode::MethodNotAllowed);
    assert_eq!(reply.header("allow"), Some("GET, HEAD"));
    assert_eq!(bed.client.get("/health").await.status, 200);
    assert!(engine.requests().is_empty());
    let page = bed.metrics();
    assert!(!page.contains("sleep") && !page.contains("lora"), "{page}");
}

#[tokio::test]
async fn models_are_the_union_of_what_engines_list_each_once_with_its_own_entry() {
    let engines = [Engine::start("a", vec![vec![]]).await, Engine::start("b", vec![vec![]]).await];
    let bed = Bed::start(&[&engines[0], &engines[1]]).await;
    let list: serde_json::Value =
        serde_json::from_slice(&bed.client.get("/v1/models").await.body).unwrap();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["m", "org/m", "panic"]);
    assert_eq!(list["data"][0]["max_model_len"], 4096);
    for path in ["/v1/models/org/m", "/v1/models/org%2Fm"] {
        let one: serde_json::Value =
            serde_json::from_slice(&bed.client.get(path).await.body).unwrap();
        assert_eq!(one["id"], "org/m");
    }
    assert_error(&bed.client.get("/v1/models/none").await, ErrorCode::ModelNotFound);
    let head = bed.client.request("HEAD", "/v1/models", "", "").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[tokio::test]
async fn bodies_that_cannot_be_routed_are_refused_with_what_is_wrong() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    let cases = [
        ("", None),
        ("{", None),
        ("[]", None),
        (r#"{"messages":[]}"#, Some("model")),
        (r#"{"model":"m","messages":[]}"#, Some("messages")),
        (r#"{"model":"m","model":"n","messages":[1]}"#, Some("model")),
        (r#"{"model":"m","stream":true,"str\u0065am":false,"messages":[1]}"#, Some("stream")),
    ];
    for (body, param) in cases {
        let reply = bed.client.chat(body).await;
        assert_error(&reply, ErrorCode::InvalidRequest);
        let error: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(error["error"]["param"].as_str(), param, "{body}");
    }
    let unknown = bed.client.chat(&STREAM.replace(r#""m""#, r#""nope""#)).await;
    assert_error(&unknown, ErrorCode::ModelNotFound);
    assert!(engine.requests().is_empty());
    assert!(!bed.metrics().contains("nope"));
    bed.assert_idle().await;
}

#[tokio::test]
async fn an_endless_name_of_an_unknown_model_goes_no_further() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    let body = STREAM.replace(r#""m""#, &format!("\"{}\"", "m".repeat(1_000_000)));
    assert_error(&bed.client.chat(&body).await, ErrorCode::ModelNotFound);
    assert!(bed.router.routes().is_empty());
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_its_sender_told() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let edge = RawConfig { body_limit_bytes: 1000, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let large = STREAM.replace("hi", &"x".repeat(10_000_000));
    assert_error(&bed.client.chat(&large).await, ErrorCode::RequestTooLarge);
    let chunked = "transfer-encoding: chunked\r\n";
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{chunked}\r\n");
    let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
    let chunk = format!("400\r\n{}\r\n", "x".repeat(0x400));
    let bytes = [head, chunk.repeat(10), "0\r\n\r\n".to_owned()].concat();
    tokio::io::AsyncWriteExt::write_all(&mut stream, bytes.as_bytes()).await.unwrap();
    assert_error(&read_reply(&mut stream, "POST").await, ErrorCode::RequestTooLarge);
    assert!(engine.requests().is_empty());
    assert_eq!(bed.client.chat(STREAM).await.status, 200);
}

/// What is answered without a body: in whatever way, and by which status.
const BODYLESS: [(&str, &str, u16); 7] = [
    ("POST", "/v1/embedding", 404),
    ("GET", "/v1/chat/completions", 405),
    ("GET", "/v1/models", 200),
    ("GET", "/v1/models/none", 404),
    ("GET", "/version", 200),
    ("GET", "/health", 200),
    ("GET", "/v1/realtime", 400),
];

#[tokio::test]
async fn an_answer_that_wants_no_body_is_read_by_who_sends_a_large_one() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    let large = "x".repeat(10_000_000);
    for (method, path, status) in BODYLESS {
        let mut stream = bed.client.send(method, path, "", &large).await;
        for _ in 0..2 {
            let reply = read_reply(&mut stream, method).await;
            assert_eq!((reply.status, reply.whole), (status, true), "{method} {path}");
            assert_eq!(reply.header("connection"), None, "{method} {path}: it serves on");
            let again = request_bytes(method, path, "", "");
            tokio::io::AsyncWriteExt::write_all(&mut stream, &again).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_wants_and_that_does_not_end_closes_its_connection() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    for (method, path, status) in BODYLESS {
        let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nx");
        tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
        let asked = tokio::time::Instant::now();
        let reply = read_reply(&mut stream, method).await;
        assert_eq!((reply.status, reply.header("connection")), (status, Some("close")), "{path}");
        assert!(asked.elapsed() < std::time::Duration::from_secs(2), "{path}");
    }
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_to_go_on_is_refused_at_once() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let edge = RawConfig { body_limit_bytes: 10, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\
                expect: 100-continue\r\n\r\n";
    let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    let reply = read_reply(&mut stream, "POST").await;
    assert_error(&reply, ErrorCode::RequestTooLarge);
    assert_eq!(reply.header("connection"), Some("close"));
}

#[tokio::test]
async fn bodies_share_a_bounded_memory() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let (limit, all) = (20_000, 30_000);
    let edge =
        RawConfig { body_limit_bytes: limit, body_memory_bytes: all, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let body = STREAM.replace("hi", &"x".repeat(18_000));
    let open = bed.client.send("POST", "/v1/chat/completions", "", &body).await;
    engine.await_requests(1).await;
    let reply = bed.client.chat(&body).await;
    assert_error(&reply, ErrorCode::Overloaded);
    assert_eq!(reply.header("retry-after"), Some("1"));
    drop(open);
    bed.assert_idle().await;
    let _open = bed.client.send("POST", "/v1/chat/completions", "", &body).await;
    engine.await_requests(2).await;
}

#[tokio::test]
async fn a_panic_is_an_error_like_any_other() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(&STREAM.replace(r#""m""#, r#""panic""#)).await;
    assert_error(&reply, ErrorCode::Internal);
    bed.assert_idle().await;
    bed.assert_metric("warmpath_edge_panics_total 1");
    bed.assert_metric(
        r#"warmpath_edge_requests_total{model="panic",outcome="internal_error",route="chat"} 1"#,
    );
}
