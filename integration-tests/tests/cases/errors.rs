//! Refusals of the gateway's own have one shape, on every way to them.

use credentials::GeneratedKey;
use http::Method;
use integration_tests::client::Reply;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::chat;
use integration_tests::wait::{PATIENCE, eventually};
use parking_lot::Mutex;
use serde_json::Value;

const PATH: &str = "/v1/chat/completions";

/// Each tenant meets another limit.
const TENANTS: [(&str, &str); 4] = [
    ("free", ""),
    ("other", "models = [\"something-else\"]"),
    ("slow", "requests_per_minute = 1"),
    ("narrow", "max_concurrency = 1"),
];

struct Bed {
    cluster: Cluster,
    keys: Vec<String>,
}

impl Bed {
    async fn start() -> Self {
        let mut config = "[edge]\nbody_limit_bytes = 8000\nbody_memory_bytes = 8192\n\
                          [edge.timeouts]\nbody = \"2s\"\ntotal = \"2s\"\n"
            .to_owned();
        let mut keys = Vec::new();
        let mut lines = String::new();
        for (tenant, limits) in TENANTS {
            let key = GeneratedKey::generate(tenant).unwrap();
            config += &format!("[[tenants]]\nid = \"{tenant}\"\n{limits}\n");
            lines += &key.config_lines();
            keys.push(key.secret_text().to_owned());
        }
        let cluster = Cluster::builder().engines(1).config(&(config + &lines)).build().await;
        Self { cluster, keys }
    }

    async fn ask(&self, method: Method, path: &str, tenant: usize, body: String) -> Reply {
        let headers = [("accept", "text/event-stream")];
        let client = self.cluster.client().with_key(&self.keys[tenant]);
        client.send(method, path, &headers, body.into()).await
    }
}

#[tokio::test]
async fn every_refusal_has_the_shape_that_sdks_read_whatever_was_asked() {
    let bed = Bed::start().await;
    let plain = || chat("x", 1, true);
    let unknown = chat("x", 1, true).replace(MODEL, "nobody");
    for (path, tenant, body, status, code) in [
        (PATH, 0, "{".to_owned(), 400, "invalid_request"),
        (PATH, 0, String::new(), 400, "invalid_request"),
        (PATH, 1, plain(), 403, "model_access_denied"),
        (PATH, 0, unknown, 404, "model_not_found"),
        ("/v1/nothing", 0, plain(), 404, "route_not_found"),
        ("//v1/chat/completions", 0, plain(), 404, "route_not_found"),
        ("/v1/chat/completions/", 0, plain(), 404, "route_not_found"),
        ("/v1/models", 0, plain(), 405, "method_not_allowed"),
        (PATH, 0, chat(&"x".repeat(16_000), 1, true), 413, "request_too_large"),
    ] {
        bed.ask(Method::POST, path, tenant, body).await.assert_error(status, code);
    }
    let nobody = bed.cluster.client().chat(plain()).await;
    nobody.assert_error(401, "invalid_api_key");
    assert_eq!(nobody.header("www-authenticate"), "Bearer");
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
        let reply = bed.ask(method, PATH, 0, String::new()).await;
        reply.assert_error(405, "method_not_allowed");
        assert_eq!(reply.header("allow"), "POST");
    }
    let head = bed.ask(Method::HEAD, PATH, 0, String::new()).await;
    assert_eq!((head.status.as_u16(), head.header("allow"), head.body.len()), (405, "POST", 0));
    bed.cluster.stop().await;
}

#[tokio::test]
async fn refusals_for_limits_and_for_engines_that_fail_have_it_too() {
    let bed = Bed::start().await;
    let double = &bed.cluster.doubles()[0];
    let plain = |stream| chat("x", 1, stream);
    assert_eq!(bed.ask(Method::POST, PATH, 2, plain(false)).await.status, 200);
    let refused = bed.ask(Method::POST, PATH, 2, plain(false)).await;
    refused.assert_error(429, "rate_limit_exceeded");
    assert!(refused.number("retry-after") >= 1);

    let narrow = bed.cluster.client().with_key(&bed.keys[3]);
    let open = narrow.open(PATH, &chat("Long", 5000, true)).await;
    eventually(PATIENCE, "it runs", || async { double.stats().running == 1 }).await;
    let refused = bed.ask(Method::POST, PATH, 3, plain(true)).await;
    refused.assert_error(429, "concurrency_limit_exceeded");
    assert!(refused.number("retry-after") >= 1);
    open.hang_up(false);
    bed.cluster.assert_idle().await;

    for stream in [true, false] {
        double.set_fault("reset".parse().unwrap());
        bed.ask(Method::POST, PATH, 0, plain(stream))
            .await
            .assert_error(502, "upstream_unavailable");
    }
    double.set_fault("silent".parse().unwrap());
    bed.ask(Method::POST, PATH, 0, plain(false)).await.assert_error(504, "timeout");
    double.clear_faults();
    bed.cluster.assert_idle().await;
    bed.cluster.stop().await;
}

#[tokio::test]
async fn bodies_that_do_not_come_and_bodies_too_many_are_refused_in_the_same_shape() {
    let bed = Bed::start().await;
    let client = bed.cluster.client().with_key(&bed.keys[0]);
    let large = chat(&"x".repeat(6_000), 1, false);
    let stalled = client.open_half(PATH, &large).await;
    // It holds the memory for bodies until it is given up.
    let refused = Mutex::new(None);
    let is_refused = || async {
        let second = client.chat(large.clone()).await;
        let is_refused = second.status != 200;
        *refused.lock() = is_refused.then_some(second);
        is_refused
    };
    eventually(PATIENCE, "there is no room for the second", is_refused).await;
    let second = refused.into_inner().expect("it was refused");
    second.assert_error(503, "overloaded");
    assert!(second.number("retry-after") >= 1);
    let seen = stalled.read_to_end().await;
    let (head, body) = seen.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 408") && head.contains("x-request-id: "), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["error"]["code"], "request_timeout");
    assert_eq!(client.chat(large).await.status, 200, "there is room again");
    bed.cluster.assert_idle().await;
    bed.cluster.stop().await;
}
