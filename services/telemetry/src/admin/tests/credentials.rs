//! Keys and join tokens: shown once, and never again.

use config_store::{ConfigStore, typed};
use credentials::{JoinKey, join, key};
use domain::desired::{ApiKey, JoinToken};
use serde_json::json;

use super::kit::Kit;

#[tokio::test]
async fn a_new_key_is_shown_once_and_its_hash_is_what_is_stored() {
    let kit = Kit::new();
    kit.add("/tenants/acme", json!({})).await.is(201);
    let made = kit.post("/keys", json!({"tenant": "acme"})).await;
    let text = made.is(201)["key"].as_str().unwrap().to_owned();
    let (id, secret) = key::split(&text).unwrap();
    assert_eq!(made.body["id"], id);
    assert_eq!(made.headers["location"], format!("/admin/v1/keys/{id}"));
    assert_eq!(made.headers["cache-control"], "no-store");
    let entry = kit.store.get(&typed::key::<ApiKey>(id).unwrap()).await.unwrap().unwrap();
    let stored = typed::read::<ApiKey>(&entry).unwrap().unwrap().document;
    assert_eq!(stored.sha256, credentials::hex(&key::digest(secret)));
    for path in ["/keys", &format!("/keys/{id}"), "/events", "/keys?tenant=acme"] {
        let shown = kit.get(path).await.is(200).to_string();
        assert!(shown.contains(id), "{path}");
        assert!(!shown.contains(secret) && !shown.contains(&stored.sha256), "{path}");
    }
    assert_eq!(kit.get("/keys?tenant=other").await.is(200)["items"], json!([]));
    kit.delete(&format!("/keys/{id}")).await.is(204);
    kit.get(&format!("/keys/{id}")).await.is_problem(404, "not_found");
}

#[tokio::test]
async fn a_key_needs_a_tenant_that_exists() {
    let kit = Kit::new();
    let answer = kit.post("/keys", json!({"tenant": "nobody"})).await;
    assert_eq!(answer.is_problem(422, "invalid_document")["field"], "tenant");
}

#[tokio::test]
async fn a_join_token_is_shown_once_and_signs_for_its_public_key() {
    let kit = Kit::new();
    let scope = json!({"id": "rack/1", "model": "m", "addresses": ["10.0.0.0/8"],
        "ttl_seconds": 3600});
    let made = kit.post("/join-tokens", scope.clone()).await;
    let text = made.is(201)["token"].as_str().unwrap().to_owned();
    assert_eq!(made.headers["location"], "/admin/v1/join-tokens/rack%2F1");
    let holder = JoinKey::parse(&text).unwrap();
    assert_eq!(holder.id(), "rack/1");
    let entry = kit.store.get(&typed::key::<JoinToken>("rack/1").unwrap()).await.unwrap().unwrap();
    let stored = typed::read::<JoinToken>(&entry).unwrap().unwrap().document;
    assert!(join::verify(&stored.public_key, b"m", &holder.sign(b"m")));
    let seed = text.rsplit_once('-').unwrap().1;
    for path in ["/join-tokens", "/join-tokens/rack%2F1", "/events"] {
        let shown = kit.get(path).await.is(200).to_string();
        assert!(shown.contains("10.0.0.0/8") && !shown.contains(seed), "{path}");
        assert!(!shown.contains(&stored.public_key), "{path}");
    }
    assert_eq!(kit.get("/join-tokens/rack%2F1").await.is(200)["expired"], false);
    kit.post("/join-tokens", scope).await.is_problem(409, "exists");
    kit.delete("/join-tokens/rack%2F1").await.is(204);
}

#[tokio::test]
async fn a_join_token_has_an_end_and_a_name() {
    let kit = Kit::new();
    let named = kit.post("/join-tokens", json!({"ttl_seconds": 60})).await;
    assert_eq!(named.is(201)["id"].as_str().unwrap().len(), 16);
    for odd in [
        json!({}),
        json!({"ttl_seconds": 0}),
        json!({"ttl_seconds": 999_999_999_999u64}),
        json!({"ttl_seconds": 60, "addresses": ["10.0.0.1/8"]}),
        json!({"ttl_seconds": 60, "id": "a b"}),
        json!({"ttl_seconds": 60, "model": ""}),
    ] {
        kit.post("/join-tokens", odd).await.is_problem(422, "invalid_document");
    }
}
