//! Documents come, change and go.

use std::sync::Arc;

use config_store::{ConfigStore, Revision, Scope, typed};
use domain::BackendState;
use domain::desired::{Announced, Backend, LifecycleWish, Tenant};
use serde_json::{Value, json};

use super::kit::{Kit, seen};
use crate::config::BackendConfig;
use crate::{Config, FileBackends, RawBackend, RawConfig};

#[tokio::test]
async fn a_backend_is_added_drained_maintained_readied_and_removed() {
    let kit = Kit::new();
    let added = kit.add("/backends/gpu-0", json!({"url": "http://10.0.0.7:8000"})).await;
    assert_eq!(added.is(201)["wish"], "ready");
    assert_eq!((added.etag(), &added.body["source"]), ("\"1\"", &"operator".into()));
    for (verb, wish) in [("drain", "draining"), ("maintenance", "maintenance"), ("ready", "ready")]
    {
        let answer = kit.post(&format!("/backends/gpu-0/{verb}"), Value::Null).await;
        assert_eq!(answer.is(200)["wish"], wish);
        let again = kit.get("/backends/gpu-0").await;
        assert_eq!((again.is(200), again.etag()), (&answer.body, answer.etag()));
    }
    assert_eq!(kit.store.revision(), Revision(4));
    kit.delete("/backends/gpu-0").await.is(204);
    kit.get("/backends/gpu-0").await.is_problem(404, "not_found");
    kit.delete("/backends/gpu-0").await.is_problem(404, "not_found");
}

#[tokio::test]
async fn what_would_change_nothing_is_not_written() {
    let kit = Kit::new();
    let spec = json!({"url": "http://a:1", "engine": "vllm"});
    kit.add("/backends/a", spec.clone()).await.is(201);
    let again = kit.ask("PUT /backends/a", ("if-match", "*"), spec).await;
    assert_eq!((again.is(200)["revision"].as_u64(), kit.store.revision()), (Some(1), Revision(1)));
    kit.post("/backends/a/ready", Value::Null).await.is(200);
    assert_eq!(kit.store.revision(), Revision(1));
}

#[tokio::test]
async fn of_two_that_change_one_state_the_second_is_told() {
    let kit = Kit::new();
    let tag = kit.add("/tenants/acme", json!({})).await.etag().to_owned();
    let first = kit.ask("PUT /tenants/acme", ("if-match", &tag), json!({"debug_headers": true}));
    let first = first.await;
    first.is(200);
    let second = kit.ask("PUT /tenants/acme", ("if-match", &tag), json!({"models": ["m"]})).await;
    assert_eq!(second.is_problem(412, "precondition_failed")["revision"], 2);
    let late = kit.ask("DELETE /tenants/acme", ("if-match", &tag), Value::Null).await;
    late.is_problem(412, "precondition_failed");
    let list = format!("\"77\", {}", first.etag());
    kit.ask("DELETE /tenants/acme", ("if-match", &list), Value::Null).await.is(204);
}

#[tokio::test]
async fn a_put_tells_what_it_replaces() {
    let kit = Kit::new();
    let spec = json!({"folder": "builtin"});
    let blind = kit.ask("PUT /models/m", ("", ""), spec.clone()).await;
    blind.is_problem(428, "precondition_required");
    let absent = kit.ask("PUT /models/m", ("if-match", "*"), spec.clone()).await;
    absent.is_problem(412, "precondition_failed");
    kit.add("/models/m", spec.clone()).await.is(201);
    let taken = kit.add("/models/m", spec).await;
    assert_eq!(taken.is_problem(412, "precondition_failed")["revision"], 1);
}

#[tokio::test]
async fn names_of_models_may_hold_slashes() {
    let kit = Kit::new();
    kit.add("/models/meta%2Fllama%203", json!({"folder": "/m"})).await.is(201);
    assert_eq!(kit.get("/models/meta%2Fllama%203").await.is(200)["id"], "meta/llama 3");
    assert_eq!(kit.get("/models").await.is(200)["items"][0]["id"], "meta/llama 3");
}

