//! Backends that come, are drained and go while telemetry runs.

use config_store::typed::{self, Signature, Stored};
use config_store::{ConfigStore, MemoryStore, Timestamp};
use domain::desired::{Backend, LifecycleWish};
use domain::{BackendState, Fleet};

use super::kit::{Engine, Script, Watch, page};

fn by() -> Signature {
    Signature { author: "test".into(), at: Timestamp(0) }
}

async fn commit(store: &MemoryStore, change: config_store::Change) -> Option<Stored<Backend>> {
    let entry = store.commit(change).await.expect("committed");
    typed::read(&entry).expect("its own form")
}

async fn create(watch: &Watch, id: &str, engine: &Engine) -> Stored<Backend> {
    let url = format!("http://{}", engine.address);
    let backend = serde_json::json!({ "id": id, "url": url });
    let backend: Backend = serde_json::from_value(backend).expect("its own form");
    let change = typed::create(&backend, by()).expect("valid");
    commit(&watch.store, change).await.expect("it is there")
}

async fn wish(watch: &Watch, stored: &Stored<Backend>, wish: LifecycleWish) -> Stored<Backend> {
    let backend = Backend { wish, ..stored.document.clone() };
    let change = typed::replace(stored, &backend, by()).expect("valid");
    commit(&watch.store, change).await.expect("it is there")
}

async fn delete(watch: &Watch, stored: &Stored<Backend>) {
    assert!(commit(&watch.store, typed::delete(stored, by()).expect("valid")).await.is_none());
}

async fn gone(watch: &mut Watch, id: &str) {
    let absent = |f: &std::sync::Arc<Fleet>| f.backend(&id.into()).is_none();
    let wait = watch.fleet.wait_for(absent);
    tokio::time::timeout(std::time::Duration::from_secs(20), wait)
        .await
        .expect("it goes")
        .expect("telemetry runs");
}

#[tokio::test]
async fn backends_of_the_store_come_and_go_beside_those_of_the_file() {
    let (file, engine) =
        (Engine::start(Script::default()).await, Engine::start(Script::default()).await);
    let mut watch = Watch::start(vec![file.backend("file")]);
    let kept = watch.until("file", "ready", |b| b.state == BackendState::Ready).await;

    let stored = create(&watch, "a", &engine).await;
    let first = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    delete(&watch, &stored).await;
    gone(&mut watch, "a").await;
    assert!(!watch.metrics().contains("backend=\"a\""), "its series went with it");
    let asked = engine.requests();
    watch.asked(&file, 20).await;
    assert_eq!(engine.requests(), asked, "nobody asks it any more");

    create(&watch, "a", &engine).await;
    let again = watch.until("a", "ready again", |b| b.state == BackendState::Ready).await;
    assert!(again.incarnation > first.incarnation, "it is another one");
    let after = watch.now("file");
    assert_eq!((after.incarnation, after.state), (kept.incarnation, kept.state));
    let metrics = watch.metrics();
    assert!(metrics.contains("prober_restarts_total 0"), "{metrics}");
    assert!(metrics.contains("backend_state{backend=\"a\",state=\"ready\"} 1"), "{metrics}");
    watch.stop().await;
}

#[tokio::test]
async fn a_wish_shows_at_once_and_is_taken_back_without_losing_what_is_known() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(Vec::new());
    let stored = create(&watch, "a", &engine).await;
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;

    let stored = wish(&watch, &stored, LifecycleWish::Draining).await;
    let draining = watch.until("a", "draining", |b| b.state == BackendState::Draining).await;
    assert_eq!(draining.models, ready.models, "what it has goes on");
    let metrics = watch.metrics();
    assert!(metrics.contains("backend_state{backend=\"a\",state=\"draining\"} 1"), "{metrics}");
    assert!(metrics.contains("backend_state{backend=\"a\",state=\"ready\"} 0"), "{metrics}");

    let stored = wish(&watch, &stored, LifecycleWish::Maintenance).await;
    watch.until("a", "maintenance", |b| b.state == BackendState::Maintenance).await;
    wish(&watch, &stored, LifecycleWish::Ready).await;
    let back = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    assert_eq!(back.incarnation, ready.incarnation, "the engine went on");
    watch.stop().await;
}

