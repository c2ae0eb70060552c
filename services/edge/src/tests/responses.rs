//! OpenAI's Responses: streams, and what an engine keeps.

use std::collections::HashMap;

use domain::ErrorCode;
use serde_json::{Value, json};
use tokenization::ModelFolder;

use crate::testing::*;

const BODY: &str =
    r#"{"model":"m","input":"hi","instructions":"Be brief.","max_output_tokens":9,"stream":true}"#;

const CREATED: &str = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"object\":\"response\",\"usage\":null},\"sequence_number\":0,\"type\":\"response.created\"}\n\n";
const ADDED: &str = "event: response.output_item.added\ndata: {\"item\":{\"id\":\"msg_1\"},\"sequence_number\":1,\"type\":\"response.output_item.added\"}\n\n";
const DELTA: &str = "event: response.output_text.delta\ndata: {\"delta\":\"hi\",\"sequence_number\":2,\"type\":\"response.output_text.delta\"}\n\n";
const COMPLETED: &str = "event: response.completed\ndata: {\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":2}},\"sequence_number\":3,\"type\":\"response.completed\"}\n\n";
const WHOLE: &str = r#"{"id":"resp_2","object":"response","status":"completed","output":[],"usage":{"input_tokens":9,"output_tokens":2}}"#;
const UNKNOWN: &str = r#"{"error":{"message":"Response with id 'resp_9' not found.","type":"invalid_request_error","param":"response_id","code":404}}"#;

fn unknown() -> Step {
    answer("404 Not Found", "", UNKNOWN)
}

async fn post(bed: &Bed, body: &str) -> Reply {
    bed.client.post("/v1/responses", "", body).await
}

#[tokio::test]
async fn a_responses_stream_passes_byte_for_byte_and_its_usage_is_read() {
    let stream = events(&[CREATED, ADDED, DELTA, COMPLETED]);
    let engine = Engine::start("e", vec![stream]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = post(&bed, BODY).await;
    assert_eq!(reply.text(), [CREATED, ADDED, DELTA, COMPLETED].concat());
    assert_eq!(engine.requests()[0].body, BODY.as_bytes());
    bed.assert_idle().await;
    assert_eq!(bed.router.events(), [["first-token", "finished 9+2 cached 4"]]);
    assert_eq!(bed.router.routes()[0].max_output_tokens, Some(9));
}

#[tokio::test]
async fn a_responses_stream_moves_to_another_engine_until_its_first_delta_and_never_after() {
    let early = vec![sse(), event(CREATED), event(ADDED), Step::Reset];
    let failed = "event: response.failed\ndata: {\"response\":{\"id\":\"resp_1\"},\"type\":\"response.failed\"}\n\n";
    for script in [early, events(&[CREATED, failed])] {
        let bad = Engine::start("a", vec![script]).await;
        let good = Engine::start("b", vec![events(&[CREATED, DELTA, COMPLETED])]).await;
        let bed = Bed::start(&[&bad, &good]).await;
        assert_eq!(post(&bed, BODY).await.text(), [CREATED, DELTA, COMPLETED].concat());
        bed.assert_idle().await;
    }
    let late = vec![sse(), event(CREATED), event(DELTA), Step::Reset];
    let bad = Engine::start("a", vec![late]).await;
    let good = Engine::start("b", vec![events(&[CREATED, DELTA, COMPLETED])]).await;
    let bed = Bed::start(&[&bad, &good]).await;
    let text = post(&bed, BODY).await.text();
    let end = text.strip_prefix(&[CREATED, DELTA].concat()).unwrap();
    let data = end.strip_prefix("event: error\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
    let error: Value = serde_json::from_str(data).unwrap();
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("upstream_interrupted")));
    assert_eq!(error["sequence_number"], 2, "two events came before");
    assert_eq!(error["error"]["code"], "upstream_interrupted");
    assert!(good.requests().is_empty());
}

#[tokio::test]
async fn a_responses_prompt_has_the_keys_of_the_chat_that_the_engine_makes_of_it() {
    let engine = Engine::start("e", vec![vec![answer("200 OK", "", WHOLE)]]).await;
    let models = HashMap::from([("m".into(), ModelFolder::builtin())]);
    let bed = Setup { models, ..Setup::default() }.start(&[&engine]).await;
    let words = "the time of day ".repeat(40);
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]);
    let body = json!({"model": "m", "instructions": words, "input": input});
    post(&bed, &body.to_string()).await;
    let chat = json!({"model": "m", "messages": [{"role": "system", "content": words},
        {"role": "user", "content": "hi"}]});
    bed.client.chat(&chat.to_string()).await;
    let routes = bed.router.routes();
    let keys = |i: usize| routes[i].prompt.as_ref().unwrap().keys.clone();
    assert!(keys(0)[0].keys.len() > 2);
    assert_eq!(keys(0), keys(1));
}

