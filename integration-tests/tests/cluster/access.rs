//! Who may do what: routes, keys, models.

use bytes::Bytes;
use credentials::GeneratedKey;
use http::Method;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::chat;

/// Routes of engines that no client may reach, and routes that nobody serves.
const NEVER: &[&str] = &[
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/collective_rpc",
    "/pause",
    "/resume",
    "/update_weights",
    "/abort_requests",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/fault_tolerance/apply",
    "/server_info",
    "/start_profile",
    "/stop_profile",
    "/invocations",
    "/metrics",
    "/load",
    "/slots",
    "/props",
    "/kv_event_sources",
    "/docs",
    "/openapi.json",
    "/admin/v1/backends",
    "/admin/v1/explain/x",
    "/readyz",
    "/",
    "/v1",
    "/v1/chat/completions/",
    "//v1/chat/completions",
    "/v1/chat/completions/render/",
    "/v1/chat/completions/../../reset_prefix_cache",
    "/v1/chat%2Fcompletions",
    "/V1/CHAT/COMPLETIONS",
];

/// A key with its lines for the config.
fn key(tenant: &str) -> (String, String) {
    let key = GeneratedKey::generate(tenant).unwrap();
    (key.secret_text().to_owned(), key.config_lines())
}

#[tokio::test]
async fn what_is_not_served_is_not_found_and_no_engine_hears_of_it() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    for path in NEVER {
        for method in [Method::GET, Method::POST, Method::DELETE, Method::PUT] {
            let reply = client.send(method.clone(), path, &[], Bytes::from_static(b"{}")).await;
            assert_eq!(reply.status, 404, "{method} {path}");
            reply.assert_error(404, "route_not_found");
        }
    }
    // The telemetry asks for these by itself.
    let probes = ["/metrics", "/health", "/v1/models", "/tokenize", "/version", "/load"];
    for seen in cluster.doubles()[0].take_requests() {
        let render = seen.target.ends_with("/render") && seen.headers.get("x-request-id").is_none();
        assert!(probes.contains(&&*seen.target) || render, "{} reached the engine", seen.target);
    }
    cluster.stop().await;
}

#[tokio::test]
async fn errors_of_the_gateways_own_have_the_shape_that_the_sdks_read() {
    let config = "[edge]\nbody_limit_bytes = 1000";
    let cluster = Cluster::builder().engines(1).config(config).build().await;
    let client = cluster.client();
    let empty = Bytes::new();
    let reply = client.send(Method::GET, "/v1/chat/completions", &[], empty.clone()).await;
    reply.assert_error(405, "method_not_allowed");
    assert_eq!(reply.header("allow"), "POST");
    client
        .send(Method::POST, "/v1/models", &[], empty)
        .await
        .assert_error(405, "method_not_allowed");
    client
        .chat(chat("x", 1, false).replace(MODEL, "nobody"))
        .await
        .assert_error(404, "model_not_found");
    client.chat(chat(&"x".repeat(2000), 1, false)).await.assert_error(413, "request_too_large");
    for body in ["", "{", "[]", "null", "{\"model\":7}", "{\"messages\":[]}", "\u{feff}{}"] {
        let reply = client.chat(body.to_owned()).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error", "{body}");
    }
    let twice = format!(r#"{{"model":"{MODEL}","model":"x","messages":[{{}}]}}"#);
    assert_eq!(client.chat(twice).await.status, 400);
    assert_eq!(cluster.requests(), [0], "no engine was bothered");
    cluster.stop().await;
}

#[tokio::test]
async fn without_a_valid_key_nobody_is_served_and_every_refusal_is_alike() {
    let (secret, lines) = key("team");
    let config = format!("[[tenants]]\nid = \"team\"\n{lines}");
    let cluster = Cluster::builder().engines(1).config(&config).build().await;
    let stranger = cluster.client();
    let (id, _) = secret.rsplit_once('-').unwrap();
    let wrong = format!("Bearer {id}-{}", "0".repeat(64));
    let cases: &[(&str, String)] = &[
        ("x-nothing", String::new()),
        ("authorization", "Bearer".to_owned()),
        ("authorization", wrong),
        ("authorization", format!("Bearer {secret}0")),
        ("authorization", format!("Basic {secret}")),
        ("authorization", "Bearer sk-wp-nobody-0".to_owned()),
        ("x-api-key", "sk-wp-nobody-0".to_owned()),
        ("authorization", format!("Bearer {}", "a".repeat(40_000))),
    ];
    let mut bodies = Vec::new();
    for (name, value) in cases {
        let body = Bytes::from(chat("x", 1, false));
        let headers = [(*name, value.as_str())];
        let reply = stranger.send(Method::POST, "/v1/chat/completions", &headers, body).await;
        reply.assert_error(401, "invalid_api_key");
        assert_eq!(reply.header("www-authenticate"), "Bearer");
        bodies.push(reply.body);
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]));
    stranger.get("/v1/models").await.assert_error(401, "invalid_api_key");
    assert_eq!(stranger.get("/health").await.status, 200);
    assert_eq!(cluster.requests(), [0]);

    let holder = stranger.with_key(&secret);
    assert_eq!(holder.chat(chat("x", 1, false)).await.status, 200);
    assert_eq!(holder.get("/v1/models").await.status, 200);
    let headers = [("x-api-key", secret.as_str())];
    let body = Bytes::from(chat("x", 1, false));
    let reply = stranger.send(Method::POST, "/v1/chat/completions", &headers, body).await;
    assert_eq!(reply.status, 200);
    cluster.stop().await;
}

#[tokio::test]
async fn credentials_never_reach_an_engine() {
    let (secret, lines) = key("team");
    let config = format!("[[tenants]]\nid = \"team\"\n{lines}");
    let cluster = Cluster::builder().engines(1).config(&config).build().await;
    let headers = [
        ("authorization", format!("Bearer {secret}")),
        ("x-api-key", secret.clone()),
        ("cookie", format!("session={secret}")),
        ("proxy-authorization", format!("Basic {secret}")),
    ];
    let headers: Vec<_> = headers.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let body = Bytes::from(chat("x", 1, true));
    let reply = cluster.client().send(Method::POST, "/v1/chat/completions", &headers, body).await;
    assert_eq!(reply.status, 200);
    let seen = cluster.doubles()[0].take_requests();
    assert!(seen.iter().any(|request| request.target == "/v1/chat/completions"));
    for request in seen {
        for (name, value) in &request.headers {
            assert!(!value.to_str().unwrap().contains(&secret), "{name} of {}", request.target);
        }
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_key_may_use_only_the_models_it_was_given() {
    let (wide, wide_lines) = key("wide");
    let (narrow, narrow_lines) = key("narrow");
    let config = format!(
        "[[tenants]]\nid = \"wide\"\n[[tenants]]\nid = \"narrow\"\nmodels = [\"something-else\"]\n\
         {wide_lines}{narrow_lines}"
    );
    let cluster = Cluster::builder().engines(1).config(&config).build().await;
    let narrow = cluster.client().with_key(&narrow);
    narrow.chat(chat("x", 1, false)).await.assert_error(403, "model_access_denied");
    assert_eq!(narrow.get("/v1/models").await.json()["data"], serde_json::json!([]));
    narrow.get(&format!("/v1/models/{MODEL}")).await.assert_error(404, "model_not_found");
    assert_eq!(cluster.requests(), [0]);
    let wide = cluster.client().with_key(&wide);
    assert_eq!(wide.chat(chat("x", 1, false)).await.status, 200);
    cluster.stop().await;
}
