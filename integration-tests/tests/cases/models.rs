//! The list of models is that of all engines, and requests go to those that have them.

use integration_tests::cluster::MODEL;
use integration_tests::scenarios::chat;
use integration_tests::scripted::{ScriptedEngine, short};
use integration_tests::wait::{PATIENCE, eventually};
use serde_json::{Value, json};

use crate::before;

fn base() -> Value {
    json!({"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "vllm",
        "root": "/models/base", "parent": null, "max_model_len": 4096,
        "permission": [{"id": "p-1", "allow_sampling": true}]})
}

fn adapter(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 1_700_000_001, "owned_by": "vllm",
        "root": format!("/adapters/{name}"), "parent": MODEL})
}

#[tokio::test]
async fn an_adapter_loaded_while_it_runs_is_listed_with_its_metadata_and_asked_where_it_is() {
    let (one, two) =
        (ScriptedEngine::with(Vec::new()).await, ScriptedEngine::with(Vec::new()).await);
    for engine in [&one, &two] {
        engine.answer_by(short);
    }
    one.set_listing(&[base(), adapter("org/lora-a")]);
    two.set_listing(&[base()]);
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let cluster = before(&[&one, &two])
        .absent_backend("absent", nobody)
        .config("[telemetry]\nlisting_interval = \"50ms\"")
        .build()
        .await;
    let client = cluster.client();
    let listing = client.get("/v1/models").await;
    assert_eq!(listing.json()["data"], json!([base(), adapter("org/lora-a")]));
    assert_eq!(client.get("/v1/models").await.body, listing.body, "nothing is made up anew");
    client
        .chat(chat("x", 1, false).replace(MODEL, "lora-b"))
        .await
        .assert_error(404, "model_not_found");

    two.set_listing(&[base(), adapter("lora-b")]);
    let loaded = || async { client.get("/v1/models").await.text().contains("lora-b") };
    eventually(PATIENCE, "it is listed", loaded).await;
    let all = json!([base(), adapter("lora-b"), adapter("org/lora-a")]);
    let mut data = client.get("/v1/models").await.json()["data"].as_array().unwrap().clone();
    data.sort_by_key(|entry| (entry["parent"].is_string(), entry["id"].to_string()));
    assert_eq!(Value::from(data), all);
    for path in ["/v1/models/org%2Flora-a", "/v1/models/org/lora-a"] {
        assert_eq!(client.get(path).await.json(), adapter("org/lora-a"), "{path}");
    }
    client.get("/v1/models/lora-c").await.assert_error(404, "model_not_found");
    for (model, backend) in [("lora-b", "b"), ("org/lora-a", "a")] {
        for n in 0..20 {
            let body = chat(&format!("{n}"), 1, n % 2 == 0).replace(MODEL, model);
            let reply = client.chat(body).await;
            assert_eq!((reply.status.as_u16(), reply.backend()), (200, backend), "{model}");
        }
    }
    cluster.stop().await;
}
