use std::collections::HashMap;

use bytes::Bytes;
use config_store::typed::Signature;
use config_store::{Change, Key, Limits, MemoryStore, Precondition, SchemaVersion, Timestamp};
use settings::Redacted;

use super::*;
use crate::{Config, RawBackend, RawConfig};

fn by() -> Signature {
    Signature { author: "test".into(), at: Timestamp(0) }
}

fn document(id: &str, url: &str) -> Backend {
    let document = serde_json::json!({"id": id, "url": url, "engine": "vllm"});
    serde_json::from_value(document).expect("its own form")
}

fn bed() -> (Arc<MemoryStore>, Registry) {
    let file = RawBackend {
        id: "file".into(),
        url: "http://file:1".into(),
        engine: None,
        api_key: None,
        credential: None,
    };
    let keys = HashMap::from([("gpu".to_owned(), Redacted::new("key".to_owned()))]);
    let config = Config::new(RawConfig::default(), vec![file]).expect("valid");
    let config = config.with_credentials(&keys).expect("valid");
    let store = Arc::new(MemoryStore::new(Limits::default()).expect("a random source"));
    let registry = Registry::new(store.clone(), config.backends, config.credentials);
    (store, registry)
}

async fn create(store: &MemoryStore, backend: &Backend) -> Stored<Backend> {
    let change = typed::create(backend, by()).expect("valid");
    let entry = store.commit(change).await.expect("committed");
    typed::read(&entry).expect("its own form").expect("it is there")
}

fn ids(roster: &Roster) -> Vec<&str> {
    roster.keys().map(BackendId::as_str).collect()
}

#[tokio::test]
async fn the_files_backends_and_the_stores_are_one_roster() {
    let (store, mut registry) = bed();
    assert_eq!(ids(&registry.of_file()), ["file"]);
    let first = registry.read().await.expect("read").expect("nothing was read before");
    assert_eq!(ids(&first), ["file"]);
    assert_eq!(registry.read().await.expect("read"), None, "nothing changed");

    let keyed = Backend { credential: Some("gpu".to_owned()), ..document("b", "https://b:2") };
    let stored = create(&store, &keyed).await;
    let roster = registry.read().await.expect("read").expect("changed");
    assert_eq!(ids(&roster), ["b", "file"]);
    let wanted = &roster[&BackendId::from("b")];
    assert_eq!(wanted.created, stored.created.0);
    assert!(wanted.spec.https);
    assert_eq!(wanted.spec.authorization.as_ref().expect("named"), "Bearer key");

    let drained = Backend { wish: LifecycleWish::Draining, ..stored.document.clone() };
    let entry = store.commit(typed::replace(&stored, &drained, by()).expect("valid")).await;
    let stored: Stored<Backend> =
        typed::read(&entry.expect("committed")).expect("read").expect("there");
    let again = registry.read().await.expect("read").expect("changed");
    assert_eq!(again[&BackendId::from("b")].wish, LifecycleWish::Draining);
    assert_eq!(again[&BackendId::from("b")].created, wanted.created, "it is the same one");

    store.commit(typed::delete(&stored, by()).expect("valid")).await.expect("committed");
    create(&store, &keyed).await;
    let back = registry.read().await.expect("read").expect("changed");
    assert!(back[&BackendId::from("b")].created > wanted.created, "it is another one");
}

#[tokio::test]
async fn a_second_name_for_an_id_or_an_address_counts_for_nothing() {
    let (store, mut registry) = bed();
    create(&store, &document("file", "http://other:1")).await;
    create(&store, &document("z", "http://HOST:80")).await;
    create(&store, &document("a", "http://host")).await;
    create(&store, &document("c", "http://FILE:1")).await;
    let roster = registry.read().await.expect("read").expect("changed");
    assert_eq!(ids(&roster), ["file", "z"], "who was first stays");
    assert_eq!(&*roster[&BackendId::from("file")].spec.url, "http://file:1");
    assert_eq!(registry.refused(), 3);
}

#[tokio::test]
async fn a_document_of_a_later_version_leaves_the_backend_as_it_was() {
    let (store, mut registry) = bed();
    create(&store, &document("a", "http://a:1")).await;
    let before = registry.read().await.expect("read").expect("changed");
    let later = |name: &str, expected| Change {
        key: Key::new(Backend::KIND, name).expect("plain"),
        expected,
        document: Some(config_store::Document {
            schema: SchemaVersion { major: 2, minor: 0 },
            bytes: Bytes::from_static(b"{}"),
        }),
        author: "test".into(),
        at: Timestamp(0),
    };
    store.commit(later("a", Precondition::Any)).await.expect("committed");
    store.commit(later("new", Precondition::Absent)).await.expect("committed");
    let after = registry.read().await.expect("read").expect("changed");
    assert_eq!(after, before);
    assert_eq!(registry.refused(), 2);
}
