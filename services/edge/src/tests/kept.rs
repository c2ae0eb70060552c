//! What engines keep: who is believed to keep a response, and what is counted of it.

use domain::ErrorCode;
use serde_json::json;

use crate::config::RawConfig;
use crate::guard::{Policy, RawFields};
use crate::testing::*;

const PATH: &str = "/v1/responses/resp_2";
const KEPT: &str = r#"{"id":"resp_2","object":"response","status":"completed","output":[],"usage":{"input_tokens":9,"output_tokens":2}}"#;
const REFUSED: &str = r#"{"error":{"message":"starting_after: not an integer"}}"#;

fn kept() -> Vec<Step> {
    vec![answer("200 OK", "", KEPT)]
}

fn unknown() -> Vec<Step> {
    vec![answer("404 Not Found", "", "{}")]
}

fn says(status: &str) -> Vec<Step> {
    vec![answer(status, "", REFUSED)]
}

/// The backend that is believed to keep the response.
fn owner(bed: &Bed) -> Option<domain::BackendId> {
    bed.gateway.owners.of("resp_2")
}

async fn go_on(bed: &Bed) -> Reply {
    let body = json!({"model": "m", "input": "hi", "previous_response_id": "resp_2"});
    bed.client.post("/v1/responses", "", &body.to_string()).await
}

