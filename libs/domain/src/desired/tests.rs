use std::net::IpAddr;

use serde_json::{Value, json};

use super::*;

/// One document of each kind as it is stored, all fields set, and one more that is not known.
fn stored() -> Vec<(&'static str, Value)> {
    let hex = "0f".repeat(32);
    vec![
        (
            "backends",
            json!({"id": "gpu-0", "url": "http://10.0.0.7:8000", "engine": "vllm",
                "credential": "engines", "wish": "draining", "weight": 2,
                "announced": {"token": "rack-1", "withdrawn": true}}),
        ),
        ("models", json!({"id": "meta/llama", "folder": "/models/llama", "aliases": ["l"]})),
        (
            "tenants",
            json!({"id": "acme", "models": ["meta/llama"], "debug_headers": true,
                "isolation": {"salt": "env"}}),
        ),
        (
            "limits",
            json!({"tenant": "acme", "requests_per_minute": 60, "max_concurrency": 4,
                "tokens_per_minute": 1000}),
        ),
        ("keys", json!({"id": "67e8", "tenant": "acme", "sha256": hex, "expires_at_ms": 5})),
        (
            "join-tokens",
            json!({"id": "rack-1", "public_key": hex, "model": "meta/llama",
                "addresses": ["10.0.0.0/8", "fd00::/8"], "expires_at_ms": 9, "note": "x"}),
        ),
    ]
}

fn written_again<D: Document>(value: &Value) -> Value {
    let document: D = serde_json::from_value(value.clone()).unwrap();
    document.validate().unwrap();
    serde_json::to_value(document).unwrap()
}

#[test]
fn fields_of_later_versions_are_kept() {
    for (kind, value) in stored() {
        let again = match kind {
            Backend::KIND => written_again::<Backend>(&value),
            Model::KIND => written_again::<Model>(&value),
            Tenant::KIND => written_again::<Tenant>(&value),
            Limits::KIND => written_again::<Limits>(&value),
            ApiKey::KIND => written_again::<ApiKey>(&value),
            JoinToken::KIND => written_again::<JoinToken>(&value),
            other => panic!("no document of kind {other}"),
        };
        assert_eq!(again, value, "{kind}");
    }
}

#[test]
fn fields_with_a_default_may_be_absent() {
    let backend = json!({"id": "gpu-0", "url": "http://gpu-0:8000"});
    let backend: Backend = serde_json::from_value(backend).unwrap();
    assert_eq!((backend.wish, backend.engine), (LifecycleWish::Ready, None));
    let tenant: Tenant = serde_json::from_value(json!({"id": "acme"})).unwrap();
    assert_eq!((tenant.models, tenant.debug_headers), (None, false));
}

/// The field that `validate` objects to when `field` of a stored document is `value`.
fn objection<D: Document>(field: &str, value: Value) -> &'static str {
    let (_, mut document) = stored().into_iter().find(|(kind, _)| *kind == D::KIND).unwrap();
    document[field] = value;
    let document: D = serde_json::from_value(document).unwrap();
    document.validate().unwrap_err().field
}

#[test]
fn what_must_not_be_stored_is_named() {
    for id in ["", "a b", "a\n", "é", &"a".repeat(129)] {
        assert_eq!(objection::<Backend>("id", json!(id)), "id");
        assert_eq!(objection::<Tenant>("id", json!(id)), "id");
        assert_eq!(objection::<ApiKey>("tenant", json!(id)), "tenant");
        assert_eq!(objection::<Limits>("tenant", json!(id)), "tenant");
    }
    for url in
        ["", "gpu-0:8000", "ftp://a:1", "http://", "http://u:p@a:1", "http://a:1/v1", "http://a b"]
    {
        assert_eq!(objection::<Backend>("url", json!(url)), "url", "{url}");
    }
    assert_eq!(objection::<Backend>("credential", json!("")), "credential");
    for hex in ["", "0f", &"0F".repeat(32), &"zz".repeat(32)] {
        assert_eq!(objection::<ApiKey>("sha256", json!(hex)), "sha256");
        assert_eq!(objection::<JoinToken>("public_key", json!(hex)), "public_key");
    }
    assert_eq!(objection::<Model>("id", json!("a\tb")), "id");
    assert_eq!(objection::<Model>("folder", json!("")), "folder");
    assert_eq!(objection::<Tenant>("models", json!([""])), "models");
    let ranges = vec!["10.0.0.0/8"; 65];
    assert_eq!(objection::<JoinToken>("addresses", json!(ranges)), "addresses");
}

#[test]
fn a_wish_that_is_not_known_is_an_error() {
    let backend = json!({"id": "a", "url": "http://a:1", "wish": "dancing"});
    assert!(serde_json::from_value::<Backend>(backend).is_err());
}

fn range(text: &str) -> Option<AddressRange> {
    text.parse().ok()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_range_holds_the_addresses_that_begin_alike() {
    let ten = range("10.0.0.0/8").unwrap();
    assert!(ten.contains(address("10.255.0.1")) && !ten.contains(address("11.0.0.0")));
    assert!(ten.contains(address("::ffff:10.0.0.1")) && !ten.contains(address("fd00::1")));
    let all = range("0.0.0.0/0").unwrap();
    assert!(all.contains(address("255.255.255.255")) && !all.contains(address("::1")));
    let one = range("fd00::1/128").unwrap();
    assert!(one.contains(address("fd00::1")) && !one.contains(address("fd00::2")));
    let every = range("::/0").unwrap();
    assert!(every.contains(address("ff::")) && !every.contains(address("1.2.3.4")));
}

#[test]
fn ranges_of_another_form_are_refused() {
    let wrong =
        ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.1/8", "::1/129", "a/8", "::/-1"];
    for text in wrong.into_iter().chain(["fd00::1/8", "::ffff:10.0.0.0/104", "10.0.0.0/8/8"]) {
        assert_eq!(range(text), None, "{text}");
    }
    assert_eq!(range("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
}

#[test]
fn a_token_without_ranges_covers_every_address() {
    let (_, mut document) = stored().pop().unwrap();
    let token: JoinToken = serde_json::from_value(document.clone()).unwrap();
    assert!(token.covers(address("10.1.1.1")) && !token.covers(address("192.168.0.1")));
    document["addresses"] = json!([]);
    let token: JoinToken = serde_json::from_value(document).unwrap();
    assert!(token.covers(address("192.168.0.1")));
}
