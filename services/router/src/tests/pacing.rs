//! Ranks that are full or back get nothing new, or little, while others can take it.

use std::time::Duration;

use domain::{Backend, BackendState, Decision, FailureClass, Incarnation};

use super::kit::{Bench, doc, fleet_of, shares, vllm};
use crate::Config;
use crate::config::RawConfig;

/// So many requests of documents of their own, none of which is answered.
fn burst(bench: &mut Bench, count: u64) -> Vec<Decision> {
    (0..count).map(|i| bench.route(doc(1000 + i, 20))).collect()
}

fn full(bench: &mut Bench, decision: &Decision, seconds: u64) -> String {
    let wait = Duration::from_secs(seconds);
    bench.fail_after(decision.lease, FailureClass::BackPressure, Some(wait));
    decision.chosen.rank.backend.to_string()
}

/// The rest of the fleet has work, and `b0` is back from being in this state.
fn back(bench: &mut Bench, away: Backend) {
    bench.reconcile(vec![away, vllm("b1")]);
    burst(bench, 10);
    bench.reconcile(fleet_of(2));
}

fn in_state(state: BackendState) -> Backend {
    Backend { state, ..vllm("b0") }
}

#[test]
fn an_engine_that_is_full_is_left_alone_for_as_long_as_it_says() {
    let mut bench = Bench::new(fleet_of(2));
    bench.serve(doc(1, 50));
    let refused = bench.route(doc(1, 50));
    let holder = full(&mut bench, &refused, 5);
    assert_eq!(bench.field(&holder, "held_back"), "full");
    assert_eq!(bench.field(&holder, "breaker"), "closed");
    for _ in 0..20 {
        assert_ne!(bench.serve(doc(1, 50)).chosen.rank.backend.as_str(), holder);
    }
    bench.wait(5.0);
    assert!(bench.field(&holder, "held_back").is_null());
    let shares = shares(&burst(&mut bench, 10));
    assert!(shares[&holder] > 2, "{shares:?}");
}

#[test]
fn one_that_does_not_say_for_how_long_is_left_alone_for_a_second() {
    let mut bench = Bench::new(fleet_of(2));
    let refused = bench.route(doc(1, 50));
    let holder = refused.chosen.rank.backend.to_string();
    bench.fail(refused.lease, FailureClass::BackPressure);
    assert_eq!(bench.field(&holder, "held_back"), "full");
    bench.wait(1.0);
    assert!(bench.field(&holder, "held_back").is_null());
}

#[test]
fn when_all_are_full_the_one_that_is_full_for_the_shortest_time_is_asked() {
    let mut bench = Bench::new(fleet_of(3));
    let mut until = Vec::new();
    for seconds in [30, 10, 20] {
        let decision = bench.route(doc(1, 50));
        until.push((seconds, full(&mut bench, &decision, seconds)));
    }
    until.sort();
    let mut route = bench.request(Some(doc(1, 50)));
    for (_, backend) in &until {
        let asked = bench.router.route_at(&route, bench.now).expect("one is asked all the same");
        assert_eq!(asked.chosen.rank.backend.as_str(), backend);
        bench.cancel(asked.lease);
        route.excluded.push(asked.chosen.rank);
    }
    bench.router.route_at(&route, bench.now).expect_err("none is left");
}

#[test]
fn a_full_engine_is_asked_before_a_broken_one() {
    let mut bench = Bench::new(fleet_of(2));
    let decision = bench.route(doc(1, 50));
    let busy = full(&mut bench, &decision, 30);
    for _ in 0..2 {
        let decision = bench.route(doc(1, 50));
        assert_ne!(decision.chosen.rank.backend.as_str(), busy);
        bench.fail(decision.lease, FailureClass::Connection);
    }
    assert_eq!(bench.route(doc(1, 50)).chosen.rank.backend.as_str(), busy);
}

#[test]
fn a_rank_whose_breaker_closes_gets_four_and_one_more_for_each_answer() {
    let mut bench = Bench::new(fleet_of(2));
    bench.serve(doc(1, 50));
    for _ in 0..2 {
        let decision = bench.route(doc(1, 50));
        assert_eq!(decision.chosen.rank.backend.as_str(), "b0");
        bench.fail(decision.lease, FailureClass::Connection);
    }
    bench.wait(2.0);
    let trial = bench.route(doc(1, 50));
    bench.first_token(trial.lease);
    bench.progress(trial.lease, 16);
    bench.finish(trial.lease);
    assert_eq!(bench.field("b0", "breaker"), "closed");
    assert_back(&mut bench);
}

