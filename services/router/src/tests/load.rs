//! Load is counted once, in seconds, and spreads.

use std::collections::BTreeMap;

use domain::{BackendState, Decision, DecisionReason, Moment, PrefillCounters, Prompt};
use scheduling::Policy;

use super::kit::{Bench, doc, fleet_of, shares, vllm, with_load};
use crate::{Config, RawConfig};

fn assert_even(shares: &BTreeMap<String, usize>, backends: usize, tolerance: f64) {
    let mean = shares.values().sum::<usize>() as f64 / backends as f64;
    assert_eq!(shares.len(), backends, "{shares:?}");
    for share in shares.values() {
        let off = (*share as f64 / mean - 1.0).abs();
        assert!(off <= tolerance, "{shares:?} is off by {off}");
    }
}

#[test]
fn ties_are_spread_and_not_given_to_the_first() {
    for n in [3, 5] {
        let mut bench = Bench::new(fleet_of(n));
        // So short that everything lies within the tie margin, and no block is full.
        let cold: Vec<Decision> = (0..300).map(|d| bench.serve(doc(1000 + d, 0))).collect();
        assert_even(&shares(&cold), n, 0.2);
    }
}

#[test]
fn a_rank_that_was_slow_at_first_is_tried_again() {
    let mut bench = Bench::new(fleet_of(2));
    // Its first requests take two seconds each, as while an engine warms up.
    let mut slow = None;
    for d in 0..8 {
        let decision = bench.route(doc(d, 90));
        let rank = decision.chosen.rank.clone();
        let is_slow = *slow.get_or_insert_with(|| rank.clone()) == rank;
        bench.wait(if is_slow { 2.0 } else { 0.08 });
        bench.first_token(decision.lease);
        bench.finish(decision.lease);
    }
    let others: Vec<Decision> = (100..140).map(|d| bench.serve(doc(d, 90))).collect();
    assert!(others.iter().all(|d| Some(&d.chosen.rank) != slow.as_ref()), "it looks slow");
    for d in 200..220 {
        bench.wait(0.3);
        bench.serve(doc(d, 90));
        bench.router.tick(bench.now);
    }
    let later: Vec<Decision> = (300..340).map(|d| bench.serve(doc(d, 90))).collect();
    let tried = later.iter().filter(|d| Some(&d.chosen.rank) == slow.as_ref()).count();
    assert!(tried >= 10, "{tried} of 40");
}

#[test]
fn ties_among_holders_of_one_prefix_are_spread() {
    let mut bench = Bench::new(fleet_of(3));
    // Each further one must go to a rank that does not hold it yet.
    let mut holders = Vec::new();
    for _ in 0..3 {
        let mut route = bench.request(Some(doc(1, 90)));
        route.excluded.clone_from(&holders);
        let decision = bench.router.route_at(&route, bench.now).expect("a rank is left");
        bench.wait(0.1);
        bench.first_token(decision.lease);
        bench.finish(decision.lease);
        holders.push(decision.chosen.rank);
    }
    let warm: Vec<Decision> = (0..300).map(|_| bench.serve(doc(1, 90))).collect();
    assert!(warm.iter().all(|d| d.evidence.matched_blocks == 90));
    assert_even(&shares(&warm), 3, 0.2);
}

#[test]
fn the_rotation_goes_on_while_the_set_of_candidates_alternates() {
    let mut bench = Bench::new(fleet_of(4));
    let mut decisions = Vec::new();
    for i in 0..300 {
        let mut fleet = fleet_of(4);
        if i % 2 == 1 {
            fleet[3].state = BackendState::Down;
        }
        bench.reconcile(fleet);
        decisions.push(bench.serve(doc(1000 + i, 0)));
    }
    let shares = shares(&decisions);
    let (least, most) = (shares.values().min(), shares.values().max());
    let (least, most) = (*least.expect("some") as f64, *most.expect("some") as f64);
    assert_eq!(shares.len(), 4);
    assert!(most / least <= 1.5, "{shares:?}");
}

#[test]
fn a_stale_sample_does_not_draw_a_burst_to_one_backend() {
    for n in 2..=4 {
        let old = Moment::from_secs_f64(995.0);
        let sampled =
            (0..n).map(|i| with_load(vllm(&format!("b{i}")), old, u32::from(i > 0), 0)).collect();
        let mut bench = Bench::new(sampled);
        let mut burst = Vec::new();
        for d in 0..64 {
            burst.push(bench.route(doc(100 + d, 40)));
            bench.wait(0.001);
        }
        let shares = shares(&burst);
        let most = *shares.values().max().expect("some") as f64;
        assert!(most / (64.0 / n as f64) <= 1.25, "{shares:?}");
    }
}

