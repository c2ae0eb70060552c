//! Many threads at once: no panic, no stall, and the books add up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use domain::{Incarnation, Moment, Report, Route};
use prometheus::Registry;
use tokio::sync::watch;

use super::kit::{doc, fleet, fleet_of};
use crate::config::Choosing;
use crate::metrics::Families;
use crate::service::Deps;
use crate::{Config, Router};

const THREADS: u64 = 8;
const REQUESTS: u64 = 250;

#[test]
fn routes_reports_reconciles_and_scrapes_go_on_together() {
    let registry = Registry::new();
    let families = Families::register(&registry).expect("an empty registry");
    let router = Arc::new(Router::new(Choosing::default(), families, None));
    router.reconcile(fleet(fleet_of(4)));
    let clock = Arc::new(AtomicU64::new(1_000_000_000));
    let now = {
        let clock = clock.clone();
        move || Moment::from_nanos(clock.fetch_add(10_000, Ordering::Relaxed))
    };
    let done = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                let (router, now) = (router.clone(), now.clone());
                scope.spawn(move || (0..REQUESTS).for_each(|i| drive(&router, &now, t, i)))
            })
            .collect();
        let changer = {
            let (router, done) = (router.clone(), done.clone());
            scope.spawn(move || {
                let mut life = 1;
                while !done.load(Ordering::Relaxed) {
                    life += 1;
                    let mut backends = fleet_of(4);
                    backends[3].incarnation = Incarnation(life);
                    backends.truncate(if life % 2 == 0 { 3 } else { 4 });
                    router.reconcile(fleet(backends));
                    thread::yield_now();
                }
            })
        };
        let scraper = {
            let (router, done, now) = (router.clone(), done.clone(), now.clone());
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    router.tick(now());
                    assert!(!instrumentation::encode(&registry).is_empty());
                    thread::yield_now();
                }
            })
        };
        for worker in workers {
            worker.join().expect("a worker panicked");
        }
        done.store(true, Ordering::Relaxed);
        changer.join().expect("the changer panicked");
        scraper.join().expect("the scraper panicked");
    });
    let view = router.view(now());
    for rank in view["ranks"].as_array().expect("a list") {
        assert_eq!(rank["in_flight"], 0, "{rank}");
        for cache in rank["caches"].as_array().expect("a list") {
            assert_eq!(cache["pinned_blocks"], 0, "{rank}");
            assert_eq!(cache["bookings"], 0, "{rank}");
        }
    }
}

fn drive(router: &Router, now: &impl Fn() -> Moment, thread: u64, i: u64) {
    let route = Route {
        request: format!("{thread}-{i}").as_str().into(),
        client_request: None,
        attempt: 0,
        tenant: "tenant".into(),
        model: "model".into(),
        prompt: Some(doc((thread * 31 + i * 7) % 20, 100)),
        max_output_tokens: None,
        stream: true,
        excluded: Vec::new(),
        hold: Duration::ZERO,
        ranked: Vec::new(),
    };
    let lease = router.route_at(&route, now()).expect("three are always there").lease;
    if i.is_multiple_of(11) {
        router.report_at(&Report::Cancelled { lease }, now());
        return;
    }
    router.report_at(&Report::FirstToken { lease }, now());
    router.report_at(&Report::Progress { lease, generated: 20 }, now());
    router.report_at(&Report::Finished { lease, usage: None, output_keys: Vec::new() }, now());
}

#[tokio::test]
async fn the_service_follows_the_fleet_and_shows_it_only_when_it_can_be_chosen() {
    let (publish, observed) = watch::channel(fleet(Vec::new()));
    let deps = Deps { registry: Registry::new(), fleet: observed };
    let service = Config::default().build(deps).expect("an empty registry");
    let client = service.client();
    let mut seen = client.watch_fleet();
    let lifecycle = lifecycle::Lifecycle::new();
    let spawner = lifecycle.spawner();
    spawner.spawn("router", service.run(lifecycle.drain()));

    publish.send_replace(fleet(fleet_of(2)));
    let next = std::future::poll_fn(|cx| seen.as_mut().poll_next(cx));
    let shown = tokio::time::timeout(Duration::from_secs(5), next)
        .await
        .expect("the change arrives")
        .expect("the router lives");
    assert_eq!(shown.backends.len(), 2);
    let route = Route {
        request: "r".into(),
        client_request: None,
        attempt: 0,
        tenant: "tenant".into(),
        model: "model".into(),
        prompt: Some(doc(1, 3)),
        max_output_tokens: None,
        stream: true,
        excluded: Vec::new(),
        hold: Duration::ZERO,
        ranked: Vec::new(),
    };
    let decision = client.route(route).await.expect("what is shown can be chosen");
    client.report(Report::Cancelled { lease: decision.lease });

    let outcome = lifecycle.shutdown(Duration::from_secs(5)).await;
    assert_eq!(outcome, lifecycle::ShutdownOutcome::Clean);
    assert_eq!(client.fleet().backends.len(), 2, "the last state stands");
}