#[test]
fn a_rank_that_was_down_or_was_started_anew_gets_four_and_one_more_for_each_answer() {
    let mut bench = Bench::new(fleet_of(2));
    back(&mut bench, in_state(BackendState::Down));
    assert_back(&mut bench);

    let mut bench = Bench::new(fleet_of(2));
    burst(&mut bench, 10);
    let anew = Backend { incarnation: Incarnation(2), ..vllm("b0") };
    bench.reconcile(vec![anew, vllm("b1")]);
    assert_back(&mut bench);
}

/// `b0` is back, and has nothing; `b1` has work.
fn assert_back(bench: &mut Bench) {
    let taken: Vec<_> = burst(bench, 30)
        .into_iter()
        .filter(|decision| decision.chosen.rank.backend.as_str() == "b0")
        .collect();
    assert_eq!(taken.len(), 4);
    assert_eq!(bench.field("b0", "held_back"), "returning");
    bench.wait(0.1);
    bench.first_token(taken[0].lease);
    assert_eq!(shares(&burst(bench, 30))["b0"], 1, "one goes on, and one more is let in");
    bench.finish(taken[0].lease);
    assert_eq!(shares(&burst(bench, 30))["b0"], 1, "an answer counts once");
    bench.finish(taken[1].lease);
    assert_eq!(shares(&burst(bench, 30))["b0"], 2, "one has ended, and was an answer");
}

#[test]
fn a_rank_that_is_back_is_like_any_other_after_some_answers() {
    let mut bench = Bench::new(fleet_of(2));
    back(&mut bench, in_state(BackendState::Down));
    let mut answers = 0;
    while answers < 64 {
        let decision = bench.serve(doc(5000 + answers, 2));
        answers += u64::from(decision.chosen.rank.backend.as_str() == "b0");
    }
    burst(&mut bench, 300);
    assert!(bench.in_flight("b0") > 100);
}

#[test]
fn ranks_that_join_or_were_drained_are_not_held_back() {
    for state in [BackendState::Joining, BackendState::Draining, BackendState::Maintenance] {
        let mut bench = Bench::new(vec![in_state(state), vllm("b1")]);
        back(&mut bench, in_state(state));
        let taken = shares(&burst(&mut bench, 30))["b0"];
        assert!(taken > 15, "{state:?}: {taken}");
    }
}

#[test]
fn where_all_are_back_at_once_none_is_held_back() {
    let mut bench = Bench::new(fleet_of(2));
    let down = |id: &str| Backend { state: BackendState::Down, ..vllm(id) };
    bench.reconcile(vec![down("b0"), down("b1")]);
    bench.reconcile(fleet_of(2));
    let shares = shares(&burst(&mut bench, 30));
    assert!(shares["b0"] > 12 && shares["b1"] > 12, "{shares:?}");
}

#[test]
fn without_a_first_number_a_rank_that_is_back_is_like_any_other() {
    let raw = RawConfig { recovery_in_flight: Some(0), ..RawConfig::default() };
    let mut bench = Bench::with(Config::new(raw).expect("valid"), fleet_of(2));
    back(&mut bench, in_state(BackendState::Down));
    assert!(shares(&burst(&mut bench, 30))["b0"] > 15);
}

#[test]
fn what_holds_a_rank_back_is_explained_and_shown() {
    let mut bench = Bench::new(fleet_of(2));
    let decision = bench.route(doc(1, 50));
    let holder = full(&mut bench, &decision, 30);
    bench.router.tick(bench.now);
    let labels = format!(r#"backend="{holder}",model="model",rank="0",reason="full""#);
    let line = format!("warmpath_router_held_back{{{labels}}} 1");
    assert!(bench.metrics().contains(&line), "{}", bench.metrics());
    let request = bench.request(Some(doc(1, 50)));
    bench.router.route_at(&request, bench.now).expect("the other one");
    let explained = bench.router.explain(request.request.as_str()).expect("remembered").to_string();
    assert!(explained.contains("its engine said that it is full"), "{explained}");
}
