//! Counts and bookings belong to the object they were made on.

use std::time::Duration;

use domain::{
    Backend, BackendState, Decision, Incarnation, Moment, RejectReason, Report, RoutingClient as _,
};

use super::kit::{Bench, doc, fleet_of, shares, vllm, with_load};

fn reborn(id: &str) -> Backend {
    Backend { incarnation: Incarnation(2), ..vllm(id) }
}

#[test]
fn a_backend_that_comes_back_counts_only_its_own_requests() {
    let mut bench = Bench::new(vec![vllm("a")]);
    let old: Vec<Decision> = (0..10).map(|d| bench.route(doc(d, 4))).collect();
    bench.reconcile(vec![vllm("b"), vllm("c")]);
    bench.reconcile(vec![reborn("a"), vllm("b"), vllm("c")]);
    assert_eq!(bench.in_flight("a"), 0);
    let young: Vec<Decision> = (0..3).map(|d| bench.route(doc(100 + d, 4))).collect();
    assert_eq!(shares(&young).len(), 3);
    for decision in &old {
        bench.finish(decision.lease);
        assert_eq!(bench.in_flight("a"), 1, "the old life's end is not the new one's");
    }
    for decision in &young {
        bench.finish(decision.lease);
    }
    assert_eq!(bench.in_flight("a"), 0);
    assert!(bench.metrics().contains("warmpath_router_leases{model=\"model\"} 0"));
    bench.wait(1.0);
    let cold: Vec<Decision> = (0..30).map(|d| bench.serve(doc(1000 + d, 0))).collect();
    for (backend, share) in shares(&cold) {
        assert!((8..=12).contains(&share), "{backend}: {share}");
    }
}

#[test]
fn a_health_flap_keeps_counts_and_cache() {
    let mut bench = Bench::new(fleet_of(1));
    bench.serve(doc(1, 30));
    let open = bench.route(doc(1, 30));
    let mut down = vllm("b0");
    down.state = BackendState::Down;
    bench.reconcile(vec![down]);
    let refused = bench.try_route(doc(1, 30)).expect_err("nobody is ready");
    assert_eq!(refused.reason, RejectReason::NoReadyBackend);
    bench.reconcile(vec![vllm("b0")]);
    assert_eq!(bench.in_flight("b0"), 1);
    bench.finish(open.lease);
    assert_eq!(bench.in_flight("b0"), 0);
    assert_eq!(bench.route(doc(1, 30)).evidence.matched_blocks, 30);
}

#[test]
fn probes_and_reconciles_never_reset_what_is_booked() {
    let mut bench = Bench::new(fleet_of(15));
    let mut open = Vec::new();
    for second in 0..60_u32 {
        for _ in 0..3 {
            open.push(bench.route(doc(1, 400)));
        }
        bench.wait(1.0);
        let running = |i: usize| {
            let name = format!("b{i}");
            open.iter().filter(|d: &&Decision| d.chosen.rank.backend.as_str() == name).count()
        };
        let sampled = (0..15)
            .map(|i| with_load(vllm(&format!("b{i}")), bench.now, running(i) as u32, 0))
            .collect();
        bench.reconcile(sampled);
        for i in 0..15 {
            assert_eq!(bench.in_flight(&format!("b{i}")), running(i) as u64, "after {second} s");
        }
    }
    for decision in &open {
        bench.finish(decision.lease);
    }
    assert!((0..15).all(|i| bench.in_flight(&format!("b{i}")) == 0));
}

#[test]
fn a_restarted_engine_is_not_believed_warm() {
    let mut bench = Bench::new(fleet_of(1));
    bench.serve(doc(1, 30));
    assert_eq!(bench.serve(doc(1, 30)).evidence.matched_blocks, 30);
    bench.reconcile(vec![Backend { incarnation: Incarnation(2), ..vllm("b0") }]);
    assert_eq!(bench.serve(doc(1, 30)).evidence.matched_blocks, 0);
}

#[test]
fn a_removed_backend_takes_its_holders_and_its_series_along() {
    let mut bench = Bench::new(fleet_of(2));
    bench.serve(doc(1, 30));
    bench.router.tick(bench.now);
    assert!(bench.metrics().contains("backend=\"b0\""));
    bench.reconcile(vec![vllm("b1")]);
    bench.router.tick(bench.now);
    assert!(!bench.metrics().contains("backend=\"b0\""), "{}", bench.metrics());
    let all = bench.serve(doc(1, 30));
    assert_eq!(all.chosen.rank.backend.as_str(), "b1");
    bench.reconcile(Vec::new());
    let refused = bench.try_route(doc(1, 30)).expect_err("nobody is left");
    assert_eq!(refused.reason, RejectReason::NoReadyBackend);
}

#[test]
fn an_adapter_goes_only_where_it_is_loaded() {
    let mut with_adapter = vllm("b1");
    let mut adapter = with_adapter.models[0].clone();
    adapter.id = "adapter".into();
    with_adapter.models.push(adapter);
    let mut bench = Bench::new(vec![vllm("b0"), with_adapter]);
    for d in 0..20 {
        let mut route = bench.request(Some(doc(d, 4)));
        route.model = "adapter".into();
        let decision = bench.router.route_at(&route, bench.now).expect("one has it");
        assert_eq!(decision.chosen.rank.backend.as_str(), "b1");
        bench.finish(decision.lease);
    }
    let mut route = bench.request(Some(doc(1, 4)));
    route.model = "nobody's".into();
    let refused = bench.router.route_at(&route, bench.now).expect_err("unknown");
    assert_eq!(refused.reason, RejectReason::UnknownModel);
    assert!(!bench.metrics().contains("nobody's"), "labels never come from a request");
}