#[tokio::test]
async fn a_backend_of_the_file_is_drained_and_comes_back_with_what_is_known() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    for (wish, shown) in [
        (LifecycleWish::Draining, BackendState::Draining),
        (LifecycleWish::Maintenance, BackendState::Maintenance),
        (LifecycleWish::Ready, BackendState::Ready),
    ] {
        watch.file.want(&"a".into(), wish);
        let now = watch.until("a", "as it is wanted", |b| b.state == shown).await;
        assert_eq!((now.incarnation, &now.models), (ready.incarnation, &ready.models));
    }
    watch.stop().await;
}

#[tokio::test]
async fn an_engine_exchanged_during_maintenance_comes_back_as_another_life() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(Vec::new());
    let stored = create(&watch, "a", &engine).await;
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    let stored = wish(&watch, &stored, LifecycleWish::Maintenance).await;
    watch.until("a", "maintenance", |b| b.state == BackendState::Maintenance).await;
    engine.change(|s| s.health = 503);
    watch.asked(&engine, 10).await;
    engine.change(|s| {
        s.health = 200;
        s.metrics.1 = page(900.0, 0, 0, 0);
    });
    let later = watch.until("a", "a new life", |b| b.incarnation > ready.incarnation).await;
    assert_eq!(later.state, BackendState::Maintenance, "until it is wanted again");
    wish(&watch, &stored, LifecycleWish::Ready).await;
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    watch.stop().await;
}

#[tokio::test]
async fn another_address_is_another_backend_under_the_same_name() {
    let (old, new) =
        (Engine::start(Script::default()).await, Engine::start(Script::default()).await);
    let mut watch = Watch::start(Vec::new());
    let stored = create(&watch, "a", &old).await;
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    let url = format!("http://{}", new.address);
    let backend = Backend { url: url.clone(), ..stored.document.clone() };
    commit(&watch.store, typed::replace(&stored, &backend, by()).expect("valid")).await;
    let moved = |b: &domain::Backend| b.state == BackendState::Ready && *b.url == *url;
    let moved = watch.until("a", "ready elsewhere", moved).await;
    assert!(moved.incarnation > ready.incarnation);
    watch.stop().await;
}

/// What a start of telemetry says of an engine that went on meanwhile, and of one that did not.
#[tokio::test]
async fn a_restarted_telemetry_names_the_same_life_of_an_engine_that_went_on() {
    let engine = Engine::start(Script::default()).await;
    let ready = |b: &domain::Backend| b.state == BackendState::Ready;
    let mut lives = Vec::new();
    for start in [100.0, 100.0, 200.0] {
        engine.change(|s| s.metrics.1 = page(start, 1000, 0, 0));
        let mut watch = Watch::start(vec![engine.backend("a")]);
        lives.push(watch.until("a", "ready", ready).await.incarnation);
        watch.stop().await;
    }
    assert_eq!(lives[0], lives[1]);
    assert!(lives[2] > lives[1]);
}

#[tokio::test]
async fn the_fleet_is_whole_once_every_backend_was_probed() {
    let (well, loading) = (
        Engine::start(Script::default()).await,
        Engine::start(Script { health: 503, ..Script::default() }).await,
    );
    let mut watch = Watch::start(vec![well.backend("well"), loading.backend("loading")]);
    let whole = watch.whole.wait_for(|whole| *whole);
    tokio::time::timeout(std::time::Duration::from_secs(20), whole)
        .await
        .expect("it comes to that")
        .expect("telemetry runs");
    assert_eq!(watch.now("well").state, BackendState::Ready);
    assert_eq!(watch.now("loading").state, BackendState::Joining);
    watch.stop().await;
}
