//! Keys, limits and credentials.

use std::collections::HashMap;

use domain::ErrorCode;
use settings::Redacted;

use crate::config::RawKey;
use crate::testing::*;
use credentials::GeneratedKey;

pub(super) fn stored(key: &GeneratedKey) -> RawKey {
    let lines = key.config_lines();
    let value = |name: &str| {
        let line = lines.lines().find(|l| l.starts_with(name)).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    RawKey { id: value("id"), tenant: value("tenant"), sha256: value("sha256") }
}

async fn keyed(engine: &Engine, change: impl FnOnce(&mut crate::RawTenant)) -> (Bed, String) {
    let key = GeneratedKey::generate("acme").unwrap();
    let setup = Setup {
        tenants: vec![tenant("acme", change)],
        keys: vec![stored(&key)],
        credentials: HashMap::from([(
            "key-of-e".to_owned(),
            Redacted::new("engine-key".to_owned()),
        )]),
        ..Setup::default()
    };
    let bed = setup.start(&[engine]).await;
    (bed, format!("authorization: Bearer {}\r\n", key.secret_text()))
}

async fn engine() -> Engine {
    Engine::start("e", vec![events(&[&token("a"), DONE])]).await
}

#[tokio::test]
async fn without_a_valid_key_every_refusal_looks_alike() {
    let engine = engine().await;
    let (bed, key) = keyed(&engine, |_| {}).await;
    let cases = [
        String::new(),
        "authorization: Bearer sk-wp-0000-1111\r\n".to_owned(),
        "authorization: Bearer \r\n".to_owned(),
        "authorization: nonsense\r\n".to_owned(),
        "x-api-key: x\r\n".to_owned(),
        format!("{key}{key}"),
        format!("authorization: Bearer {}\r\n", "a".repeat(50_000)),
        key.replace("\r\n", "x\r\n"),
    ];
    let mut bodies = Vec::new();
    for headers in cases {
        let reply = bed.client.post("/v1/chat/completions", &headers, STREAM).await;
        assert_error(&reply, ErrorCode::InvalidApiKey);
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        bodies.push(reply.text());
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1);
    assert_error(&bed.client.get("/v1/models").await, ErrorCode::InvalidApiKey);
    assert!(engine.requests().is_empty());
    bed.assert_metric(r#"warmpath_edge_rejected_total{reason="invalid_api_key"} 9"#);
}

#[tokio::test]
async fn a_clients_credentials_never_reach_an_engine_and_the_engines_own_do() {
    let engine = engine().await;
    let (bed, key) = keyed(&engine, |_| {}).await;
    let headers = format!("{key}x-api-key: other\r\ncookie: a=b\r\nx-vllm-priority: -1\r\n");
    let reply = bed.client.post("/v1/chat/completions", &headers, STREAM).await;
    assert_eq!(reply.status, 200);
    let sent = &engine.requests()[0];
    assert_eq!(sent.header("authorization"), Some("Bearer engine-key"));
    for name in ["x-api-key", "cookie", "x-vllm-priority"] {
        assert_eq!(sent.header(name), None, "{name}");
    }
    assert_eq!(bed.router.routes()[0].tenant.as_str(), "acme");
}

fn unauthorized() -> Vec<Step> {
    vec![answer("401 Unauthorized", "", r#"{"error":{"message":"Unauthorized"}}"#)]
}

#[tokio::test]
async fn an_engine_that_wants_a_key_is_passed_over_and_its_refusal_is_no_clients_business() {
    let picky = Engine::start("picky", vec![unauthorized(), unauthorized()]).await;
    let other = engine().await;
    let bed = Bed::start(&[&picky, &other]).await;
    bed.assert_metric("warmpath_edge_backends_without_key 2");
    assert_eq!(bed.client.post("/v1/chat/completions", "", STREAM).await.status, 200);
    assert_eq!((picky.requests().len(), other.requests().len()), (1, 1));
    bed.assert_metric("warmpath_edge_engine_unauthorized_total 1");
    bed.assert_metric(r#"warmpath_edge_retries_total{class="back_pressure"} 1"#);

    let bed = Bed::start(&[&picky]).await;
    let reply = bed.client.post("/v1/chat/completions", "", STREAM).await;
    assert_error(&reply, ErrorCode::UpstreamUnavailable);
    assert!(reply.text().contains("the gateway's own key"), "{}", reply.text());
    assert_eq!(reply.header("www-authenticate"), None);
}

#[tokio::test]
async fn a_rate_is_told_with_every_answer_and_refuses_with_a_time_to_come_back() {
    let engine = engine().await;
    let (bed, key) = keyed(&engine, |t| t.requests_per_minute = Some(2)).await;
    for left in ["1", "0"] {
        let reply = bed.client.post("/v1/chat/completions", &key, STREAM).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some(left));
        assert!(reply.header("x-ratelimit-reset-requests").unwrap().ends_with('s'));
    }
    let reply = bed.client.post("/v1/chat/completions", &key, STREAM).await;
    assert_error(&reply, ErrorCode::RateLimitExceeded);
    let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds));
    assert!(reply.header("retry-after-ms").unwrap().parse::<u64>().unwrap() <= 30_000);
    assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some("0"));
    assert_eq!(engine.requests().len(), 2);
}

#[tokio::test]
async fn a_request_refused_for_concurrency_costs_nothing_of_the_rate() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let (bed, key) = keyed(&engine, |t| {
        t.max_concurrency = Some(1);
        t.requests_per_minute = Some(2);
    })
    .await;
    let open = bed.client.send("POST", "/v1/chat/completions", &key, STREAM).await;
    engine.await_requests(1).await;
    for _ in 0..5 {
        let reply = bed.client.post("/v1/chat/completions", &key, STREAM).await;
        assert_error(&reply, ErrorCode::ConcurrencyLimitExceeded);
    }
    drop(open);
    bed.assert_idle().await;
    let _open = bed.client.send("POST", "/v1/chat/completions", &key, STREAM).await;
    engine.await_requests(2).await;
}

