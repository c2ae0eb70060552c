//! Other names for models.

use std::collections::HashMap;

use domain::ErrorCode;
use serde_json::{Value, json};
use tokenization::ModelFolder;

use crate::config::{RawAlias, RawConfig, RawTerms, RawTimeouts};
use crate::testing::*;

fn alias(id: &str, targets: &[(&str, u32)]) -> RawAlias {
    let models = targets.iter().map(|(model, _)| (*model).to_owned()).collect();
    RawAlias { id: id.to_owned(), models, weights: targets.iter().map(|(_, w)| *w).collect() }
}

async fn bed(engine: &Engine, aliases: Vec<RawAlias>, fallback: Option<&str>) -> Bed {
    let fallback_model = fallback.map(str::to_owned);
    let edge = RawConfig { aliases, fallback_model, ..RawConfig::default() };
    let models = HashMap::from([("m".into(), ModelFolder::builtin())]);
    let limited = tenant("anonymous", |t| {
        t.models = Some(["m", "org/m", "gpt", "both", "away", "gone"].map(str::to_owned).into());
    });
    Setup { edge, models, tenants: vec![limited], ..Setup::default() }.start(&[engine]).await
}

fn ok() -> Vec<Vec<Step>> {
    vec![vec![answer("200 OK", "", r#"{"model":"m"}"#)]]
}

fn ask(model: &str, text: &str) -> String {
    json!({"n_unknown": 1, "model": model, "messages": [{"role": "user", "content": text}]})
        .to_string()
}

#[tokio::test]
async fn an_alias_is_its_model_for_engine_keys_and_router_alike() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine, vec![alias("gpt", &[("m", 1)])], None).await;
    let words = "the time of day ".repeat(40);
    let reply = bed.client.chat(&ask("gpt", &words)).await;
    assert_eq!(reply.text(), r#"{"model":"m"}"#, "the answer names what answered");
    bed.client.chat(&ask("m", &words)).await;
    let sent = engine.requests();
    assert_eq!(sent[0].body, sent[1].body, "but for the name nothing is changed");
    let routes = bed.router.routes();
    assert_eq!(routes[0].model.as_str(), "m");
    let keys = |i: usize| routes[i].prompt.as_ref().unwrap().keys.clone();
    assert!(keys(0)[0].unit.is_tokens());
    assert_eq!(keys(0), keys(1));
    bed.assert_metric(r#"warmpath_edge_requests_total{model="m",outcome="ok",route="chat"} 2"#);
}

#[tokio::test]
async fn of_several_models_each_conversation_keeps_its_own() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine, vec![alias("both", &[("m", 1), ("org/m", 1)])], None).await;
    let mut of_org = 0;
    for i in 0..40 {
        let first = ask("both", &format!("conversation {i}"));
        let mut next: Value = serde_json::from_str(&first).unwrap();
        let turns = next["messages"].as_array_mut().unwrap();
        turns.extend([
            json!({"role": "assistant", "content": "x"}),
            json!({"role": "user", "content": "y"}),
        ]);
        bed.client.chat(&first).await;
        bed.client.chat(&next.to_string()).await;
        let routes = bed.router.routes();
        let [.., a, b] = routes.as_slice() else { panic!("two routes") };
        assert_eq!(a.model, b.model);
        of_org += usize::from(a.model.as_str() == "org/m");
    }
    assert!((5..35).contains(&of_org), "{of_org}");
}

#[tokio::test]
async fn aliases_are_listed_with_their_models_metadata() {
    let engine = Engine::start("e", ok()).await;
    let aliases = vec![
        alias("gpt", &[("none", 1), ("m", 2)]),
        alias("gone", &[("none", 1)]),
        alias("secret", &[("m", 1)]),
    ];
    let bed = bed(&engine, aliases, None).await;
    let list: Value = serde_json::from_slice(&bed.client.get("/v1/models").await.body).unwrap();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, ["m", "org/m", "gpt"]);
    let one: Value = serde_json::from_slice(&bed.client.get("/v1/models/gpt").await.body).unwrap();
    assert_eq!(one, json!({"id": "gpt", "object": "model", "max_model_len": 4096, "root": "m"}));
    assert_error(&bed.client.get("/v1/models/secret").await, ErrorCode::ModelNotFound);
    assert_error(&bed.client.chat(&ask("secret", "x")).await, ErrorCode::ModelAccessDenied);
    assert_error(&bed.client.chat(&ask("gone", "x")).await, ErrorCode::ModelNotFound);
}