#[tokio::test]
async fn a_tenant_goes_with_its_limits_and_not_before_its_keys() {
    let kit = Kit::new();
    let limits = json!({"requests_per_minute": 60, "max_concurrency": 4});
    let early = kit.add("/tenants/acme/limits", limits.clone()).await;
    early.is_problem(404, "not_found");
    kit.add("/tenants/acme", json!({})).await.is(201);
    kit.add("/tenants/acme/limits", limits).await.is(201);
    let tenant = kit.get("/tenants/acme").await;
    assert_eq!(tenant.is(200)["limits"]["requests_per_minute"], 60);
    let key = kit.post("/keys", json!({"tenant": "acme"})).await;
    kit.delete("/tenants/acme").await.is_problem(409, "in_use");
    let id = key.is(201)["id"].as_str().unwrap().to_owned();
    kit.delete(&format!("/keys/{id}")).await.is(204);
    kit.delete("/tenants/acme").await.is(204);
    kit.get("/tenants/acme/limits").await.is_problem(404, "not_found");
    let left = kit.store.list(Scope::All).await.unwrap().entries;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn backends_are_shown_with_what_was_seen_and_those_of_the_config_file_too() {
    let kit = Kit::seeing(vec![seen("a", BackendState::Ready), seen("b", BackendState::Down)]);
    kit.add("/backends/a", json!({"url": "http://a:1"})).await.is(201);
    kit.add("/backends/c", json!({"url": "http://c:1"})).await.is(201);
    let list = kit.get("/backends").await;
    let items = list.is(200)["items"].as_array().unwrap();
    let row = |at: usize| {
        let item: &Value = &items[at];
        (item["id"].as_str(), item["source"].as_str(), item["observed"]["state"].as_str())
    };
    assert_eq!(row(0), (Some("a"), Some("operator"), Some("ready")));
    assert_eq!(row(1), (Some("b"), Some("config"), Some("down")));
    assert_eq!(row(2), (Some("c"), Some("operator"), None));
    let of_config = kit.get("/backends/b").await;
    assert_eq!(of_config.is(200)["observed"]["incarnation"], 4);
    assert!(!of_config.headers.contains_key("etag"));
    kit.post("/backends/b/drain", Value::Null).await.is_problem(404, "not_found");
}

#[tokio::test]
async fn an_operator_overrules_what_silence_did_to_a_backend() {
    let kit = Kit::new();
    let announced = Announced { token: "rack-1".to_owned(), withdrawn: true };
    let backend = Backend {
        id: "a".into(),
        url: "http://a:1".to_owned(),
        engine: None,
        credential: None,
        wish: LifecycleWish::Draining,
        announced: Some(announced),
        unknown: Default::default(),
    };
    let by = typed::Signature { author: "announce".into(), at: config_store::Timestamp(1) };
    kit.store.commit(typed::create(&backend, by).unwrap()).await.unwrap();
    let view = kit.post("/backends/a/maintenance", Value::Null).await;
    let view = view.is(200);
    assert_eq!((&view["source"], &view["announced_by"]), (&"announced".into(), &"rack-1".into()));
    let key = typed::key::<Backend>("a").unwrap();
    let entry = kit.store.get(&key).await.unwrap().unwrap();
    let stored = typed::read::<Backend>(&entry).unwrap().unwrap().document;
    assert!(!stored.announced.unwrap().withdrawn);
}

#[tokio::test]
async fn a_tenant_that_is_made_again_has_no_limits_that_a_crash_left_behind() {
    let kit = Kit::new();
    kit.add("/tenants/acme", json!({})).await.is(201);
    kit.add("/tenants/acme/limits", json!({"max_concurrency": 1})).await.is(201);
    // A removal that did not come to its second half.
    let entry = kit.store.get(&typed::key::<Tenant>("acme").unwrap()).await.unwrap().unwrap();
    let tenant = typed::read::<Tenant>(&entry).unwrap().unwrap();
    let by = typed::Signature { author: "ops".into(), at: config_store::Timestamp(1) };
    kit.store.commit(typed::delete(&tenant, by).unwrap()).await.unwrap();
    let again = kit.add("/tenants/acme", json!({})).await;
    assert_eq!(again.is(201).get("limits"), None);
    kit.get("/tenants/acme/limits").await.is_problem(404, "not_found");
}

#[tokio::test]
async fn fields_of_a_later_version_outlive_a_put() {
    let kit = Kit::new();
    let tenant: Tenant = serde_json::from_value(json!({"id": "acme", "shade": "blue"})).unwrap();
    let by = typed::Signature { author: "later".into(), at: config_store::Timestamp(1) };
    kit.store.commit(typed::create(&tenant, by).unwrap()).await.unwrap();
    let put = kit.ask("PUT /tenants/acme", ("if-match", "*"), json!({"debug_headers": true}));
    put.await.is(200);
    let entry = kit.store.get(&typed::key::<Tenant>("acme").unwrap()).await.unwrap().unwrap();
    let stored = typed::read::<Tenant>(&entry).unwrap().unwrap().document;
    assert_eq!((stored.debug_headers, &stored.unknown["shade"]), (true, &json!("blue")));
}

#[tokio::test]
async fn long_lists_come_in_pages() {
    let kit = Kit::new();
    for i in 0..7 {
        kit.add(&format!("/tenants/t{i}"), json!({})).await.is(201);
    }
    let (mut seen, mut path) = (Vec::new(), "/tenants?limit=3".to_owned());
    loop {
        let page = kit.get(&path).await;
        let items = page.is(200)["items"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        let Some(next) = page.body["next"].as_str() else { break };
        path = format!("/tenants?limit=3&after={next}");
    }
    assert_eq!(seen, ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]);
}

#[tokio::test]
async fn changes_at_the_same_time_are_all_made() {
    let kit = Kit::new();
    kit.add("/backends/a", json!({"url": "http://a:1"})).await.is(201);
    let verbs = ["drain", "ready", "maintenance", "drain"];
    let paths = verbs.map(|verb| format!("/backends/a/{verb}"));
    let all = paths.iter().map(async |path| kit.post(path, Value::Null).await.is(200).clone());
    let answers = futures_util::future::join_all(all).await;
    assert!(answers.iter().all(|answer| answer["id"] == "a"));
}

/// A config file with one engine, `e0`.
fn file(url: &str) -> Vec<Arc<BackendConfig>> {
    let entry = RawBackend {
        id: "e0".into(),
        url: url.into(),
        engine: None,
        api_key: None,
        credential: None,
    };
    Config::new(RawConfig::default(), vec![entry]).unwrap().backends
}

#[tokio::test]
async fn the_config_files_engines_keep_their_names_and_addresses() {
    let kit =
        Kit::beside(FileBackends::new(&file("http://e0:1")), vec![seen("e0", BackendState::Ready)]);
    let taken = kit.add("/backends/e0", json!({"url": "http://e1:1"})).await;
    assert_eq!(taken.is_problem(409, "taken")["field"], "id");
    let taken = kit.add("/backends/dup", json!({"url": "https://E0:1"})).await;
    assert_eq!(taken.is_problem(409, "taken")["field"], "url");
    let kept = kit.delete("/backends/e0").await;
    let detail = kept.is_problem(409, "taken")["detail"].as_str().unwrap();
    assert!(detail.contains("config file") && detail.contains("SIGHUP"), "{detail}");
    assert_eq!(kit.store.revision(), Revision(0));
    // A document of before the file had it counts for nothing, is not shown, and can be removed.
    let backend: Backend =
        serde_json::from_value(json!({"id": "e0", "url": "http://other:1"})).unwrap();
    let by = typed::Signature { author: "test".into(), at: config_store::Timestamp(1) };
    kit.store.commit(typed::create(&backend, by).unwrap()).await.unwrap();
    let list = kit.get("/backends").await;
    let shown = &list.is(200)["items"][0];
    assert_eq!((&shown["source"], &shown["url"]), (&"config".into(), &"http://e0:1".into()));
    assert_eq!(kit.get("/backends/e0").await.is(200), shown);
    let replaced = kit.ask("PUT /backends/e0", ("if-match", "*"), json!({"url": "http://x:1"}));
    replaced.await.is_problem(409, "taken");
    kit.delete("/backends/e0").await.is(204);
}

#[tokio::test]
async fn what_is_wanted_of_the_config_files_engines_is_no_document() {
    let of_file = FileBackends::new(&file("http://e0:1"));
    let kit = Kit::beside(of_file.clone(), vec![seen("e0", BackendState::Ready)]);
    for (verb, wish) in [("ready", "ready"), ("maintenance", "maintenance"), ("drain", "draining")]
    {
        let answer = kit.post(&format!("/backends/e0/{verb}"), Value::Null).await;
        assert_eq!(
            (&answer.is(200)["wish"], &answer.body["source"]),
            (&wish.into(), &"config".into())
        );
        assert!(!answer.headers.contains_key("etag"));
        assert_eq!(kit.get("/backends/e0").await.is(200)["wish"], wish);
        assert_eq!(kit.get("/backends").await.is(200)["items"][0]["wish"], wish);
    }
    assert_eq!(kit.store.revision(), Revision(0));
    // It stays when the file is read again, and is not another engine's.
    of_file.replace(&file("http://e0:1"));
    assert_eq!(kit.get("/backends/e0").await.is(200)["wish"], "draining");
    of_file.replace(&file("http://e0:2"));
    assert_eq!(kit.get("/backends/e0").await.is(200)["wish"], "ready");
}

#[tokio::test]
async fn an_address_has_one_name() {
    let kit = Kit::new();
    kit.add("/backends/a", json!({"url": "http://host"})).await.is(201);
    let taken = kit.add("/backends/b", json!({"url": "http://HOST:80"})).await;
    let detail = taken.is_problem(409, "taken")["detail"].as_str().unwrap();
    assert!(detail.contains("`a`"), "{detail}");
    kit.ask("PUT /backends/a", ("if-match", "*"), json!({"url": "http://host:80"})).await.is(200);
    kit.delete("/backends/a").await.is(204);
    kit.add("/backends/b", json!({"url": "http://host"})).await.is(201);
}
