use domain::{EngineKind, Incarnation};
use lifecycle::Lifecycle;
use prometheus::Opts;

use super::*;

fn backend(id: &str, state: BackendState) -> Backend {
    Backend {
        id: id.into(),
        incarnation: Incarnation(1),
        url: "http://127.0.0.1:1".into(),
        engine: EngineKind::Other,
        state,
        models: Vec::new(),
        ranks: Vec::new(),
        network: Duration::ZERO,
        credential: None,
    }
}

fn publisher() -> Arc<Publisher> {
    let revision = IntGauge::new("revision", "x").expect("a valid name");
    let states = IntGaugeVec::new(Opts::new("state", "x"), &["backend", "state"]).expect("valid");
    Arc::new(Publisher::new(revision, states))
}

fn states(publisher: &Publisher) -> Vec<(String, BackendState)> {
    let fleet = publisher.subscribe().borrow().clone();
    fleet.backends.iter().map(|b| (b.id.to_string(), b.state)).collect()
}

#[tokio::test(start_paused = true)]
async fn only_changes_are_published_and_those_of_a_moment_together() {
    let publisher = publisher();
    let lifecycle = Lifecycle::new();
    let (shared, drain) = (publisher.clone(), lifecycle.drain());
    lifecycle.spawn("publisher", async move { shared.run(&drain).await });
    let seats = ["c", "a", "b"].map(|name| {
        let joining = backend(name, BackendState::Joining);
        (name, publisher.admit(joining, LifecycleWish::Ready))
    });
    let mut fleet = publisher.subscribe();
    let all = fleet.wait_for(|f| f.backends.len() == 3).await.expect("it lives").clone();
    let ids: Vec<String> = all.backends.iter().map(|b| b.id.to_string()).collect();
    assert_eq!(ids, ["a", "b", "c"]);

    for (name, seat) in seats {
        publisher.update(seat, backend(name, BackendState::Joining));
    }
    let nothing = tokio::time::timeout(GATHER * 10, fleet.changed()).await;
    assert!(nothing.is_err(), "nothing changed");

    for (name, seat) in seats {
        publisher.update(seat, backend(name, BackendState::Ready));
    }
    fleet.changed().await.expect("the publisher lives");
    let seen = fleet.borrow_and_update().clone();
    assert_eq!(seen.revision, all.revision + 1);
    assert!(seen.backends.iter().all(|b| b.state == BackendState::Ready));
    assert_eq!(publisher.revision.get(), i64::try_from(seen.revision).expect("small"));
    lifecycle.shutdown(Duration::from_secs(1)).await;
}

#[test]
fn a_wish_outranks_what_probes_say_and_is_published_at_once() {
    let publisher = publisher();
    let seat = publisher.admit(backend("a", BackendState::Joining), LifecycleWish::Ready);
    publisher.update(seat, backend("a", BackendState::Ready));
    for (wish, shown) in [
        (LifecycleWish::Draining, BackendState::Draining),
        (LifecycleWish::Maintenance, BackendState::Maintenance),
        (LifecycleWish::Ready, BackendState::Ready),
    ] {
        publisher.wish(&"a".into(), wish);
        assert_eq!(states(&publisher), [("a".to_owned(), shown)]);
        let last = publisher.last(&"a".into()).expect("it has a seat");
        assert_eq!(last.state, BackendState::Ready, "what is seen stays");
    }
    publisher.wish(&"a".into(), LifecycleWish::Maintenance);
    publisher.update(seat, backend("a", BackendState::Down));
    assert_eq!(states(&publisher), [("a".to_owned(), BackendState::Maintenance)]);
    publisher.wish(&"a".into(), LifecycleWish::Ready);
    assert_eq!(states(&publisher), [("a".to_owned(), BackendState::Down)]);
}

#[test]
fn a_backend_that_was_removed_is_gone_at_once_and_its_prober_is_not_heard() {
    let publisher = publisher();
    let seat = publisher.admit(backend("a", BackendState::Ready), LifecycleWish::Ready);
    publisher.remove(&"a".into());
    assert_eq!(states(&publisher), []);
    publisher.update(seat, backend("a", BackendState::Ready));
    assert!(publisher.last(&"a".into()).is_none());
    let next = publisher.admit(backend("a", BackendState::Joining), LifecycleWish::Ready);
    publisher.update(seat, backend("a", BackendState::Ready));
    let last = publisher.last(&"a".into()).expect("it has a seat again");
    assert_eq!(last.state, BackendState::Joining, "the earlier prober is not heard");
    assert_ne!(seat, next);
}

#[test]
fn the_fleet_is_whole_when_all_that_was_known_at_the_start_was_probed() {
    let publisher = publisher();
    let whole = publisher.whole();
    let (a, b) = (backend("a", BackendState::Joining), backend("b", BackendState::Joining));
    let seat = publisher.admit(a.clone(), LifecycleWish::Ready);
    publisher.update(seat, a.clone());
    assert!(!*whole.borrow(), "others may follow");
    publisher.admit(b, LifecycleWish::Ready);
    publisher.complete();
    assert!(!*whole.borrow(), "one was not probed");
    publisher.remove(&"b".into());
    assert!(*whole.borrow());
    publisher.admit(backend("c", BackendState::Joining), LifecycleWish::Ready);
    assert!(*whole.borrow(), "it stays so");
}
