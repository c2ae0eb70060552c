//! What a hot prefix does to a choice.

use super::*;

/// A rank that gets 20 requests a second and holds 200 blocks, all of a hot prefix.
fn hot_holder() -> CandidateView<'static> {
    CandidateView { arrivals_per_second: 20.0, hot_tokens: 3_200, ..holding(200) }
}

#[test]
fn the_least_busy_rank_becomes_the_next_holder_of_a_hot_prefix() {
    let busy = CandidateView { arrivals_per_second: 15.0, ..idle() };
    let quiet = CandidateView { arrivals_per_second: 1.0, ..idle() };
    let views = [hot_holder(), busy, quiet];
    assert_winner(&views, 2, DecisionReason::HotPrefix);
    let warm = views.map(|view| CandidateView { hot_tokens: 0, ..view });
    assert_winner(&warm, 0, DecisionReason::WarmPrefix);
}

#[test]
fn a_rank_that_would_evict_what_is_asked_for_does_not_become_a_holder() {
    let full = CandidateView { evicted_ask_tokens: 40_000.0, ..idle() };
    assert_winner(&[hot_holder(), full], 0, DecisionReason::WarmPrefix);
}

#[test]
fn without_traffic_the_holder_keeps_its_prefix() {
    let holder = CandidateView { arrivals_per_second: 0.0, ..hot_holder() };
    assert_winner(&[idle(), holder], 1, DecisionReason::WarmPrefix);
}

#[test]
fn the_charge_is_the_prefill_of_what_does_not_count_and_the_wait_that_it_adds() {
    let holder = queued(0.1, hot_holder());
    let parts = score(&Config::default(), &holder, 5.0);
    let cold = CandidateView { hot_tokens: 0, cached_tokens: 0, uncached_tokens: 4_000, ..holder };
    let cold = score(&Config::default(), &cold, 5.0);
    assert!((parts.total_seconds() - cold.total_seconds()).abs() < 1e-9, "{parts:?} {cold:?}");
    assert!(parts.ttft_seconds() < cold.ttft_seconds(), "the forecast knows what is cached");
}

proptest! {
    /// What makes it safe to leave ranks out by a lower bound of their score.
    #[test]
    fn the_charge_raises_the_score_of_holders_and_leaves_all_others_alone(
        views in any_views(12),
        arrivals in 0.0..50.0_f64,
        hot in 0..200_u32,
    ) {
        for view in views {
            let charged = CandidateView { hot_tokens: hot, ..view };
            let before = score(&Config::default(), &view, arrivals);
            let after = score(&Config::default(), &charged, arrivals);
            prop_assert!(after.total_seconds() >= before.total_seconds());
            prop_assert_eq!(after.ttft_seconds(), before.ttft_seconds());
            if hot == 0 || view.cached_tokens == 0 {
                prop_assert_eq!(after, before);
            }
        }
    }
}
