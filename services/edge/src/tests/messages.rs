//! Anthropic's Messages: prefix, stream, errors.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenization::{ChatRequest, ModelFolder};

use crate::config::{RawConfig, RawKey};
use crate::testing::*;

const BODY: &str = r#"{"model":"m","max_tokens":9,"system":"Be brief.","messages":[{"role":"user","content":"hi"}],"stream":true}"#;

const START: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"1\",\"usage\":{\"input_tokens\":9,\"output_tokens\":0}}}\n\n";
const BLOCK: &str = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
const DELTA: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n";
const END: &str = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":4,\"output_tokens\":2}}\n\n";
const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// Checks the form of an error of the gateway's own on these routes.
#[track_caller]
fn assert_refused(reply: &Reply, status: u16, kind: &str) {
    assert_eq!(reply.status, status, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    let id = reply.header("request-id").unwrap();
    assert_eq!(body["type"], "error");
    assert_eq!(body["request_id"], id);
    assert_eq!(body["error"]["type"], kind);
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    assert_eq!(reply.header("x-request-id"), Some(id));
}

fn good() -> Vec<Step> {
    events(&[START, BLOCK, PING, DELTA, END, STOP])
}

async fn post(bed: &Bed, body: &str) -> Reply {
    bed.client.post("/v1/messages", "anthropic-version: 2023-06-01\r\n", body).await
}

#[tokio::test]
async fn a_messages_stream_passes_byte_for_byte_and_its_usage_is_read() {
    let engine = Engine::start("e", vec![good()]).await;
    let bed = Bed::start(&[&engine]).await;
    let headers = "anthropic-version: 2023-06-01\r\nanthropic-beta: a,b\r\nx-request-id: mine\r\n";
    let reply = bed.client.post("/v1/messages", headers, BODY).await;
    assert_eq!(reply.text(), [START, BLOCK, PING, DELTA, END, STOP].concat());
    assert_eq!(reply.header("request-id"), Some("mine"));
    let sent = &engine.requests()[0];
    assert_eq!(sent.body, BODY.as_bytes(), "no usage is asked for here: it always comes");
    assert_eq!(sent.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(sent.header("anthropic-beta"), Some("a,b"));
    bed.assert_idle().await;
    assert_eq!(bed.router.events(), [["first-token", "finished 9+2 cached 4"]]);
    assert_eq!(bed.router.routes()[0].max_output_tokens, Some(9));
    bed.assert_metric(r#"warmpath_edge_requests_total{model="m",outcome="ok",route="messages"} 1"#);
    bed.assert_metric(r#"warmpath_edge_delivered_cached_tokens_total{model="m"} 4"#);
}

#[tokio::test]
async fn a_failure_before_the_first_delta_is_answered_by_another_engine() {
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"m\"}}\n\n";
    for script in [
        vec![sse(), event(START), event(BLOCK), event(PING), Step::Reset],
        events(&[START, BLOCK]),
        events(&[START, overloaded]),
        vec![answer("529 Overloaded", "", "{}")],
    ] {
        let bad = Engine::start("a", vec![script.clone()]).await;
        let good = Engine::start("b", vec![good()]).await;
        let bed = Bed::start(&[&bad, &good]).await;
        let reply = post(&bed, BODY).await;
        assert_eq!(reply.text(), [START, BLOCK, PING, DELTA, END, STOP].concat(), "{script:?}");
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn a_messages_stream_that_breaks_after_a_delta_ends_with_an_error_event() {
    for script in [
        vec![sse(), event(START), event(DELTA), Step::Reset],
        vec![sse(), event(START), event(DELTA), Step::Close],
        events(&[START, DELTA]),
    ] {
        let engine = Engine::start("a", vec![script]).await;
        let other = Engine::start("b", vec![good()]).await;
        let bed = Bed::start(&[&engine, &other]).await;
        let reply = post(&bed, BODY).await;
        let text = reply.text();
        let end = text.strip_prefix(&[START, DELTA].concat()).unwrap();
        let data = end.strip_prefix("event: error\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
        let error: Value = serde_json::from_str(data).unwrap();
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], "api_error");
        assert_eq!(error["request_id"], reply.header("request-id").unwrap());
        assert!(reply.whole && other.requests().is_empty());
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn a_whole_message_passes_and_its_usage_is_read() {
    let body = r#"{"id":"1","type":"message","role":"assistant","content":[{"type":"text","text":"x"}],"model":"m","stop_reason":"max_tokens","usage":{"input_tokens":5,"output_tokens":8,"cache_creation_input_tokens":0,"cache_read_input_tokens":32}}"#;
    let engine = Engine::start("e", vec![vec![answer("200 OK", "", body)]]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = post(&bed, &BODY.replace(r#","stream":true"#, "")).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, body));
    bed.assert_idle().await;
    assert_eq!(bed.router.events(), [["finished 37+8 cached 32"]]);
}

#[tokio::test]
async fn a_messages_prompt_has_the_keys_of_the_chat_that_the_engine_makes_of_it() {
    let engine = Engine::start("e", vec![good()]).await;
    let models = HashMap::from([("m".into(), ModelFolder::builtin())]);
    let bed = Setup { models, ..Setup::default() }.start(&[&engine]).await;
    let words = "the time of day ".repeat(40);
    let messages = json!({"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": words}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]});
    post(&bed, &messages.to_string()).await;
    let chat = json!({"model": "m", "messages": [{"role": "system", "content": words},
        {"role": "user", "content": "hi"}]});
    bed.client.chat(&chat.to_string()).await;
    let routes = bed.router.routes();
    let prompts: Vec<_> = routes.iter().map(|route| route.prompt.clone().unwrap()).collect();
    assert!(prompts[0].keys[0].keys.len() > 2);
    assert_eq!(prompts[0].keys, prompts[1].keys);
    let tokens = ModelFolder::builtin().tokenize_chat(&ChatRequest::from_body(&chat).unwrap());
    assert_eq!(prompts[0].tokens as usize, tokens.unwrap().tokens.len());
}

#[tokio::test]
async fn without_a_tokenizer_all_that_a_messages_template_reads_counts() {
    let engine = Engine::start("e", vec![good()]).await;
    let bed = Bed::start(&[&engine]).await;
    let words = "the time of day ".repeat(100);
    let base = json!({"model": "m", "max_tokens": 5, "system": words,
        "messages": [{"role": "user", "content": "hi"}]});
    let with = |name: &str, value: Value| {
        let mut body = base.clone();
        body[name] = value;
        body
    };
    let next = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"},
        {"role": "user", "content": words}]);
    let bodies = [
        base.clone(),
        with("metadata", json!({"user_id": "x"})),
        with("messages", next),
        with("system", json!(format!("y{words}"))),
        with("tools", json!([{"name": "f", "input_schema": {"type": "object"}}])),
        with("thinking", json!({"type": "disabled"})),
        with("chat_template_kwargs", json!({"a": 1})),
    ];
    for body in &bodies {
        post(&bed, &body.to_string()).await;
    }
    let routes = bed.router.routes();
    let keys = |i: usize| routes[i].prompt.as_ref().unwrap().keys[0].keys.clone();
    let (first, same, longer) = (keys(0), keys(1), keys(2));
    assert!(!first.is_empty() && first == same);
    assert!(longer.starts_with(&first) && longer.len() > first.len());
    for (at, body) in bodies.iter().enumerate().skip(3) {
        assert_ne!(keys(at)[0], first[0], "{body}");
    }
}

#[tokio::test]
async fn counting_tokens_fills_no_cache_and_goes_by_load() {
    let counted = r#"{"input_tokens":31,"context_management":{"original_input_tokens":31}}"#;
    let engine = Engine::start("e", vec![vec![answer("200 OK", "", counted)]]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.post("/v1/messages/count_tokens", "", BODY).await;
    assert_eq!(reply.text(), counted);
    assert!(bed.router.routes()[0].prompt.is_none() && !bed.router.routes()[0].stream);
    assert!(engine.requests()[0].line().starts_with("POST /v1/messages/count_tokens "));
}

#[tokio::test]
async fn errors_of_the_gateway_have_the_dialect_of_the_route() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let key = credentials::GeneratedKey::generate("acme").unwrap();
    let keys = vec![RawKey {
        id: key.id().to_owned(),
        tenant: "acme".to_owned(),
        sha256: key.digest_hex(),
    }];
    let limited = tenant("acme", |t| {
        t.requests_per_minute = Some(8);
        t.max_concurrency = Some(1);
        t.models = Some(vec!["m".to_owned(), "none".to_owned()]);
    });
    let edge = RawConfig { body_limit_bytes: 1000, ..RawConfig::default() };
    let bed =
        Setup { edge, keys, tenants: vec![limited], ..Setup::default() }.start(&[&engine]).await;
    let with_key = format!("x-api-key: {}\r\n", key.secret_text());
    let ask = |body: &str| {
        let (bed, with_key, body) = (&bed, &with_key, body.to_owned());
        async move { bed.client.post("/v1/messages", with_key, &body).await }
    };

    let refused = post(&bed, BODY).await;
    assert_refused(&refused, 401, "authentication_error");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_refused(&ask("{").await, 400, "invalid_request_error");
    assert_refused(&ask(&BODY.replace(r#""m""#, r#""org/m""#)).await, 403, "permission_error");
    assert_refused(&ask(&BODY.replace(r#""m""#, r#""none""#)).await, 404, "not_found_error");
    assert_refused(&ask(&BODY.replace("hi", &"x".repeat(2000))).await, 413, "request_too_large");
    let reply = bed.client.request("GET", "/v1/messages", &with_key, "").await;
    assert_refused(&reply, 405, "invalid_request_error");
    let reply = bed.client.post("/v1/messages/batches", &with_key, BODY).await;
    assert_refused(&reply, 404, "not_found_error");

    let open = bed.client.send("POST", "/v1/messages", &with_key, BODY).await;
    engine.await_requests(1).await;
    let full = ask(BODY).await;
    assert_refused(&full, 429, "rate_limit_error");
    assert_eq!(full.header("retry-after"), Some("1"));
    drop(open);
    bed.assert_idle().await;
    let mut last = ask("{").await;
    for _ in 0..8 {
        last = ask("{").await;
    }
    assert_refused(&last, 429, "rate_limit_error");
    assert!(last.header("retry-after").is_some());
    assert_eq!(last.header("anthropic-ratelimit-requests-limit"), Some("8"));
    assert_eq!(last.header("anthropic-ratelimit-requests-remaining"), Some("0"));
    assert!(last.header("anthropic-ratelimit-requests-reset").unwrap().ends_with('Z'));
    assert!(last.header("x-ratelimit-limit-requests").is_none());
}

#[tokio::test]
async fn a_gateway_without_room_is_overloaded_in_anthropics_way() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let edge =
        RawConfig { body_limit_bytes: 1000, body_memory_bytes: 1000, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let _open = bed.client.send("POST", "/v1/messages", "", BODY).await;
    engine.await_requests(1).await;
    let reply = post(&bed, BODY).await;
    assert_refused(&reply, 529, "overloaded_error");
    assert_eq!(reply.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn an_engines_own_error_reaches_a_messages_client_as_it_is() {
    let body = r#"{"type":"error","error":{"type":"BadRequestError","message":"no"}}"#;
    let engine = Engine::start("e", vec![vec![answer("400 Bad Request", "", body)]]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = post(&bed, BODY).await;
    assert_eq!((reply.status, reply.text().as_str()), (400, body));
}