#[test]
fn one_hot_backend_does_not_cost_the_others_their_affinity() {
    let mut bench = Bench::new(fleet_of(8));
    let home: Vec<Decision> = (0..8).map(|t| bench.serve(doc(t, 500))).collect();
    assert_eq!(shares(&home).len(), 8, "each document has a home of its own");
    // The first tenant: a hundred slow streams at once.
    let hot: Vec<Decision> = (0..100).map(|_| bench.route(doc(0, 500))).collect();
    let at_home = |d: &Decision| d.chosen.rank == home[0].chosen.rank;
    assert!(hot.iter().any(at_home), "its home takes part");
    let mut waiting = hot.iter();
    let (mut hits, mut asked) = (0, 0);
    for _ in 0..60 {
        bench.wait(1.0);
        for decision in waiting.by_ref().take(4) {
            bench.first_token(decision.lease);
        }
        for t in 1..8 {
            let decision = bench.serve(doc(t, 500));
            asked += 1;
            hits += u32::from(
                decision.chosen.rank == home[t as usize].chosen.rank
                    && decision.evidence.matched_blocks == 500,
            );
        }
    }
    assert!(hits * 100 >= asked * 95, "{hits} of {asked}");
}

#[test]
fn a_backend_that_is_not_ready_has_no_part_in_the_comparison() {
    let mut fleet = fleet_of(3);
    fleet[2].state = BackendState::Down;
    let mut bench = Bench::new(fleet);
    let a = bench.serve(doc(1, 100)).chosen.rank;
    let b = bench.serve(doc(2, 100)).chosen.rank;
    assert_ne!(a, b);
    let open: Vec<Decision> = (0..10).map(|i| bench.route(doc(1 + i % 2, 100))).collect();
    for decision in &open {
        bench.wait(0.01);
        bench.first_token(decision.lease);
    }
    bench.wait(1.0);
    for _ in 0..20 {
        assert_eq!(bench.serve(doc(1, 100)).chosen.rank, a);
        assert_eq!(bench.serve(doc(2, 100)).chosen.rank, b);
    }
}

#[test]
fn routes_without_a_prompt_go_by_load_alone() {
    let mut bench = Bench::new(fleet_of(3));
    let mut shares = BTreeMap::<String, usize>::new();
    for _ in 0..30 {
        let route = bench.request(None);
        let decision = bench.router.route_at(&route, bench.now).expect("a candidate");
        assert_eq!(decision.evidence.reason, DecisionReason::LeastLoad);
        *shares.entry(decision.chosen.rank.backend.to_string()).or_default() += 1;
    }
    assert_even(&shares, 3, 0.0);
}

#[test]
fn round_robin_takes_turns_and_least_load_the_emptiest() {
    let with = |policy| {
        let raw = RawConfig { policy: Some(policy), ..RawConfig::default() };
        Bench::with(Config::new(raw).expect("valid"), fleet_of(3))
    };
    let mut robin = with(Policy::RoundRobin);
    let turns: Vec<Decision> = (0..9).map(|_| robin.serve(doc(1, 50))).collect();
    assert_even(&shares(&turns), 3, 0.0);
    assert!(turns.iter().all(|d| d.evidence.reason == DecisionReason::RoundRobin));

    let mut least = with(Policy::LeastLoad);
    let open: Vec<Decision> = (0..6).map(|_| least.route(doc(1, 50))).collect();
    assert_even(&shares(&open), 3, 0.0);
    least.finish(open[2].lease);
    assert_eq!(least.route(doc(1, 50)).chosen.rank, open[2].chosen.rank);
}

#[test]
fn a_slow_backend_is_learned_and_gets_less() {
    let mut bench = Bench::new(fleet_of(2));
    let slow = "b0";
    for d in 0..60 {
        let prompt: Prompt = doc(10_000 + d, 100);
        let decision = bench.route(prompt);
        let rate = if decision.chosen.rank.backend.as_str() == slow { 2e-4 } else { 2e-5 };
        bench.wait(1605.0 * rate);
        bench.first_token(decision.lease);
        bench.finish(decision.lease);
        bench.wait(1.0);
    }
    let late: Vec<Decision> = (0..10).map(|d| bench.serve(doc(20_000 + d, 100))).collect();
    assert!(late.iter().all(|d| d.chosen.rank.backend.as_str() != slow), "{:?}", shares(&late));
    // The fit outlives the backend's absence.
    let fit = bench.field(slow, "prefill_fit");
    bench.reconcile(vec![vllm("b1")]);
    let mut back = vllm(slow);
    back.incarnation = domain::Incarnation(2);
    bench.reconcile(vec![back, vllm("b1")]);
    assert_eq!(bench.field(slow, "prefill_fit"), fit);
}

