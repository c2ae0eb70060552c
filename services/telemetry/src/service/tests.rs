use config_store::{Limits, MemoryStore};
use domain::BackendState;
use lifecycle::Lifecycle;

use super::*;
use crate::tests::kit::{Engine, Script, quick};

#[tokio::test]
async fn a_prober_that_ended_is_started_again_and_goes_on_from_what_was_seen() {
    let engine = Engine::start(Script::default()).await;
    let lifecycle = Lifecycle::new();
    let deps = Deps {
        registry: prometheus::Registry::new(),
        spawner: lifecycle.spawner(),
        models: HashMap::new(),
        store: Arc::new(MemoryStore::new(Limits::default()).expect("a random source")),
    };
    let config = Config::new(quick(), vec![engine.backend("a")]).expect("valid");
    let service = config.build(deps).expect("an empty registry");
    let mut fleet = service.fleet();
    let drain = lifecycle.drain();
    let (publisher, families) = (service.shared.publisher.clone(), service.shared.families.clone());
    let mut supervisor = Supervisor::new(service.shared, drain.clone());
    supervisor.reconcile(service.registry.of_file()).await;
    let is = |f: &Arc<Fleet>, state| f.backends.iter().any(|b| b.state == state);
    tokio::select! {
        () = publisher.run(&drain) => panic!("it publishes until the drain"),
        ready = fleet.wait_for(|f| is(f, BackendState::Ready)) => drop(ready.expect("alive")),
    }
    let life = fleet.borrow().backends[0].incarnation;
    supervisor.break_off("a").await;
    supervisor.start_ended();
    assert_eq!(families.prober_restarts.get(), 1);
    assert!(is(&fleet.borrow(), BackendState::Ready), "nobody is taken out by it");
    engine.change(|s| s.health = 503);
    tokio::select! {
        () = publisher.run(&drain) => panic!("it publishes until the drain"),
        down = fleet.wait_for(|f| is(f, BackendState::Down)) => drop(down.expect("alive")),
    }
    assert_eq!(fleet.borrow().backends[0].incarnation, life);
}