#[tokio::test]
async fn what_an_engine_keeps_is_asked_of_that_engine() {
    for first in [vec![answer("200 OK", "", WHOLE)], events(&[CREATED, DELTA, COMPLETED])] {
        let a = Engine::start("a", vec![unknown_script()]).await;
        let b = Engine::start("b", vec![first, vec![answer("200 OK", "", WHOLE)]]).await;
        let bed = Bed::start(&[&b, &a]).await;
        let made = post(&bed, BODY).await;
        let id = if made.text().contains("resp_1") { "resp_1" } else { "resp_2" };
        let path = format!("/v1/responses/{id}");
        assert_eq!(bed.client.get(&path).await.text(), WHOLE);
        let cancelled = bed.client.post(&format!("{path}/cancel"), "", "").await;
        assert_eq!(cancelled.text(), WHOLE);
        let lines: Vec<_> = b.requests().iter().map(|r| r.line().to_owned()).collect();
        assert_eq!(lines[1], format!("GET {path} HTTP/1.1"));
        assert_eq!(lines[2], format!("POST {path}/cancel HTTP/1.1"));
        assert!(a.requests().is_empty(), "the other one is not bothered");
        bed.assert_idle().await;
    }
}

fn unknown_script() -> Vec<Step> {
    vec![unknown()]
}

#[tokio::test]
async fn an_edge_that_did_not_see_a_response_finds_its_engine() {
    let a = Engine::start("a", vec![unknown_script()]).await;
    let b = Engine::start("b", vec![vec![answer("200 OK", "", WHOLE)]]).await;
    let bed = Bed::start(&[&a, &b]).await;
    assert_eq!(bed.client.get("/v1/responses/resp_2").await.text(), WHOLE);
    assert_eq!(bed.client.get("/v1/responses/resp_2").await.text(), WHOLE);
    assert_eq!((a.requests().len(), b.requests().len()), (1, 2), "then it knows");
    let reply = post(
        &bed,
        &json!({"model": "m", "input": "hi", "previous_response_id": "resp_2"}).to_string(),
    )
    .await;
    assert_eq!(reply.text(), WHOLE);
    assert_eq!(a.requests().len(), 1);
    assert!(b.requests()[2].line().starts_with("POST /v1/responses "));
}

#[tokio::test]
async fn a_conversation_goes_on_where_its_last_response_is_kept() {
    let a = Engine::start("a", vec![unknown_script()]).await;
    let b = Engine::start("b", vec![vec![answer("200 OK", "", WHOLE)]]).await;
    let bed = Bed::start(&[&a, &b]).await;
    let body = json!({"model": "m", "input": "hi", "previous_response_id": "resp_2"}).to_string();
    assert_eq!(post(&bed, &body).await.text(), WHOLE);
    let lines: Vec<_> = b.requests().iter().map(|r| r.line().to_owned()).collect();
    assert_eq!(lines, ["GET /v1/responses/resp_2 HTTP/1.1", "POST /v1/responses HTTP/1.1"]);
    assert_eq!(b.requests()[1].body, body.as_bytes());
    let excluded: Vec<_> =
        bed.router.routes()[0].excluded.iter().map(|r| r.backend.clone()).collect();
    assert_eq!(excluded, [a.id()]);
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_response_that_no_engine_keeps_is_not_found_in_the_engines_own_words() {
    let (a, b) = (
        Engine::start("a", vec![unknown_script()]).await,
        Engine::start("b", vec![unknown_script()]).await,
    );
    let bed = Bed::start(&[&a, &b]).await;
    for reply in [
        bed.client.get("/v1/responses/resp_9").await,
        bed.client.post("/v1/responses/resp_9/cancel", "", "").await,
        post(&bed, r#"{"model":"m","input":"hi","previous_response_id":"resp_9"}"#).await,
        post(&bed, r#"{"model":"m","input":"hi","previous_response_id":"../../sleep"}"#).await,
    ] {
        assert_eq!((reply.status, reply.text().as_str()), (404, UNKNOWN));
    }
    assert!(a.requests().iter().chain(&b.requests()).all(|r| !r.line().contains("sleep")));
    bed.assert_idle().await;
}

#[tokio::test]
async fn an_engine_that_cannot_be_asked_may_keep_the_response() {
    let (a, b) = (Engine::refusing("a").await, Engine::start("b", vec![unknown_script()]).await);
    let bed = Bed::start(&[&a, &b]).await;
    let reply = bed.client.get("/v1/responses/resp_9").await;
    assert_error(&reply, ErrorCode::UpstreamUnavailable);
    bed.assert_idle().await;
}

#[tokio::test]
async fn the_events_of_a_kept_response_are_streamed() {
    let stream = events(&[CREATED, DELTA, COMPLETED]);
    let engine = Engine::start("e", vec![stream]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.get("/v1/responses/resp_1?stream=true").await;
    assert_eq!(reply.text(), [CREATED, DELTA, COMPLETED].concat());
    assert_eq!(engine.requests()[0].line(), "GET /v1/responses/resp_1?stream=true HTTP/1.1");
    bed.assert_idle().await;
}