#[test]
fn ranks_behind_one_address_are_pinned_and_kept_apart() {
    let mut pair = vllm("b0");
    let mut second = pair.ranks[0].clone();
    second.rank = 1;
    pair.ranks.push(second);
    let mut bench = Bench::new(vec![pair]);
    let one = bench.serve(doc(1, 50));
    let two = bench.serve(doc(2, 50));
    assert!(one.chosen.pin_rank);
    assert_ne!(one.chosen.rank.rank, two.chosen.rank.rank);
    assert_eq!(bench.serve(doc(1, 50)).chosen.rank, one.chosen.rank);
}

#[test]
fn a_lease_that_is_never_closed_runs_out() {
    let mut bench = Bench::new(fleet_of(1));
    let lost = bench.route(doc(1, 10));
    bench.wait(3599.0);
    bench.router.tick(bench.now);
    assert_eq!(bench.in_flight("b0"), 1);
    let young = bench.route(doc(2, 10));
    bench.wait(2.0);
    bench.router.tick(bench.now);
    assert_eq!(bench.in_flight("b0"), 1);
    assert!(bench.metrics().contains("warmpath_router_leases_reaped_total{model=\"model\"} 1"));
    bench.finish(lost.lease);
    assert_eq!(bench.in_flight("b0"), 1, "a late report of it changes nothing");
    bench.finish(young.lease);
    assert_eq!(bench.in_flight("b0"), 0);
}

#[test]
fn a_lease_that_reports_is_kept_however_long_it_runs() {
    let mut bench = Bench::new(fleet_of(1));
    let stream = bench.route(doc(1, 10));
    let lost = bench.route(doc(2, 10));
    for generated in 1..=5 {
        bench.wait(1800.0);
        bench.router.report_at(&Report::Progress { lease: stream.lease, generated }, bench.now);
        bench.router.tick(bench.now);
    }
    assert_eq!(bench.in_flight("b0"), 1, "only the silent one is taken for lost");
    bench.finish(lost.lease);
    assert_eq!(bench.in_flight("b0"), 1);
    bench.wait(3601.0);
    bench.router.tick(bench.now);
    assert_eq!(bench.in_flight("b0"), 0, "silence ends it too");
}

#[test]
fn a_second_closing_report_changes_nothing() {
    let mut bench = Bench::new(fleet_of(1));
    let first = bench.route(doc(1, 10));
    let second = bench.route(doc(2, 10));
    for _ in 0..3 {
        bench.finish(first.lease);
        bench.cancel(first.lease);
    }
    assert_eq!(bench.in_flight("b0"), 1);
    bench.finish(second.lease);
    assert_eq!(bench.in_flight("b0"), 0);
}

#[test]
fn a_sample_counts_once_however_often_it_is_published() {
    let at = Moment::from_secs_f64(999.9);
    let bench = Bench::new(vec![with_load(vllm("b0"), at, 8, 0)]);
    let once = bench.field("b0", "foreign_requests");
    for _ in 0..50 {
        bench.reconcile(vec![with_load(vllm("b0"), at, 8, 0)]);
    }
    assert_eq!(bench.field("b0", "foreign_requests"), once);
}

#[test]
fn adapters_that_come_and_go_do_not_pile_up() {
    let mut bench = Bench::new(Vec::new());
    for i in 0..1100 {
        let mut backend = vllm("b0");
        backend.models[0].id = format!("adapter-{i}").as_str().into();
        bench.reconcile(vec![backend]);
    }
    let reason = |bench: &mut Bench, model: &str| {
        let mut route = bench.request(Some(doc(1, 1)));
        route.model = model.into();
        bench.router.route_at(&route, bench.now).expect_err("not loaded").reason
    };
    assert_eq!(reason(&mut bench, "adapter-0"), RejectReason::UnknownModel);
    assert_eq!(reason(&mut bench, "adapter-1098"), RejectReason::NoReadyBackend);
    let series = |name: &str| bench.metrics().lines().filter(|l| l.starts_with(name)).count();
    assert!(series("warmpath_router_leases{") <= 1025);
    assert_eq!(series("warmpath_router_capacity_blocks{"), 1);
}

#[tokio::test]
async fn a_route_that_is_held_and_then_refused_is_counted_and_explained_once() {
    let mut bench = Bench::new(Vec::new());
    bench.reconcile(vec![down("b0")]);
    let mut route = bench.request(Some(doc(1, 10)));
    route.hold = Duration::from_millis(30);
    let held = bench.router.route(route);
    // Each of these is a reason to try again.
    bench.reconcile(vec![down("b0"), down("b1")]);
    bench.reconcile(vec![down("b0")]);
    assert!(held.await.is_err());
    let counted = "warmpath_router_rejections_total{reason=\"no_ready_backend\"} 1";
    assert!(bench.metrics().contains(counted), "{}", bench.metrics());
}

fn down(id: &str) -> Backend {
    Backend { state: BackendState::Down, ..vllm(id) }
}