#[tokio::test]
async fn a_tenant_uses_and_sees_only_its_models() {
    let engine = engine().await;
    let (bed, key) = keyed(&engine, |t| t.models = Some(vec!["org/m".to_owned()])).await;
    let reply = bed.client.post("/v1/chat/completions", &key, STREAM).await;
    assert_error(&reply, ErrorCode::ModelAccessDenied);
    let allowed = STREAM.replace(r#""model":"m""#, r#""model":"org/m""#);
    assert_eq!(bed.client.post("/v1/chat/completions", &key, &allowed).await.status, 200);
    let list = bed.client.request("GET", "/v1/models", &key, "").await.text();
    assert!(list.contains("org/m") && !list.contains(r#""id":"m""#), "{list}");
    let hidden = bed.client.request("GET", "/v1/models/m", &key, "").await;
    assert_error(&hidden, ErrorCode::ModelNotFound);
}

#[tokio::test]
async fn a_request_is_one_log_line_without_content_or_credentials() {
    let log = Log::start();
    let answer = token("unheard-of");
    let engine = Engine::start("e", vec![events(&[&answer, USAGE, DONE])]).await;
    let (bed, key) = keyed(&engine, |_| {}).await;
    let body = STREAM.replace("hi", "tell-nobody");
    let headers = format!("{key}x-request-id: mine\r\nx-other: hush\r\n");
    assert_eq!(bed.client.post("/v1/chat/completions", &headers, &body).await.status, 200);
    bed.assert_idle().await;
    let text = log.text();
    let secret = key.trim_end().rsplit('-').next().unwrap();
    for hidden in ["tell-nobody", "unheard-of", secret, "engine-key", "hush"] {
        assert!(!text.contains(hidden), "{hidden} is in:\n{text}");
    }
    let lines = log.requests();
    assert_eq!(lines.len(), 1, "{text}");
    let fields = &lines[0];
    let expected = [
        ("request.client_id", "mine"),
        ("tenant.id", "acme"),
        ("model", "m"),
        ("route", "chat"),
        ("backend.id", "e"),
        ("outcome", "ok"),
    ];
    for (name, value) in expected {
        assert_eq!(fields[name], value, "{name}");
    }
    assert_eq!((&fields["status"], &fields["attempts"]), (&200.into(), &1.into()));
    assert_eq!((&fields["prompt_tokens"], &fields["cached_tokens"]), (&9.into(), &4.into()));
    assert_eq!(fields["predicted_cached_tokens"], 32);
}
