//! Every route that is served.

use bytes::Bytes;
use http::Method;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::chat;
use serde_json::{Value, json};

#[tokio::test]
async fn models_are_the_union_over_ready_backends_and_requests_go_to_those_that_have_them() {
    // A port where nothing listens any more.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let cluster = Cluster::builder()
        .engines(3)
        .double(|n, double| double.model(["base", "base", "org/other"][n]))
        .absent_backend("gone", address)
        .build()
        .await;
    let client = cluster.client();
    let list = client.get("/v1/models").await.json();
    let models = list["data"].as_array().unwrap();
    let ids: Vec<&str> = models.iter().filter_map(|m| m["id"].as_str()).collect();
    assert_eq!(ids, ["base", "org/other"]);
    for model in models {
        assert!(model["max_model_len"].is_u64() && model["root"].is_string(), "{model}");
    }
    for path in ["/v1/models/org/other", "/v1/models/org%2Fother"] {
        assert_eq!(client.get(path).await.json()["id"], "org/other");
    }
    client.get("/v1/models/nobody").await.assert_error(404, "model_not_found");
    for n in 0..20 {
        let body = chat(&format!("Ask {n}"), 1, n % 2 == 0).replace(MODEL, "org/other");
        assert_eq!(client.chat(body).await.backend(), "engine-2");
    }
    assert_eq!(cluster.requests(), [0, 0, 20]);
    let nobody = chat("x", 1, false).replace(MODEL, "nobody");
    client.chat(nobody).await.assert_error(404, "model_not_found");
    cluster.stop().await;
}

#[tokio::test]
async fn routes_without_a_prefix_go_by_load() {
    let cluster = Cluster::builder().engines(3).build().await;
    let client = cluster.client();
    let requests: [(&str, Value, &str); 9] = [
        ("/v1/embeddings", json!({"model": MODEL, "input": ["a", "b"]}), "data"),
        ("/v1/rerank", json!({"model": MODEL, "query": "a", "documents": ["b", "c"]}), "results"),
        ("/v2/rerank", json!({"model": MODEL, "query": "a", "documents": ["b", "c"]}), "results"),
        ("/rerank", json!({"model": MODEL, "query": "a", "documents": ["b", "c"]}), "results"),
        ("/v1/score", json!({"model": MODEL, "text_1": "a", "text_2": ["b"]}), "data"),
        ("/score", json!({"model": MODEL, "text_1": "a", "text_2": ["b"]}), "data"),
        ("/tokenize", json!({"model": MODEL, "prompt": "Hello"}), "tokens"),
        (
            "/tokenize",
            json!({"model": MODEL, "messages": [{"role": "user", "content": "a"}]}),
            "tokens",
        ),
        ("/detokenize", json!({"model": MODEL, "tokens": [1, 2]}), "prompt"),
    ];
    for (path, body, field) in &requests {
        let mut backends = std::collections::HashSet::new();
        for _ in 0..3 {
            let reply = client.post(path, body.to_string()).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
            assert!(!reply.json()[field].is_null(), "{path}: {}", reply.text());
            backends.insert(reply.backend().to_owned());
        }
        assert_eq!(backends.len(), 3, "{path} went to {backends:?}");
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn completions_of_text_of_token_ids_and_of_lists_are_answered() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    let tokens: Vec<u32> = (5..105).collect();
    for (prompt, choices) in [
        (json!("A text"), 1),
        (json!(["One", "Two"]), 2),
        (json!(tokens), 1),
        (json!([tokens, [7, 8, 9]]), 2),
    ] {
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 2});
        let reply = client.post("/v1/completions", body.to_string()).await;
        assert_eq!(reply.json()["choices"].as_array().unwrap().len(), choices, "{prompt}");
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let events = client.post("/v1/completions", streamed.to_string()).await.events();
        assert_eq!((events.contents, events.dones), (2 * choices, 1), "{prompt}");
    }
    // Token ids are keyed as they are.
    let body = json!({"model": MODEL, "prompt": tokens, "max_tokens": 1}).to_string();
    let reply = client.post("/v1/completions", body).await;
    let cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 80, "{}", reply.text());
    assert!(reply.number("x-warmpath-matched-tokens").abs_diff(cached) <= 16);
    cluster.stop().await;
}

#[tokio::test]
async fn a_client_may_speak_http_2_without_asking_first() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    let stream = client.send_h2(Method::POST, "/v1/chat/completions", chat("Two", 5, true).into());
    let whole = client.send_h2(Method::POST, "/v1/chat/completions", chat("Two", 5, false).into());
    let models = client.send_h2(Method::GET, "/v1/models", Bytes::new());
    let (stream, whole, models) = tokio::join!(stream, whole, models);
    assert!(stream.status == 200 && stream.whole && stream.events().is_complete());
    assert_eq!(stream.events().contents, 5);
    assert_eq!(whole.json()["choices"][0]["message"]["content"], stream.events().text);
    assert_eq!(models.json()["data"][0]["id"], MODEL);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_gateway_tells_whether_it_lives_and_whether_traffic_is_welcome() {
    let cluster = Cluster::builder().engines(1).build().await;
    let operator = integration_tests::client::Client::new(cluster.admin());
    assert_eq!(operator.get("/healthz").await.status, 200);
    assert_eq!(operator.get("/readyz").await.status, 200);
    cluster.kill("engine-0").await;
    let down = || async { operator.get("/readyz").await.status == 503 };
    integration_tests::wait::eventually(integration_tests::wait::PATIENCE, "not ready", down).await;
    assert_eq!(operator.get("/healthz").await.status, 200);
    cluster.client().chat(chat("x", 1, false)).await.assert_error(502, "upstream_unavailable");
    cluster.stop().await;
}
