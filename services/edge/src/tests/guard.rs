//! Fields that are the operator's.

use domain::ErrorCode;
use serde_json::Value;

use crate::config::RawConfig;
use crate::guard::{Policy, RawFields};
use crate::testing::*;

fn ok() -> Vec<Vec<Step>> {
    vec![vec![answer("200 OK", "", "{}")]]
}

fn body(fields: &str) -> String {
    format!(r#"{{"model":"m",{fields}"messages":[{{"role":"user","content":"hi"}}]}}"#)
}

async fn bed(engine: &Engine, edge: RawFields, tenant_fields: RawFields) -> Bed {
    let edge = RawConfig { fields: edge, ..RawConfig::default() };
    let tenants = vec![tenant("anonymous", |t| t.fields = tenant_fields)];
    Setup { edge, tenants, ..Setup::default() }.start(&[engine]).await
}

#[tokio::test]
async fn what_steers_the_engine_is_taken_out_and_nothing_else() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine, RawFields::default(), RawFields::default()).await;
    let sent = body(r#" "priority" : -5 , "x":1e400,"request_id":"a", "#);
    assert_eq!(bed.client.chat(&sent).await.status, 200);
    let got = String::from_utf8(engine.requests()[0].body.clone()).unwrap();
    let end = r#""messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(got, [r#"{"model":"m" , "x":1e400, "#, end].concat());
    let headers = "x-vllm-priority: -5\r\nx-data-parallel-rank: 1\r\nx-other: 1\r\n";
    bed.client
        .post("/v1/completions", headers, r#"{"model":"m","prompt":"x","priority":null}"#)
        .await;
    let sent = &engine.requests()[1];
    assert_eq!((sent.header("x-vllm-priority"), sent.header("x-data-parallel-rank")), (None, None));
    assert_eq!(sent.header("x-other"), Some("1"));
    assert_eq!(sent.body, br#"{"model":"m","prompt":"x","priority":null}"#, "null says nothing");
}

#[tokio::test]
async fn what_would_change_the_answer_is_refused_by_name() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine, RawFields::default(), RawFields::default()).await;
    for (name, value) in [
        ("chat_template", r#""{{ 1 }}""#),
        ("kv_transfer_params", r#"{"do_remote_decode":true}"#),
        ("ec_transfer_params", "{}"),
        ("vllm_xargs", r#"{"a":1}"#),
        ("ch\\u0061t_template", r#""x""#),
    ] {
        for path in ["/v1/chat/completions", "/v1/messages", "/tokenize"] {
            let reply = bed.client.post(path, "", &body(&format!(r#""{name}":{value},"#))).await;
            assert_eq!(reply.status, 400, "{path} {name}");
            let error: Value = serde_json::from_slice(&reply.body).unwrap();
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(&name.replace("\\u0061", "a")), "{message}");
        }
    }
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_tenant_may_be_allowed_more_or_less_than_others() {
    let engine = Engine::start("e", ok()).await;
    let edge = RawFields { vllm_xargs: Some(Policy::Strip), ..RawFields::default() };
    let own = RawFields {
        priority: Some(Policy::Allow),
        data_parallel_rank: Some(Policy::Reject),
        chat_template: Some(Policy::Allow),
        ..RawFields::default()
    };
    let bed = bed(&engine, edge, own).await;
    let sent = body(r#""priority":-5,"chat_template":"x","#);
    let with_xargs = sent.replace(r#""priority""#, r#""vllm_xargs":{"a":1},"priority""#);
    bed.client.post("/v1/chat/completions", "x-vllm-priority: -5\r\n", &with_xargs).await;
    assert_eq!(engine.requests()[0].body, sent.as_bytes());
    assert_eq!(engine.requests()[0].header("x-vllm-priority"), Some("-5"));
    let headers = "x-data-parallel-rank: 1\r\n";
    let reply = bed.client.post("/v1/chat/completions", headers, WHOLE).await;
    assert_error(&reply, ErrorCode::InvalidRequest);
}
