//! Backends that fail live requests leave, and come back through one trial.

use domain::{DecisionReason, FailureClass, RejectReason};

use super::kit::{Bench, doc, fleet_of};

/// Makes the holder of document 1 fail until it is out, and names it.
fn break_holder(bench: &mut Bench) -> String {
    let holder = bench.serve(doc(1, 50)).chosen.rank.backend.to_string();
    for _ in 0..2 {
        let decision = bench.route(doc(1, 50));
        assert_eq!(decision.chosen.rank.backend.as_str(), holder);
        bench.fail(decision.lease, FailureClass::Connection);
    }
    holder
}

#[test]
fn a_backend_that_refuses_connections_is_out_after_two() {
    let mut bench = Bench::new(fleet_of(2));
    let broken = break_holder(&mut bench);
    assert_eq!(bench.field(&broken, "breaker"), "open");
    for _ in 0..20 {
        assert_ne!(bench.serve(doc(1, 50)).chosen.rank.backend.as_str(), broken);
    }
}

#[test]
fn reconciles_do_not_close_it_but_one_good_trial_does() {
    let mut bench = Bench::new(fleet_of(2));
    let broken = break_holder(&mut bench);
    bench.reconcile(fleet_of(2));
    assert_eq!(bench.field(&broken, "breaker"), "open");
    bench.wait(2.0);
    assert_eq!(bench.field(&broken, "breaker"), "half_open");
    let trial = bench.route(doc(1, 50));
    assert_eq!(trial.chosen.rank.backend.as_str(), broken, "it still has the prefix");
    for _ in 0..5 {
        let other = bench.route(doc(1, 50));
        assert_ne!(other.chosen.rank.backend.as_str(), broken, "one trial at a time");
    }
    bench.first_token(trial.lease);
    assert_eq!(bench.field(&broken, "breaker"), "open", "a first token proves too little");
    bench.progress(trial.lease, 16);
    assert_eq!(bench.field(&broken, "breaker"), "closed");
}

#[test]
fn a_failed_trial_waits_twice_as_long() {
    let mut bench = Bench::new(fleet_of(2));
    let broken = break_holder(&mut bench);
    bench.wait(2.0);
    let trial = bench.route(doc(1, 50));
    bench.fail(trial.lease, FailureClass::Timeout);
    bench.wait(3.9);
    assert_eq!(bench.field(&broken, "breaker"), "open");
    bench.wait(0.2);
    assert_eq!(bench.field(&broken, "breaker"), "half_open");
}

#[test]
fn a_trial_whose_client_leaves_makes_room_for_another() {
    let mut bench = Bench::new(fleet_of(2));
    let broken = break_holder(&mut bench);
    bench.wait(2.0);
    let trial = bench.route(doc(1, 50));
    assert_eq!(trial.chosen.rank.backend.as_str(), broken);
    bench.cancel(trial.lease);
    assert_eq!(bench.field(&broken, "breaker"), "half_open");
}

#[test]
fn bad_requests_and_full_engines_break_nothing() {
    let mut bench = Bench::new(fleet_of(1));
    for class in [FailureClass::ClientError, FailureClass::BackPressure] {
        for _ in 0..50 {
            let decision = bench.route(doc(1, 5));
            bench.fail(decision.lease, class);
        }
    }
    assert_eq!(bench.field("b0", "breaker"), "closed");
}

#[test]
fn when_all_are_broken_the_one_that_failed_longest_ago_is_tried() {
    let mut bench = Bench::new(fleet_of(2));
    let first = break_holder(&mut bench);
    bench.wait(0.5);
    for _ in 0..2 {
        let decision = bench.route(doc(9, 5));
        bench.fail(decision.lease, FailureClass::Connection);
    }
    bench.wait(0.1);
    let tried = bench.route(doc(9, 5));
    assert_eq!(tried.chosen.rank.backend.as_str(), first);
    assert_eq!(tried.evidence.reason, DecisionReason::OnlyCandidate);
}

#[test]
fn a_request_never_returns_to_a_rank_that_failed_it() {
    let mut bench = Bench::new(fleet_of(2));
    let first = bench.route(doc(1, 50));
    let mut again = bench.request(Some(doc(1, 50)));
    again.attempt = 1;
    again.excluded.push(first.chosen.rank.clone());
    let second = bench.router.route_at(&again, bench.now).expect("one is left");
    assert_ne!(second.chosen.rank, first.chosen.rank);
    again.excluded.push(second.chosen.rank);
    let refused = bench.router.route_at(&again, bench.now).expect_err("none is left");
    assert_eq!(refused.reason, RejectReason::AllExcluded);
}

#[test]
fn a_decision_names_others_to_fall_back_on() {
    let mut bench = Bench::new(fleet_of(12));
    let decision = bench.route(doc(1, 5));
    assert_eq!(decision.others.len(), 7);
    assert!(decision.others.iter().all(|o| o.rank != decision.chosen.rank));
}