#[tokio::test]
async fn what_nobody_serves_goes_to_the_model_that_stands_in() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine, vec![alias("gone", &[("none", 1)])], Some("m")).await;
    for model in ["away", "gone", "org/m"] {
        assert_eq!(bed.client.chat(&ask(model, "x")).await.status, 200, "{model}");
    }
    let models: Vec<_> = bed.router.routes().iter().map(|r| r.model.as_str().to_owned()).collect();
    assert_eq!(models, ["m", "m", "org/m"]);
    assert!(String::from_utf8_lossy(&engine.requests()[0].body).contains(r#""model":"m""#));
    assert_error(&bed.client.chat(&ask("other", "x")).await, ErrorCode::ModelAccessDenied);
}

#[tokio::test]
async fn an_alias_in_a_form_is_replaced_where_it_stands() {
    for length in [10, 2_000_000] {
        let engine = Engine::start("e", ok()).await;
        let bed = bed(&engine, vec![alias("gpt", &[("org/m", 1)])], None).await;
        let form = |model: &str| {
            let field = format!(
                "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n"
            );
            let file =
                "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
            [field, file.to_owned(), "x".repeat(length), "\r\n--XX--\r\n".to_owned()].concat()
        };
        let head = "content-type: multipart/form-data; boundary=XX\r\n";
        let bytes =
            String::from_utf8(request_bytes("POST", "/v1/audio/translations", head, &form("gpt")))
                .unwrap();
        let bytes = bytes.replacen("content-type: application/json\r\n", "", 1);
        let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, bytes.as_bytes()).await.unwrap();
        assert_eq!(read_reply(&mut stream, "POST").await.status, 200);
        assert!(engine.requests()[0].body == form("org/m").as_bytes(), "{length}");
    }
}

#[tokio::test]
async fn routes_and_models_may_have_limits_of_their_own() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let short = "20ms".parse().unwrap();
    let long = "10m".parse().unwrap();
    let terms = vec![
        RawTerms {
            route: Some("tokenize".to_owned()),
            body_limit_bytes: Some(100),
            ..RawTerms::default()
        },
        RawTerms { model: Some("m".to_owned()), total: Some(short), ..RawTerms::default() },
        RawTerms {
            route: Some("completions".to_owned()),
            model: Some("m".to_owned()),
            total: Some(long),
            ..RawTerms::default()
        },
    ];
    let timeouts = RawTimeouts { total: long, ..RawTimeouts::default() };
    let edge = RawConfig { terms, timeouts, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    let large = json!({"model": "m", "prompt": "x".repeat(200)}).to_string();
    assert_error(&bed.client.post("/tokenize", "", &large).await, ErrorCode::RequestTooLarge);
    assert_error(&bed.client.chat(&ask("m", "x")).await, ErrorCode::Timeout);
    let open = bed.client.send("POST", "/v1/completions", "", &large).await;
    let other = bed.client.send("POST", "/v1/chat/completions", "", &ask("org/m", "x")).await;
    engine.await_requests(3).await;
    // Sent after both, and ended by the short limit.
    assert_error(&bed.client.chat(&ask("m", "x")).await, ErrorCode::Timeout);
    assert_eq!(bed.router.open_leases(), 2, "neither of the others has it");
    drop((open, other));
    bed.assert_idle().await;
}
