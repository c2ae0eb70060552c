//! Another config file while telemetry runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{Backend, BackendState, Fleet};
use settings::{HumanDuration, Redacted};

use super::kit::{Engine, Script, Watch, quick};
use crate::{Config, RawBackend, RawConfig};

fn config(raw: RawConfig, backends: Vec<RawBackend>) -> Config {
    Config::new(raw, backends).expect("valid")
}

fn is_ready(backend: &Backend) -> bool {
    backend.state == BackendState::Ready
}

async fn gone(watch: &mut Watch, id: &str) {
    let absent = |f: &Arc<Fleet>| f.backend(&id.into()).is_none();
    let wait = watch.fleet.wait_for(absent);
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it goes").expect("alive");
}

async fn engine() -> Engine {
    Engine::start(Script::default()).await
}

#[tokio::test]
async fn a_backend_that_left_the_file_is_asked_no_more_and_one_that_stays_keeps_its_life() {
    let (stays, leaves, comes) = (engine().await, engine().await, engine().await);
    let mut watch = Watch::start(vec![stays.backend("stays"), leaves.backend("leaves")]);
    let kept = watch.until("stays", "ready", is_ready).await;
    watch.until("leaves", "ready", is_ready).await;
    let next = vec![stays.backend("stays"), comes.backend("comes")];
    watch.reload.apply(config(quick(), next));
    watch.until("comes", "ready", is_ready).await;
    gone(&mut watch, "leaves").await;
    assert!(!watch.metrics().contains("backend=\"leaves\""), "its series went with it");
    let asked = leaves.requests();
    watch.asked(&comes, 20).await;
    assert_eq!(leaves.requests(), asked);
    let after = watch.now("stays");
    assert_eq!((after.incarnation, after.state), (kept.incarnation, kept.state));
    watch.stop().await;
}

#[tokio::test]
async fn a_new_interval_and_a_new_key_are_used_at_once_and_the_life_goes_on() {
    let engine = engine().await;
    let keyed = |key: &str| {
        let keys = HashMap::from([("gpu".to_owned(), Redacted::new(key.to_owned()))]);
        let backend = RawBackend { credential: Some("gpu".to_owned()), ..engine.backend("a") };
        let slow = HumanDuration::from_secs(3600);
        let raw = RawConfig { metrics_interval: slow, probe_interval: slow, ..quick() };
        (config(raw, vec![backend.clone()]), config(quick(), vec![backend]), keys)
    };
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.until("a", "ready", is_ready).await;
    let (slow, quick, keys) = keyed("one");
    watch.reload.apply(slow.with_credentials(&keys).expect("valid"));
    // It is another backend with its key's name; from then on it is asked once an hour.
    let first = watch.until("a", "keyed", |b| b.credential.is_some()).await;
    watch.reload.apply(quick.with_credentials(&keys).expect("valid"));
    let first =
        watch.until("a", "ready", |b| is_ready(b) && b.incarnation >= first.incarnation).await;
    watch.asked(&engine, 10).await;
    assert_eq!(engine.authorization().as_deref(), Some("Bearer one"));
    let (_, quick, keys) = keyed("two");
    watch.reload.apply(quick.with_credentials(&keys).expect("valid"));
    let seen = async {
        while engine.authorization().as_deref() != Some("Bearer two") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.expect("the new key is sent");
    watch.asked(&engine, 10).await;
    let after = watch.now("a");
    assert_eq!((after.incarnation, after.state), (first.incarnation, BackendState::Ready));
    watch.stop().await;
}