#[tokio::test]
async fn an_engine_that_wants_a_key_is_no_owner_and_its_refusal_is_no_clients_business() {
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let picky = Engine::start("picky", vec![says(status)]).await;
        let owning = Engine::start("owning", vec![kept()]).await;
        let bed = Bed::start(&[&picky, &owning]).await;
        assert_eq!(bed.client.get(PATH).await.text(), KEPT, "{status}");
        assert_eq!(owner(&bed), Some(owning.id()));
        assert_eq!(go_on(&bed).await.text(), KEPT);
        let line = owning.requests()[1].line().to_owned();
        assert!(line.starts_with("POST "), "the conversation goes on where it is kept: {line}");

        let bed = Bed::start(&[&picky]).await;
        let reply = bed.client.get(PATH).await;
        assert_error(&reply, ErrorCode::UpstreamUnavailable);
        assert_eq!((owner(&bed), reply.header("www-authenticate")), (None, None));
        let counted = u8::from(status.starts_with("401"));
        bed.assert_metric(&format!("warmpath_edge_engine_unauthorized_total {counted}"));
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn a_refusal_of_the_request_itself_passes_and_teaches_nothing() {
    let a = Engine::start("a", vec![says("422 Unprocessable Entity")]).await;
    let b = Engine::start("b", vec![says("422 Unprocessable Entity"), kept()]).await;
    let bed = Bed::start(&[&a, &b]).await;
    let reply = bed.client.get(&format!("{PATH}?starting_after=x")).await;
    assert_eq!((reply.status, reply.text().as_str()), (422, REFUSED));
    assert_eq!(owner(&bed), None);
    assert_eq!(go_on(&bed).await.text(), KEPT);
    assert_eq!(owner(&bed), Some(b.id()), "whoever has it says so");
    bed.assert_idle().await;
}

#[tokio::test]
async fn whoever_refuses_is_outdone_by_whoever_answers_and_outdoes_whoever_does_not_know() {
    for (status, passes) in [
        ("400 Bad Request", 400),
        ("429 Too Many Requests", 429),
        ("302 Found", 502),
        ("500 Internal Server Error", 502),
    ] {
        let (refusing, other) =
            (Engine::start("a", vec![says(status)]).await, Engine::start("b", vec![kept()]).await);
        let bed = Bed::start(&[&refusing, &other]).await;
        assert_eq!(bed.client.get(PATH).await.text(), KEPT, "{status}");
        let other = Engine::start("b", vec![unknown()]).await;
        let bed = Bed::start(&[&refusing, &other]).await;
        assert_eq!(bed.client.get(PATH).await.status, passes, "{status}");
        assert_eq!(owner(&bed), None);
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn an_owners_refusal_is_its_word_and_no_other_engine_is_asked() {
    let owning = Engine::start("a", vec![kept(), says("400 Bad Request")]).await;
    let other = Engine::start("b", vec![unknown()]).await;
    let bed = Bed::start(&[&owning, &other]).await;
    let made = bed.client.post("/v1/responses", "", r#"{"model":"m","input":"hi"}"#).await;
    assert_eq!(made.text(), KEPT);
    let cancelled = bed.client.post(&format!("{PATH}/cancel"), "", "").await;
    assert_eq!((cancelled.status, cancelled.text().as_str()), (400, REFUSED));
    assert_eq!((other.requests().len(), owner(&bed)), (0, Some(owning.id())));
    bed.assert_idle().await;
}

#[tokio::test]
async fn an_id_that_is_longer_than_ids_are_goes_no_further() {
    let engine = Engine::start("e", vec![kept()]).await;
    let bed = Bed::start(&[&engine]).await;
    let id = "x".repeat(openai_api::MAX_RESPONSE_ID_BYTES + 1);
    let path = format!("/v1/responses/{id}");
    for reply in
        [bed.client.get(&path).await, bed.client.post(&format!("{path}/cancel"), "", "").await]
    {
        assert_error(&reply, ErrorCode::InvalidRequest);
        assert!(reply.text().contains("at most 256 bytes"), "{}", reply.text());
    }
    assert!(engine.requests().is_empty());
    let body = json!({"model": "m", "input": "hi", "previous_response_id": id}).to_string();
    assert_eq!(bed.client.post("/v1/responses", "", &body).await.status, 200);
    assert_eq!(engine.requests().len(), 1, "an engine judges it, and none is asked before");
    assert_eq!(bed.gateway.owners.of(&id), None);
}

#[tokio::test]
async fn what_is_read_again_is_not_counted_again() {
    const DELTA: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n";
    const END: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_2\",\"usage\":{\"input_tokens\":9,\"output_tokens\":2}}}\n\n";
    let log = Log::start();
    let stream = || events(&[DELTA, END]);
    let engine = Engine::start("e", vec![stream(), stream(), kept()]).await;
    let bed = Bed::start(&[&engine]).await;
    let made = r#"{"model":"m","input":"hi","stream":true}"#;
    assert_eq!(bed.client.post("/v1/responses", "", made).await.text(), [DELTA, END].concat());
    let replayed = bed.client.get(&format!("{PATH}?stream=true")).await;
    assert_eq!(replayed.text(), [DELTA, END].concat());
    assert_eq!(bed.client.get(PATH).await.text(), KEPT);
    assert_eq!(bed.client.post(&format!("{PATH}/cancel"), "", "").await.text(), KEPT);
    bed.assert_idle().await;
    for (model, prompt, completion, ttft, untold) in [("m", 9, 2, 1, 1), ("other", 0, 0, 0, 0)] {
        for (name, value) in [
            ("prompt_tokens_total", prompt),
            ("completion_tokens_total", completion),
            ("ttft_seconds_count", ttft),
            ("cached_tokens_missing_total", untold),
        ] {
            bed.assert_metric(&format!("warmpath_edge_{name}{{model=\"{model}\"}} {value}"));
        }
    }
    let lines = log.requests();
    let telling = lines.iter().filter(|line| line.get("prompt_tokens").is_some());
    assert_eq!((lines.len(), telling.count()), (4, 1));
}

#[tokio::test]
async fn headers_that_are_the_operators_are_so_for_what_is_kept() {
    const HEADERS: &str = "x-vllm-priority: -1\r\nx-data-parallel-rank: 1\r\n";
    let (all, none) = (Some(Policy::Allow), Some(Policy::Reject));
    for (policy, sent) in [(all, Some("-1")), (None, None)] {
        let engine = Engine::start("e", vec![kept()]).await;
        let fields = RawFields { priority: policy, ..RawFields::default() };
        let edge = RawConfig { fields, ..RawConfig::default() };
        let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
        assert_eq!(bed.client.request("GET", PATH, HEADERS, "").await.text(), KEPT);
        let request = &engine.requests()[0];
        assert_eq!(request.header("x-vllm-priority"), sent);
        assert_eq!(request.header("x-data-parallel-rank"), None);
    }
    let engine = Engine::start("e", vec![kept()]).await;
    let fields = RawFields { data_parallel_rank: none, ..RawFields::default() };
    let edge = RawConfig { fields, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let reply = bed.client.request("GET", PATH, HEADERS, "").await;
    assert_error(&reply, ErrorCode::InvalidRequest);
    assert!(reply.text().contains("x-data-parallel-rank"), "{}", reply.text());
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}
