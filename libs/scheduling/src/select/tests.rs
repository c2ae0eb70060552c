mod hot;

use std::sync::LazyLock;

use domain::DecisionReason;
use proptest::prelude::*;

use super::*;
use crate::PrefillFit;

static FIT: LazyLock<Coefficients> = LazyLock::new(|| PrefillFit::default().coefficients());

/// A candidate for a prompt of 4,000 tokens, idle, with an empty cache.
fn idle() -> CandidateView<'static> {
    CandidateView {
        matched_blocks: 0,
        cached_tokens: 0,
        uncached_tokens: 4_000,
        hot_tokens: 0,
        queue_delay_seconds: 0.0,
        network_seconds: 0.000_5,
        evicted_ask_tokens: 0.0,
        booked_seconds: 0.0,
        arrivals_per_second: 0.0,
        in_flight: 0,
        running: 0,
        last_chosen: 0,
        saturated: false,
        fit: &FIT,
    }
}

fn holding(blocks: u32) -> CandidateView<'static> {
    let cached_tokens = blocks * 16;
    CandidateView {
        matched_blocks: blocks,
        cached_tokens,
        uncached_tokens: 4_000 - cached_tokens,
        ..idle()
    }
}

fn queued(seconds: f64, view: CandidateView<'static>) -> CandidateView<'static> {
    CandidateView { queue_delay_seconds: seconds, booked_seconds: seconds, ..view }
}

#[track_caller]
/// The choice with questions, and who was asked in order of the places.
fn choose_sparingly(config: &Config, views: &[CandidateView<'_>]) -> (Selection, Vec<usize>) {
    let field = Field::new(config, views.iter().map(Line::from));
    let mut asked = Vec::new();
    let selection = select_sparing(config, &field, |place| {
        asked.push(place);
        views[place].evicted_ask_tokens
    });
    asked.sort_unstable();
    (selection, asked)
}

fn assert_winner(candidates: &[CandidateView<'_>], winner: usize, reason: DecisionReason) {
    let selection = select(&Config::default(), candidates);
    assert_eq!(selection.ranked.first().map(|s| s.index), Some(winner), "{selection:#?}");
    assert_eq!(selection.reason, reason);
}

#[test]
fn work_is_charged_for_the_wait_it_adds_to_those_who_come_after_it() {
    let view = CandidateView { arrivals_per_second: 10.0, ..queued(0.2, holding(0)) };
    let parts = score(&Config::default(), &view, 5.0);
    let p = parts.prefill_seconds;
    assert!((parts.others_delay_seconds - 10.0 * p * (0.2 + p / 2.0)).abs() < 1e-12);
    let newcomer = CandidateView { arrivals_per_second: 0.0, ..view };
    let share = score(&Config::default(), &newcomer, 5.0).others_delay_seconds;
    assert!((2.0 * share - parts.others_delay_seconds).abs() < 1e-12, "the mean is the least");
    assert_eq!(score(&Config::default(), &newcomer, 0.0).others_delay_seconds, 0.0);
}

#[test]
fn on_a_busy_fleet_a_short_wait_is_better_than_a_second_copy_and_on_an_idle_one_not() {
    let warm = queued(1.5 * FIT.predict_seconds(4_000, 0), holding(249));
    for (per_second, winner) in [(0.0, 1), (50.0, 0)] {
        let busy = |view| CandidateView { arrivals_per_second: per_second, ..view };
        let views = [busy(warm), busy(holding(0))];
        assert_eq!(select(&Config::default(), &views).ranked[0].index, winner, "{per_second}/s");
    }
}

#[test]
fn the_warm_rank_wins_until_waiting_there_costs_more() {
    // 200 blocks are 3,200 tokens, about 0.17 s of prefill.
    assert_winner(&[idle(), holding(200)], 1, DecisionReason::WarmPrefix);
    assert_winner(&[idle(), queued(0.1, holding(200))], 1, DecisionReason::WarmPrefix);
    assert_winner(&[idle(), queued(0.3, holding(200))], 0, DecisionReason::WarmerRankTooBusy);
    let half_warm = [holding(50), queued(0.3, holding(200))];
    assert_winner(&half_warm, 0, DecisionReason::WarmerRankTooBusy);
}

#[test]
fn the_score_is_the_sum_of_its_parts() {
    let view = CandidateView {
        evicted_ask_tokens: 1_000.0,
        network_seconds: 0.01,
        ..queued(0.2, holding(100))
    };
    let selection = select(&Config::default(), &[view]);
    let scored = selection.ranked[0];
    assert_eq!(scored.parts.network_seconds, 0.01 + FIT.latency_seconds);
    assert_eq!(scored.parts.queue_delay_seconds, 0.2);
    assert_eq!(scored.parts.prefill_seconds, FIT.predict_seconds(2_400, 1_600));
    let again = FIT.per_token_seconds * 1_000.0;
    assert!((scored.parts.eviction_cost_seconds - again).abs() < 1e-12);
    assert_eq!(scored.total_seconds, scored.parts.total_seconds());
    assert_eq!(selection.reason, DecisionReason::OnlyCandidate);
}

#[test]
fn what_passes_at_once_is_waited_for_once() {
    let coefficients = *FIT;
    let parts = |view: CandidateView<'static>| score(&Config::default(), &view, 1.0);
    let busy = |view| CandidateView { running: 20, ..view };
    let step_wait = coefficients.step_wait_seconds(20);
    assert_eq!(parts(busy(idle())).queue_delay_seconds, step_wait);
    assert_eq!(parts(busy(queued(0.2, idle()))).queue_delay_seconds, 0.2);
    let longer = parts(busy(idle())).prefill_seconds - parts(idle()).prefill_seconds;
    assert!((longer - coefficients.decode_seconds(1.0, 20)).abs() < 1e-12);
}

#[test]
fn evicting_much_of_anothers_prefix_counts() {
    let crowded = CandidateView { evicted_ask_tokens: 4_000.0, ..holding(2) };
    assert_winner(&[crowded, idle()], 1, DecisionReason::WarmerRankTooBusy);
}

#[test]
fn ties_go_to_the_longer_match_then_to_less_booked_work_then_in_turn() {
    // One block is 0.8 ms, within the margin of 2 % of 0.2 s.
    let turn = |last_chosen, view| CandidateView { last_chosen, ..view };
    let first = turn(1, idle());
    assert_winner(&[first, turn(2, holding(1))], 1, DecisionReason::WarmPrefix);
    let busier = CandidateView { booked_seconds: 0.001, ..first };
    assert_winner(&[busier, turn(2, idle())], 1, DecisionReason::Cold);
    assert_winner(&[turn(2, idle()), first], 1, DecisionReason::Cold);
}

#[test]
fn a_tie_is_measured_from_the_best_total_alone() {
    // B is within the margin of A, and C within that of B but not of A. The longest match is
    // C's; going from pair to pair would reach it.
    let config = Config { tie_margin_fraction: 0.0, ..Config::default() };
    let a = holding(0);
    let b = queued(0.001_5 + 0.000_8 * 1.05, holding(1));
    let c = queued(0.003 + 0.000_8 * 2.1, holding(2));
    for order in [[a, b, c], [c, b, a], [b, c, a]] {
        let best = select(&config, &order).ranked[0].index;
        assert_eq!(order[best].matched_blocks, 1);
    }
}

#[test]
fn idle_and_equal_ranks_take_turns() {
    let mut turns = [1, 2, 3, 4];
    let mut chosen = Vec::new();
    for turn in 5..13 {
        let views = turns.map(|turn| CandidateView { last_chosen: turn, ..idle() });
        let winner = select(&Config::default(), &views).ranked[0].index;
        turns[winner] = turn;
        chosen.push(winner);
    }
    assert_eq!(chosen, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn saturation_changes_the_reason_and_never_the_order() {
    let views = [idle(), queued(0.1, holding(200)), queued(0.3, holding(250))];
    let free = select(&Config::default(), &views);
    for mask in 0..8_u8 {
        let mut some = views;
        for (bit, view) in some.iter_mut().enumerate() {
            view.saturated = mask & (1 << bit) != 0;
        }
        let selection = select(&Config::default(), &some);
        assert_eq!(selection.ranked, free.ranked);
        let expected = if mask == 7 { DecisionReason::AllSaturated } else { free.reason };
        assert_eq!(selection.reason, expected);
    }
}

#[test]
fn a_slower_engine_is_charged_its_own_time() {
    let slow = PrefillFit::new(crate::Coefficients {
        per_token_seconds: 1e-3,
        ..crate::Coefficients::DEFAULT
    });
    let warm_and_slow = CandidateView { fit: slow.as_ref(), ..holding(100) };
    assert_winner(&[warm_and_slow, idle()], 1, DecisionReason::WarmerRankTooBusy);
}

#[test]
fn a_rank_whose_queue_is_longer_than_the_best_costs_is_not_asked_what_it_would_evict() {
    let views = (0..100)
        .map(|at| CandidateView { evicted_ask_tokens: 100.0, ..queued(f64::from(at), idle()) });
    let (_, asked) = choose_sparingly(&Config::default(), &views.collect::<Vec<_>>());
    assert_eq!(asked, (0..RANKED_LIMIT).collect::<Vec<_>>());
}

#[test]
fn least_load_goes_by_requests_and_round_robin_by_turn() {
    let view = |in_flight, last_chosen, matched| CandidateView {
        in_flight,
        last_chosen,
        ..holding(matched)
    };
    let views = [view(3, 1, 200), view(2, 9, 0), view(2, 4, 0), view(7, 0, 0)];
    let indices = |policy| {
        let selection = select(&Config { policy, ..Config::default() }, &views);
        let order: Vec<usize> = selection.ranked.iter().map(|s| s.index).collect();
        (order, selection.reason)
    };
    assert_eq!(indices(Policy::LeastLoad), (vec![2, 1, 0, 3], DecisionReason::LeastLoad));
    assert_eq!(indices(Policy::RoundRobin), (vec![3, 0, 2, 1], DecisionReason::RoundRobin));
}

#[test]
fn nothing_to_choose_from_is_an_empty_list() {
    for policy in Policy::ALL {
        assert_eq!(select(&Config { policy, ..Config::default() }, &[]).ranked, []);
    }
}

#[test]
fn inputs_that_make_no_sense_lose_and_do_no_harm() {
    for bad in [f64::NAN, f64::INFINITY] {
        assert_winner(&[queued(bad, holding(200)), idle()], 1, DecisionReason::WarmerRankTooBusy);
        let alone = select(&Config::default(), &[queued(bad, idle()), queued(bad, idle())]);
        assert_eq!(alone.ranked.len(), 2);
        assert!(alone.ranked[0].total_seconds.is_finite());
    }
    let negative = select(&Config::default(), &[queued(-5.0, idle())]);
    assert!(negative.ranked[0].total_seconds > 0.0);
}

#[test]
fn policies_are_named_alike_in_text_and_in_serde() {
    for policy in Policy::ALL {
        assert_eq!(policy.as_str().parse(), Ok(policy));
        let json = serde_json::to_string(&policy).expect("a unit variant");
        assert_eq!(json, format!("\"{policy}\""));
        assert_eq!(serde_json::from_str::<Policy>(&json).expect("its own text"), policy);
    }
    let error = "fastest".parse::<Policy>().expect_err("there is none");
    assert!(error.to_string().contains("fastest") && error.to_string().contains("least-load"));
}

/// Values from small sets, so that ties and near ties are common; turns are set apart later.
fn any_view() -> impl Strategy<Value = CandidateView<'static>> {
    (0..6_u32, 0..8_u32, 0..4_u32, 0..3_u32, 0..4_u32, any::<bool>()).prop_map(
        |(blocks, queue, evict, booked, in_flight, saturated)| CandidateView {
            queue_delay_seconds: f64::from(queue) * 0.001,
            booked_seconds: f64::from(booked) * 0.001,
            evicted_ask_tokens: f64::from(evict * 100),
            in_flight,
            saturated,
            ..holding(blocks * 2)
        },
    )
}

fn any_views(most: usize) -> impl Strategy<Value = Vec<CandidateView<'static>>> {
    prop::collection::vec((any_view(), any::<u32>()), 1..most).prop_map(|drawn| {
        let mut views: Vec<_> = drawn.iter().map(|(view, _)| *view).collect();
        for (place, (view, (_, turn))) in views.iter_mut().zip(&drawn).enumerate() {
            view.last_chosen = u64::from(*turn) << 16 | place as u64;
        }
        views
    })
}

/// With others that generate there, requests that come later, and hot prefixes.
fn any_busy_views(most: usize) -> impl Strategy<Value = Vec<CandidateView<'static>>> {
    let more = (0..40_u32, 0..60_u32, 0..20_000_u32, 0..3_u32);
    any_views(most).prop_flat_map(move |views| {
        let more = prop::collection::vec(more.clone(), views.len());
        more.prop_map(move |more| {
            let busy = views.iter().zip(more).map(|(view, (running, arrivals, longer, hot))| {
                CandidateView {
                    running,
                    arrivals_per_second: f64::from(arrivals) / 7.0,
                    uncached_tokens: view.uncached_tokens + longer,
                    hot_tokens: hot * 16,
                    ..*view
                }
            });
            busy.collect()
        })
    })
}

fn any_config() -> impl Strategy<Value = Config> {
    (prop::sample::select(&Policy::ALL), 0.0..0.1_f64, 0.0..0.005_f64).prop_map(
        |(policy, tie_margin_fraction, tie_margin_seconds)| Config {
            policy,
            tie_margin_fraction,
            tie_margin_seconds,
            ..Config::default()
        },
    )
}

/// The winner by definition, found the slow way: nothing that ties with the best may beat it.
/// The score by the formula of the crate's page, part by part and with nothing prepared.
fn naive_parts(config: &Config, view: &CandidateView<'_>, arrivals_per_rank: f64) -> ScoreParts {
    let fit = view.fit;
    let (uncached, cached, running) = (view.uncached_tokens, view.cached_tokens, view.running);
    let at_least_nothing = |value: f64| value.max(0.0);
    let evicted = config.eviction_weight * fit.per_token_seconds * view.evicted_ask_tokens;
    let delay = view.queue_delay_seconds;
    let arrivals = view.arrivals_per_second.max(arrivals_per_rank);
    let others = |prefill: f64| {
        let work = prefill + evicted;
        arrivals * work * (delay + work / 2.0)
    };
    let prefill = fit.prefill_seconds(uncached, cached, running);
    let hot = view.hot_tokens.min(cached);
    let whole = fit.prefill_seconds(uncached + hot, cached - hot, running);
    let charge = if hot > 0 { whole - prefill + others(whole) - others(prefill) } else { 0.0 };
    ScoreParts {
        network_seconds: view.network_seconds + fit.latency_seconds,
        queue_delay_seconds: delay.max(fit.step_wait_seconds(running)),
        prefill_seconds: prefill,
        eviction_cost_seconds: at_least_nothing(evicted),
        others_delay_seconds: at_least_nothing(others(prefill)),
        hot_prefix_seconds: at_least_nothing(charge),
    }
}

fn naive_winner(config: &Config, views: &[CandidateView<'_>]) -> u64 {
    let total = |view: &CandidateView<'_>| {
        view.network_seconds
            + view.fit.latency_seconds
            + view.queue_delay_seconds
            + view.fit.predict_seconds(view.uncached_tokens, view.cached_tokens)
            + config.eviction_weight * view.fit.per_token_seconds * view.evicted_ask_tokens
    };
    let mut tied = views.to_vec();
    match config.policy {
        Policy::Prefix => {
            let best = views.iter().map(total).fold(f64::INFINITY, f64::min);
            let margin = (config.tie_margin_fraction * best).max(config.tie_margin_seconds);
            tied.retain(|v| total(v) <= best + margin);
            let longest = tied.iter().map(|v| v.cached_tokens).max().unwrap_or(0);
            tied.retain(|v| v.cached_tokens == longest);
            let least = tied.iter().map(|v| v.booked_seconds).fold(f64::INFINITY, f64::min);
            tied.retain(|v| v.booked_seconds == least);
        }
        Policy::LeastLoad => {
            let least = tied.iter().map(|v| v.in_flight).min().unwrap_or(0);
            tied.retain(|v| v.in_flight == least);
        }
        Policy::RoundRobin => {}
    }
    tied.iter().map(|v| v.last_chosen).min().expect("someone is left")
}

#[test]
fn what_the_first_batch_costs_spares_the_later_ones_their_questions() {
    // Those that look best by all else would evict much.
    let view = |place: usize| match place {
        0..50 => CandidateView { evicted_ask_tokens: 1e6, ..idle() },
        50..100 => queued(0.05, idle()),
        _ => queued(5.0, idle()),
    };
    let views: Vec<_> = (0..300).map(view).collect();
    let (selection, asked) = choose_sparingly(&Config::default(), &views);
    assert_eq!(asked, (0..100).collect::<Vec<_>>());
    assert!((50..100).contains(&selection.ranked[0].index));
}

proptest! {
    #[test]
    fn up_to_the_limit_the_result_is_a_permutation_with_the_winner_first(
        config in any_config(),
        views in any_views(30),
    ) {
        let Selection { ranked, arrivals_per_rank: arrivals, .. } = select(&config, &views);
        prop_assert_eq!(ranked.len(), views.len().min(RANKED_LIMIT));
        let mut seen: Vec<usize> = ranked.iter().map(|s| s.index).collect();
        prop_assert_eq!(views[seen[0]].last_chosen, naive_winner(&config, &views));
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), ranked.len());
        prop_assert!(seen.iter().all(|index| *index < views.len()));
        if config.policy == Policy::Prefix {
            let rest = &ranked[1..];
            prop_assert!(rest.is_sorted_by(|a, b| a.total_seconds <= b.total_seconds));
            // Nobody outside the list would have been better.
            let worst = rest.last().map_or(f64::INFINITY, |s| s.total_seconds);
            for (index, view) in views.iter().enumerate() {
                let outside = !ranked.iter().any(|s| s.index == index);
                prop_assert!(!outside || score(&config, view, arrivals).total_seconds() >= worst);
            }
        }
    }

    #[test]
    fn the_result_does_not_depend_on_the_order_of_the_candidates(
        config in any_config(),
        (views, shuffled) in any_views(20).prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle())),
    ) {
        let turns = |views: &[CandidateView<'_>]| -> Vec<u64> {
            select(&config, views).ranked.iter().map(|s| views[s.index].last_chosen).collect()
        };
        prop_assert_eq!(turns(&views), turns(&shuffled));
        prop_assert_eq!(select(&config, &views).reason, select(&config, &shuffled).reason);
    }

    #[test]
    fn the_prepared_score_is_the_formula_to_the_last_bit(
        config in any_config(),
        views in any_busy_views(12),
    ) {
        let arrivals = arrivals_per_rank(&views);
        let field = Field::new(&config, views.iter().map(Line::from));
        for (place, view) in views.iter().enumerate() {
            let parts = naive_parts(&config, view, arrivals);
            prop_assert_eq!(score(&config, view, arrivals), parts);
            prop_assert_eq!(field.score(place, view.evicted_ask_tokens), parts);
            let total = parts.total_seconds();
            prop_assert_eq!(field.total(place, view.evicted_ask_tokens), total);
            let mut totals = [0.0];
            field.total_of(place..place + 1, &[view.evicted_ask_tokens], &mut totals);
            prop_assert_eq!(totals, [total]);
        }
    }

    #[test]
    fn asking_sparingly_chooses_and_ranks_as_asking_for_all(
        config in any_config(),
        views in any_busy_views(300),
        all_idle in any::<bool>(),
    ) {
        let mut views = views;
        if all_idle {
            views.iter_mut().for_each(|view| view.queue_delay_seconds = 0.0);
        }
        let (sparing, mut asked) = choose_sparingly(&config, &views);
        prop_assert_eq!(sparing, select(&config, &views));
        let questions = asked.len();
        asked.dedup();
        prop_assert_eq!(asked.len(), questions, "nobody is asked twice");
    }

    #[test]
    fn getting_worse_never_makes_a_winner(
        config in any_config(),
        views in any_views(12),
        who in any::<prop::sample::Index>(),
        worse in (0..3_u32, 0..5_u32, 0..5_u32, 0..3_u32, 0..3_u32, 0..2_u64),
    ) {
        let before = select(&config, &views).ranked[0].index;
        let who = who.index(views.len());
        prop_assume!(who != before);
        let mut changed = views.clone();
        let view = &mut changed[who];
        let lost = (worse.0 * 32).min(view.cached_tokens);
        view.cached_tokens -= lost;
        view.uncached_tokens += lost;
        view.matched_blocks -= lost / 16;
        view.queue_delay_seconds += f64::from(worse.1) * 0.0007;
        view.evicted_ask_tokens += f64::from(worse.2 * 40);
        view.booked_seconds += f64::from(worse.3) * 0.001;
        view.in_flight += worse.4;
        view.last_chosen += worse.5 << 48;
        prop_assert_ne!(select(&config, &changed).ranked[0].index, who);
    }
}