#[test]
fn a_burst_that_an_engine_takes_in_another_order_does_not_make_it_look_idle_or_fast() {
    let mut bench = Bench::new(fleet_of(1));
    let mut burst = Vec::new();
    for d in 0..4 {
        burst.push(bench.route(doc(d, 100)));
        bench.wait(0.001);
    }
    // The edge that was told last was the quickest: its prompt is computed alone, in a tenth of a
    // second, and then the other three together.
    bench.wait(0.096);
    bench.first_token(burst[3].lease);
    bench.wait(0.1);
    let delay = bench.field("b0", "queue_delay_seconds").as_f64().expect("a number");
    assert!(delay > 0.1, "what is left of three prompts is before the next one: {delay}");
    bench.wait(0.2);
    burst[..3].iter().for_each(|decision| bench.first_token(decision.lease));
    burst.iter().for_each(|decision| bench.finish(decision.lease));
    bench.wait(1.0);
    let prefill = bench.route(doc(9, 100)).evidence.parts.prefill_seconds;
    assert!((0.07..0.13).contains(&prefill), "{prefill}");
}

#[test]
fn where_every_engine_runs_as_many_as_it_can_the_reason_says_so() {
    let mut bench = Bench::new(fleet_of(2));
    for _ in 0..3 {
        bench.wait(1.0);
        let at = bench.now;
        bench.reconcile(vec![with_load(vllm("b0"), at, 2, 3), with_load(vllm("b1"), at, 1, 1)]);
    }
    bench.wait(1.0);
    let at = bench.now;
    bench.reconcile(vec![with_load(vllm("b0"), at, 0, 0), with_load(vllm("b1"), at, 0, 0)]);
    bench.wait(20.0);
    let reasons: Vec<DecisionReason> = (0..4)
        .map(|d| {
            let decision = bench.route(doc(50 + d, 2));
            bench.wait(0.1);
            bench.first_token(decision.lease);
            decision.evidence.reason
        })
        .collect();
    let cold = DecisionReason::Cold;
    assert_eq!(reasons, [cold, cold, cold, DecisionReason::AllSaturated]);
    bench.router.tick(bench.now);
    let page = bench.metrics();
    for (backend, ceiling) in [("b0", 2), ("b1", 1)] {
        let series = format!(
            "warmpath_router_running_ceiling_requests{{backend=\"{backend}\",model=\"model\",\
             rank=\"0\"}} {ceiling}"
        );
        assert!(page.contains(&series), "{page}");
    }
}

#[test]
fn an_engine_whose_first_tokens_nobody_sees_is_learned_by_its_own_counters() {
    let mut bench = Bench::new(fleet_of(2));
    // 40 requests of 1,000 tokens a reading; the first engine takes ten times as long for them.
    for round in 0..12_u64 {
        bench.wait(1.0);
        let counted = |id: &str, seconds_each: f64| {
            let mut backend = with_load(vllm(id), bench.now, 0, 0);
            let requests = 40 * round;
            let load = backend.ranks[0].load.as_mut().expect("set");
            load.prefills = Some(PrefillCounters {
                requests,
                tokens: 1_000 * requests,
                seconds: seconds_each * requests as f64,
            });
            backend
        };
        bench.reconcile(vec![counted("b0", 0.5), counted("b1", 0.05)]);
    }
    let open: Vec<Decision> = (0..11).map(|d| bench.route(doc(70 + d, 63))).collect();
    let shares = shares(&open);
    assert!(shares["b1"] >= 9, "{shares:?}");
    let fit = bench.field("b0", "prefill_fit");
    bench.router.tick(bench.now);
    let page = bench.metrics();
    let series = "warmpath_router_prefill_check_ratio{backend=\"b0\",model=\"model\",rank=\"0\"} ";
    let ratio = page.split_once(series).and_then(|(_, rest)| rest.lines().next());
    let ratio: f64 = ratio.and_then(|text| text.parse().ok()).expect("shown");
    assert!(ratio > 1.0, "the prior was too fast: {ratio}, {fit}");
}
