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

const GENERATE: &str = "/inference/v1/generate";

/// A request of token ids with such arguments of extensions.
fn generate(extra_args: &str) -> String {
    let sampling = format!(r#"{{"max_tokens":5 , "extra_args" : {extra_args},"n":1}}"#);
    format!(r#"{{"model":"m","token_ids":[1,2],"sampling_params":{sampling}}}"#)
}

fn complaint(reply: &Reply) -> (u16, String) {
    let error: Value = serde_json::from_slice(&reply.body).unwrap();
    (reply.status, error["error"]["param"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn what_is_refused_is_so_inside_the_arguments_of_extensions_too() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine, RawFields::default(), RawFields::default()).await;
    for (args, path) in [
        (r#"{"kv_transfer_params":{"do_remote_prefill":true}}"#, ".kv_transfer_params"),
        (r#"{"a":null, "kv_tr\u0061nsfer_params":{}}"#, ".kv_transfer_params"),
        (r#"{"ec_transfer_params":{"h":1}}"#, ".ec_transfer_params"),
        (r#"{"kv_transfer_params":null,"window_size":3}"#, ""),
        (r#"{"a":1},"extra_args":null"#, ""),
        (r#"null,"extr\u0061_args":{"ec_transfer_params":1}"#, ".ec_transfer_params"),
    ] {
        let reply = bed.client.post(GENERATE, "", &generate(args)).await;
        let path = format!("sampling_params.extra_args{path}");
        assert_eq!(complaint(&reply), (400, path.clone()), "{args}");
        assert!(reply.text().contains(&format!("'{path}' is not open")), "{}", reply.text());
    }
    let kwargs = body(r#""chat_template_kwargs":{"x":1,"chat_template":"{{ 1 }}"},"#);
    let reply = bed.client.chat(&kwargs).await;
    assert_eq!(complaint(&reply), (400, "chat_template_kwargs.chat_template".to_owned()));
    assert!(engine.requests().is_empty());
    for args in ["null", "{}", r#"{"kv_transfer_params":null}"#, "7"] {
        assert_eq!(bed.client.post(GENERATE, "", &generate(args)).await.status, 200, "{args}");
        assert_eq!(engine.requests().last().unwrap().body, generate(args).as_bytes());
    }
}

#[tokio::test]
async fn what_is_taken_out_of_the_arguments_of_extensions_leaves_all_other_bytes() {
    let kv = r#""kv_transfer_params" : {"a":[1]}"#;
    let args = [r#"{ "seed":1e400 ,"#, kv, r#", "x":"\u00e9", "ec_transfer_params":2 }"#].concat();
    let twice = [&args, r#" ,"extra_args":"#, &args].concat();
    for (xargs, kv, ec, left) in [
        (Policy::Allow, Policy::Allow, Policy::Allow, args.as_str()),
        (Policy::Allow, Policy::Strip, Policy::Strip, r#"{ "seed":1e400 , "x":"\u00e9" }"#),
        (Policy::Strip, Policy::Allow, Policy::Strip, r#"{ "kv_transfer_params" : {"a":[1]} }"#),
        (Policy::Strip, Policy::Strip, Policy::Strip, "{    }"),
    ] {
        let engine = Engine::start("e", ok()).await;
        let fields = RawFields {
            vllm_xargs: Some(xargs),
            kv_transfer_params: Some(kv),
            ec_transfer_params: Some(ec),
            ..RawFields::default()
        };
        let bed = bed(&engine, fields, RawFields::default()).await;
        for (sent, left) in
            [(&args, left.to_owned()), (&twice, [left, r#" ,"extra_args":"#, left].concat())]
        {
            assert_eq!(bed.client.post(GENERATE, "", &generate(sent)).await.status, 200);
            let got = String::from_utf8(engine.requests().last().unwrap().body.clone()).unwrap();
            assert_eq!(got, generate(&left), "{xargs:?} {kv:?} {ec:?}");
        }
    }
}

#[tokio::test]
async fn transfers_are_no_extension_where_extensions_are_allowed() {
    let engine = Engine::start("e", ok()).await;
    let edge = RawFields {
        vllm_xargs: Some(Policy::Allow),
        ec_transfer_params: Some(Policy::Strip),
        ..RawFields::default()
    };
    let bed = bed(&engine, edge, RawFields::default()).await;
    let with = |xargs: &str| body(&format!(r#""vllm_xargs":{xargs},"#));
    let reply = bed.client.chat(&with(r#"{"a":1,"kv_transfer_params":"x"}"#)).await;
    assert_eq!(complaint(&reply), (400, "vllm_xargs.kv_transfer_params".to_owned()));
    bed.client.chat(&with(r#"{"a":1,"ec_transfer_params":"x"}"#)).await;
    assert_eq!(engine.requests()[0].body, with(r#"{"a":1}"#).as_bytes());
}
