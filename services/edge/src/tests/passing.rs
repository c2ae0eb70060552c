//! What passes through, and how.

use std::time::Duration;

use crate::testing::*;

fn gzip_like() -> Vec<u8> {
    vec![0x1f, 0x8b, 8, 0, 0, 0xff, 0xfe, b'\n', b'\n', 0]
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte_without_the_usage_that_was_not_asked_for() {
    let (a, b) = (token("a"), token("b"));
    let engine = Engine::start("e", vec![events(&[ROLE, &a, &b, USAGE, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.text(), [ROLE, &a, &b, DONE].concat());
    assert!(reply.whole);
    assert_eq!(reply.header("x-engine"), Some("yes"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    assert_eq!(bed.router.events(), [["first-token", "finished 9+2 cached 4"]]);
    let sent = &engine.requests()[0];
    let expected = STREAM.replace("true}", r#"true,"stream_options":{"include_usage":true}}"#);
    assert_eq!(String::from_utf8_lossy(&sent.body), expected);
    assert_eq!(sent.line(), "POST /v1/chat/completions HTTP/1.1");
    bed.assert_idle().await;
    bed.assert_metric(r#"warmpath_edge_requests_total{model="m",outcome="ok",route="chat"} 1"#);
    bed.assert_metric(r#"warmpath_edge_prompt_tokens_total{model="m"} 9"#);
    bed.assert_metric(r#"warmpath_edge_delivered_cached_tokens_total{model="m"} 4"#);
    bed.assert_metric(r#"warmpath_edge_predicted_cached_tokens_total{model="m"} 32"#);
}

#[tokio::test]
async fn a_stream_with_a_length_passes_as_one_without() {
    let text = [ROLE, &token("a"), USAGE, DONE].concat();
    let script = vec![answer("200 OK", "content-type: text/event-stream\r\n", &text)];
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    for _ in 0..2 {
        let reply = bed.client.chat(STREAM).await;
        assert_eq!(reply.text(), text.replace(USAGE, ""));
        assert!(reply.whole);
        assert_eq!(reply.header("content-length"), None);
    }
    assert_eq!(engine.accepted(), 1);
}

/// What a client asks of usage; whether it gets the event; whether the gateway asks for it.
const USAGE_OPTIONS: [(&str, bool, bool); 6] = [
    ("", false, true),
    (r#","stream_options":{}"#, false, true),
    (r#","stream_options":{"include_usage":false}"#, false, true),
    (r#","stream_options":{"include_usage":true}"#, true, false),
    (r#","stream_options":{"continuous_usage_stats":true}"#, true, false),
    (r#","stream_options":null"#, false, true),
];

#[tokio::test]
async fn a_client_sees_the_usage_event_if_it_asked_for_it() {
    let engine = Engine::start("e", vec![events(&[ROLE, &token("a"), USAGE, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    for (index, (options, shown, injected)) in USAGE_OPTIONS.into_iter().enumerate() {
        let body = STREAM.replace("true}", &format!("true{options}}}"));
        let reply = bed.client.chat(&body).await;
        assert_eq!(reply.text().contains(r#""choices":[],"#), shown, "{options}");
        let sent = String::from_utf8(engine.requests()[index].body.clone()).unwrap();
        assert_eq!(sent != body, injected, "{options}: {sent}");
        let reports = bed.router.events();
        assert_eq!(reports[index].last().unwrap(), "finished 9+2 cached 4", "{options}");
    }
}

#[tokio::test]
async fn a_request_that_does_not_stream_passes_unchanged() {
    let body = r#"{"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
    let engine = Engine::start("e", vec![vec![answer("200 OK", "x-a: 1\r\n", body)]]).await;
    let bed = Bed::start(&[&engine]).await;
    let asked = r#"{ "model":"m", "seed":18446744073709551616, "seed":1.0, "messages":[{"role":"user","content":null}] }"#;
    let reply = bed.client.chat(asked).await;
    assert_eq!(reply.text(), body);
    assert_eq!(reply.header("content-length"), Some(body.len().to_string().as_str()));
    assert_eq!(reply.header("x-a"), Some("1"));
    assert_eq!(engine.requests()[0].body, asked.as_bytes());
    assert_eq!(bed.router.events(), [["finished 3+1 cached 0"]]);
}

#[tokio::test]
async fn characters_and_line_ends_split_over_writes_stay_whole() {
    let text = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"安🚀\"}}}}]}}\r\n\r\n: c\n\n{USAGE}{DONE}"
    );
    let steps = std::iter::once(sse())
        .chain(text.as_bytes().iter().map(|b| {
            let chunk = [b"1\r\n".as_slice(), &[*b], b"\r\n"].concat();
            Step::Send(chunk)
        }))
        .chain([Step::Send(b"0\r\n\r\n".to_vec())])
        .collect();
    let engine = Engine::start("e", vec![steps]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), text.replace(USAGE, ""));
    assert_eq!(bed.router.events()[0].last().unwrap(), "finished 9+2 cached 4");
}

#[tokio::test]
async fn an_event_of_many_megabytes_passes() {
    let large = token(&"x".repeat(5_000_000));
    let engine = Engine::start("e", vec![events(&[ROLE, &large, USAGE, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert!(reply.text() == [ROLE, &large, DONE].concat());
}

#[tokio::test]
async fn the_engine_is_asked_for_plain_bytes_and_compressed_ones_pass_as_they_are() {
    let body = gzip_like();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let script = vec![Step::Send(head.into_bytes()), Step::Send(body.clone())];
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let headers = "accept-encoding: gzip, br, zstd\r\n";
    let reply = bed.client.post("/v1/chat/completions", headers, STREAM).await;
    assert_eq!(reply.body, body);
    assert_eq!(reply.header("content-encoding"), Some("gzip"));
    assert_eq!(engine.requests()[0].header("accept-encoding"), Some("identity"));
}

#[tokio::test]
async fn an_engines_refusal_passes_with_status_headers_and_body() {
    let body = r#"{"error":{"message":"no","type":"BadRequestError","code":400}}"#;
    let engine =
        Engine::start("e", vec![vec![answer("400 Bad Request", "x-why: 1\r\n", body)]]).await;
    let other = Engine::start("f", vec![vec![]]).await;
    let bed = Bed::start(&[&engine, &other]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!((reply.status, reply.text().as_str()), (400, body));
    assert_eq!(reply.header("x-why"), Some("1"));
    assert!(reply.header("x-request-id").is_some());
    assert_eq!(bed.router.events(), [["failed client_error"]]);
    assert!(other.requests().is_empty());
    bed.assert_idle().await;
    bed.assert_metric(
        r#"warmpath_edge_requests_total{model="m",outcome="client_error",route="chat"} 1"#,
    );
}

#[tokio::test]
async fn a_clients_request_id_is_a_label_and_never_the_engines_key() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let headers = "x-request-id: mine\r\ntraceparent: 00-1-2-01\r\n";
    for _ in 0..2 {
        let reply = bed.client.post("/v1/chat/completions", headers, STREAM).await;
        assert_eq!(reply.header("x-request-id"), Some("mine"));
    }
    let sent = engine.requests();
    let ids: Vec<_> = sent.iter().map(|r| r.header("x-request-id").unwrap()).collect();
    assert_ne!(ids[0], ids[1]);
    assert!(!ids.contains(&"mine"));
    assert_eq!(sent[0].header("traceparent"), Some("00-1-2-01"));
    let odd = format!("x-request-id: {}\r\n", "a".repeat(200));
    let reply = bed.client.post("/v1/chat/completions", &odd, STREAM).await;
    let minted = reply.header("x-request-id").unwrap();
    assert_eq!(engine.requests()[2].header("x-request-id"), Some(minted));
}

#[tokio::test]
async fn a_large_prompt_passes_and_is_keyed() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let body = STREAM.replace("hi", &"word ".repeat(100_000));
    let reply = bed.client.chat(&body).await;
    assert_eq!(reply.status, 200);
    let prompt = bed.router.routes()[0].prompt.clone().unwrap();
    assert!(prompt.keys[0].keys.len() > 5000);
    assert!(prompt.tokens > 100_000);
}

#[tokio::test]
async fn routes_that_go_by_load_carry_no_prompt() {
    let body = r#"{"data":[],"usage":{"prompt_tokens":3}}"#;
    let engine = Engine::start("e", vec![vec![answer("200 OK", "", body)]]).await;
    let bed = Bed::start(&[&engine]).await;
    let paths = [
        "/v1/embeddings",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/score",
        "/tokenize",
        "/detokenize",
    ];
    for path in paths {
        let asked = r#"{"model":"m","input":"text","stream":true}"#;
        let reply = bed.client.post(path, "", asked).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, body));
        let sent = engine.requests().pop().unwrap();
        assert_eq!(sent.line(), format!("POST {path} HTTP/1.1"));
        assert_eq!(sent.body, asked.as_bytes());
    }
    assert!(bed.router.routes().iter().all(|r| r.prompt.is_none() && !r.stream));
}

#[tokio::test]
async fn events_are_not_held_once_there_was_content() {
    let (a, b) = (token("a"), token("b"));
    let pause = Step::Pause(Duration::from_secs(3600));
    let engine =
        Engine::start("e", vec![vec![sse(), event(ROLE), event(&a), event(&b), pause]]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut stream = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    let mut seen = Vec::new();
    while !seen.ends_with(format!("{b}\r\n").as_bytes()) {
        tokio::io::AsyncReadExt::read_buf(&mut stream, &mut seen).await.unwrap();
    }
}

#[tokio::test]
async fn debug_headers_are_sent_to_tenants_that_asked_for_them() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let mut setup = Setup::default();
    setup.tenants.push(tenant("anonymous", |t| t.debug_headers = true));
    let bed = setup.start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.header("x-warmpath-backend"), Some("e"));
    assert_eq!(reply.header("x-warmpath-matched-blocks"), Some("2"));
    assert_eq!(reply.header("x-warmpath-matched-tokens"), Some("32"));
    assert_eq!(reply.header("x-warmpath-predicted-ttft-ms"), Some("20.000"));
    assert_eq!(reply.header("x-warmpath-predicted-queue-ms"), Some("12.500"));
    assert!(reply.header("x-warmpath-overhead-ms").is_some());
    let bed = Bed::start(&[&engine]).await;
    assert!(bed.client.chat(STREAM).await.header("x-warmpath-backend").is_none());
}

#[tokio::test]
async fn cached_tokens_are_told_where_they_are_known_in_time_and_missed_where_they_are_not() {
    let body = |usage: &str| {
        let body = format!(r#"{{"choices":[],"usage":{{"prompt_tokens":3,{usage}}}}}"#);
        vec![answer("200 OK", "", &body)]
    };
    let told = r#""completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}"#;
    let untold = r#""completion_tokens":1,"prompt_tokens_details":null"#;
    let engine = Engine::start("e", vec![body(told), body(untold)]).await;
    let mut setup = Setup::default();
    setup.tenants.push(tenant("anonymous", |t| t.debug_headers = true));
    let bed = setup.start(&[&engine]).await;
    let reply = bed.client.chat(WHOLE).await;
    assert_eq!(reply.header("x-warmpath-cached-tokens"), Some("2"));
    bed.assert_idle().await;
    bed.assert_metric(r#"warmpath_edge_cached_tokens_missing_total{model="m"} 0"#);
    let reply = bed.client.chat(WHOLE).await;
    assert_eq!(reply.header("x-warmpath-cached-tokens"), None);
    bed.assert_idle().await;
    bed.assert_metric(r#"warmpath_edge_cached_tokens_missing_total{model="m"} 1"#);
}
