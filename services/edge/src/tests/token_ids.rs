//! Token ids in and out, several chats at once, and the routes around them.

use std::collections::HashMap;

use domain::ErrorCode;
use serde_json::{Value, json};
use tokenization::ModelFolder;

use crate::testing::*;

async fn bed(engine: &Engine) -> Bed {
    let models = HashMap::from([("m".into(), ModelFolder::builtin())]);
    Setup { models, ..Setup::default() }.start(&[engine]).await
}

fn ok() -> Vec<Vec<Step>> {
    vec![vec![answer("200 OK", "", "{}")]]
}

fn prompt(bed: &Bed, at: usize) -> domain::Prompt {
    bed.router.routes()[at].prompt.clone().unwrap()
}

#[tokio::test]
async fn token_ids_are_keyed_as_they_are() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine).await;
    let ids: Vec<u32> = (0..64).collect();
    let generate = json!({"model": "m", "token_ids": ids, "sampling_params": {"max_tokens": 3}});
    let reply = bed.client.post("/inference/v1/generate", "", &generate.to_string()).await;
    assert_eq!(reply.status, 200);
    let completion = json!({"model": "m", "prompt": ids});
    bed.client.post("/v1/completions", "", &completion.to_string()).await;
    assert_eq!(prompt(&bed, 0).keys[0].keys.len(), 4);
    assert_eq!(prompt(&bed, 0).keys, prompt(&bed, 1).keys);
    assert_eq!(prompt(&bed, 0).tokens, 64);
    assert_eq!(bed.router.routes()[0].max_output_tokens, Some(3));
    // An image among them gives its blocks keys that are not known here.
    let mut with_image = generate.clone();
    with_image["features"] = json!({"mm_hashes": {"image": ["x"]}});
    bed.client.post("/inference/v1/generate", "", &with_image.to_string()).await;
    assert!(!prompt(&bed, 2).keys[0].unit.is_tokens());
}

#[tokio::test]
async fn a_stream_of_token_ids_has_a_commit_point_and_a_usage() {
    let ids = "data: {\"request_id\":\"1\",\"choices\":[{\"index\":0,\"token_ids\":[5]}]}\n\n";
    let usage = "data: {\"request_id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1}}\n\n";
    let engine = Engine::start("e", vec![events(&[ids, usage, DONE])]).await;
    let bed = bed(&engine).await;
    let body = json!({"model": "m", "token_ids": [1, 2], "sampling_params": {}, "stream": true});
    let reply = bed.client.post("/inference/v1/generate", "", &body.to_string()).await;
    assert_eq!(reply.text(), [ids, DONE].concat());
    bed.assert_idle().await;
    assert_eq!(bed.router.events(), [["first-token", "finished 2+1 cached 0"]]);
}

#[tokio::test]
async fn of_several_chats_the_first_decides_and_the_others_count_by_their_length() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine).await;
    let words = "the time of day ".repeat(40);
    let (one, two) = (
        json!([{"role": "user", "content": words}]),
        json!([{"role": "user", "content": "something else ".repeat(40)}]),
    );
    let batch = json!({"model": "m", "messages": [one, two]});
    bed.client.post("/v1/chat/completions/batch", "", &batch.to_string()).await;
    for messages in [&one, &two] {
        bed.client.chat(&json!({"model": "m", "messages": messages}).to_string()).await;
    }
    assert!(prompt(&bed, 0).keys[0].keys.len() > 2);
    assert_eq!(prompt(&bed, 0).keys, prompt(&bed, 1).keys);
    let more = prompt(&bed, 0).tokens - prompt(&bed, 1).tokens;
    assert!((150..160).contains(&more), "{more} of 600 bytes");
    let empty = json!({"model": "m", "messages": []}).to_string();
    let reply = bed.client.post("/v1/chat/completions/batch", "", &empty).await;
    assert_error(&reply, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn prompts_of_other_forms_are_keyed_by_their_text() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine).await;
    let words = "the time of day ".repeat(200);
    let scoring = |item: &str| json!({"model": "m", "query": words, "items": [item]}).to_string();
    let cohere = |last: &str| {
        let messages =
            json!([{"role": "user", "content": words}, {"role": "user", "content": last}]);
        json!({"model": "m", "messages": messages}).to_string()
    };
    for body in [scoring("a"), scoring("b")] {
        bed.client.post("/generative_scoring", "", &body).await;
    }
    for body in [cohere("a"), cohere("b")] {
        bed.client.post("/cohere/v2/chat", "", &body).await;
    }
    for pair in [0, 2] {
        let (a, b) = (prompt(&bed, pair).keys[0].clone(), prompt(&bed, pair + 1).keys[0].clone());
        assert!(!a.unit.is_tokens() && a.keys.len() > 2, "{pair}");
        assert_eq!(a.keys[..3], b.keys[..3], "{pair}");
    }
}

#[tokio::test]
async fn what_fills_no_cache_goes_by_load() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine).await;
    let body = r#"{"model":"m","input":"x","texts":["x"],"messages":[{"role":"user","content":"x"}],"stream":true}"#;
    let paths = [
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/render",
        "/v1/responses/render",
        "/v1/chat/completions/derender",
        "/v1/completions/derender",
        "/tokenize?x=1",
    ];
    for path in paths {
        assert_eq!(bed.client.post(path, "", body).await.status, 200, "{path}");
    }
    let sent = engine.requests();
    for (path, request) in paths.iter().zip(&sent) {
        assert_eq!(request.line(), format!("POST {path} HTTP/1.1"));
        assert_eq!(request.body, body.as_bytes());
    }
    assert!(bed.router.routes().iter().all(|route| route.prompt.is_none() && !route.stream));
}

#[tokio::test]
async fn the_tokenizers_description_comes_from_the_model_that_the_query_names() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine).await;
    let reply = bed.client.get("/tokenizer_info").await;
    assert_error(&reply, ErrorCode::InvalidRequest);
    assert!(reply.text().contains("?model="));
    assert_eq!(bed.client.get("/tokenizer_info?model=org%2Fm").await.status, 200);
    assert_eq!(bed.router.routes()[0].model.as_str(), "org/m");
    let sent = &engine.requests()[0];
    assert_eq!(sent.line(), "GET /tokenizer_info?model=org%2Fm HTTP/1.1");
    assert!(sent.body.is_empty());
    let unknown = bed.client.get("/tokenizer_info?model=none").await;
    assert_error(&unknown, ErrorCode::ModelNotFound);
    bed.assert_idle().await;
}

#[tokio::test]
async fn what_an_operators_probe_asks_is_answered_here() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine).await;
    for method in ["GET", "POST"] {
        assert_eq!(bed.client.request(method, "/ping", "", "").await.status, 200);
    }
    let version: Value = serde_json::from_slice(&bed.client.get("/version").await.body).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(engine.requests().is_empty());
}

#[tokio::test]
async fn cohere_clients_get_errors_in_their_form() {
    let engine = Engine::start("e", ok()).await;
    let bed = bed(&engine).await;
    let reply = bed.client.post("/cohere/v2/chat", "", "{").await;
    assert_eq!(reply.status, 400);
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body.as_object().unwrap().len(), 2);
    assert_eq!(body["id"], reply.header("x-request-id").unwrap());
    assert!(body["message"].as_str().unwrap().contains("JSON"));
}
