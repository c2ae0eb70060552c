use domain::{LeaseId, LoadSample, Moment};
use proptest::prelude::*;

use super::*;
use crate::Shape;

fn at(seconds: f64) -> Moment {
    Moment::from_secs_f64(seconds)
}

fn work(uncached_tokens: u32, prefill_seconds: f64) -> Work {
    Work { uncached_tokens, cached_tokens: 0, prefill_seconds, latency_seconds: 0.0, blocks: 100 }
}

fn prompt(uncached_tokens: u32, cached_tokens: u32) -> Prompt {
    Prompt { uncached_tokens, cached_tokens, blocks: 50 }
}

const A: LeaseId = LeaseId(1);
const B: LeaseId = LeaseId(2);
const C: LeaseId = LeaseId(3);

/// Prompts so long that no two of them share a step.
const LONG: u32 = 10_000;

/// The leases that are due, all of which fit.
fn starts(book: &mut LoadBook, now: Moment) -> Vec<LeaseId> {
    let mut started = Vec::new();
    book.start_due(now, |lease, _| {
        started.push(lease);
        true
    });
    started
}

#[track_caller]
fn assert_delay(book: &LoadBook, now: f64, expected: f64) {
    let delay = book.queue_delay_seconds(at(now));
    assert!((delay - expected).abs() < 1e-6, "{delay} at {now}, not {expected}");
}

#[test]
fn the_delay_is_the_predicted_prefill_less_the_time_spent() {
    let mut book = LoadBook::new();
    assert_delay(&book, 0.0, 0.0);
    book.book(A, work(LONG, 1.0), true, at(10.0));
    book.book(B, work(LONG, 2.0), true, at(10.5));
    assert_delay(&book, 10.5, 2.5);
    assert_delay(&book, 10.9, 2.1);
    // The first one finishes earlier than predicted.
    book.first_token(A, at(10.9));
    assert_delay(&book, 10.9, 2.0);
    assert_delay(&book, 11.9, 1.0);
    assert_delay(&book, 20.0, 0.0);
    assert_eq!((book.in_flight(), book.running()), (2, 1));
}

#[test]
fn one_slow_prefill_does_not_make_those_behind_it_look_finished() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), true, at(0.0));
    book.book(B, work(LONG, 1.0), true, at(0.0));
    book.book(C, work(LONG, 1.0), true, at(0.0));
    assert_delay(&book, 30.0, 2.0);
}

#[test]
fn behind_other_prefills_the_fixed_cost_is_not_paid_again() {
    let fit = PrefillFit::new(Coefficients::DEFAULT);
    let coefficients = fit.coefficients();
    let mut book = LoadBook::new();
    let alone = book.work(&fit, prompt(500, 300), 0.0, at(1.0));
    assert_eq!(alone.prefill_seconds, coefficients.predict_seconds(500, 300));
    assert_eq!(alone.latency_seconds, coefficients.latency_seconds);
    book.book(A, alone, true, at(1.0));
    let behind = book.work(&fit, prompt(500, 300), 0.0, at(1.0));
    assert_eq!(behind.prefill_seconds, coefficients.token_seconds(500, 300));
    assert_eq!((behind.uncached_tokens, behind.cached_tokens), (500, 300));
    book.first_token(A, at(1.1));
    // Now it decodes: the next one waits for half of its step and shares another with it.
    let beside = book.work(&fit, prompt(500, 300), 0.0, at(1.2)).prefill_seconds;
    assert!((beside - alone.prefill_seconds - coefficients.decode_seconds(1.5, 1)).abs() < 1e-12);
    book.end(A, at(1.3));
    assert_eq!(book.work(&fit, prompt(500, 300), 0.0, at(1.4)), alone);
}

#[test]
fn short_prompts_share_a_step_and_the_time_spent_on_it() {
    let mut book = LoadBook::new();
    for lease in 0..10 {
        book.book(LeaseId(lease), work(500, 0.1), true, at(0.0));
    }
    assert_delay(&book, 0.9, 0.1);
    assert_delay(&book, 5.0, 0.0);
}

#[test]
fn what_does_not_stream_finishes_at_its_predicted_time() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), false, at(0.0));
    book.book(B, work(LONG, 1.0), false, at(0.0));
    book.book(C, work(LONG, 1.0), true, at(0.0));
    assert_delay(&book, 2.5, 0.5);
    assert_eq!(starts(&mut book, at(2.5)), [A, B, C]);
    assert_eq!(book.running(), 2);
    assert_delay(&book, 2.5, 0.5);
    // The mistake of a prediction does not pile up: the first token is what counts.
    book.first_token(C, at(2.6));
    assert_delay(&book, 2.6, 0.0);
}

#[test]
fn the_first_token_of_a_later_booking_closes_the_earlier_ones() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), true, at(0.0));
    book.book(B, work(LONG, 1.0), true, at(0.0));
    book.book(C, work(LONG, 1.0), true, at(0.0));
    book.first_token(B, at(2.0));
    assert_eq!(book.running(), 2);
    assert_delay(&book, 2.0, 1.0);
    assert_eq!(book.first_token(A, at(2.1)), None);
    assert_delay(&book, 2.1, 0.9);
}

#[test]
fn a_request_with_nothing_ahead_is_a_sample() {
    let mut book = LoadBook::new();
    let predicted = Work { cached_tokens: 320, ..work(700, 0.1) };
    book.book(A, predicted, true, at(5.0));
    let sample = book.first_token(A, at(5.25)).expect("nothing was ahead");
    assert_eq!(sample.shape, Shape { latencies: 1.0, ..Shape::prefill(700, 320) });
    assert!((sample.seconds - 0.25).abs() < 1e-9);
    assert!((sample.engine_seconds(0.05) - 0.20).abs() < 1e-9);
    assert_eq!(book.first_token(A, at(5.3)), None, "only the first token counts");
}

#[test]
fn prompts_that_overlap_are_one_sample_of_their_mean() {
    let mut book = LoadBook::new();
    book.book(A, work(100, 0.1), true, at(0.0));
    book.book(B, work(300, 0.1), true, at(0.1));
    assert_eq!(book.first_token(A, at(0.2)), None);
    let sample = book.first_token(B, at(0.4)).expect("the queue is empty");
    assert!((sample.seconds - 0.2).abs() < 1e-9);
    let Shape { latencies, steps, tokens, pairs, .. } = sample.shape;
    assert_eq!((latencies, steps, tokens), (0.5, 1.0, 200.0));
    assert_eq!(pairs, (100.0 * 100.0 + 300.0 * 300.0) / 2.0 / 2.0);
}

#[test]
fn a_rank_that_is_never_idle_still_gives_samples_of_its_rate() {
    let mut book = LoadBook::new();
    let mut samples = Vec::new();
    book.book(LeaseId(0), work(4_096, 0.2), true, at(0.0));
    for n in 0..100_u32 {
        let lease = LeaseId(u64::from(n));
        book.book(LeaseId(u64::from(n) + 1), work(4_096, 0.2), true, at(f64::from(n) * 0.5));
        samples.extend(book.first_token(lease, at(f64::from(n + 1) * 0.5)));
        book.end(lease, at(f64::from(n + 1) * 0.5));
    }
    assert_eq!(samples.len(), 25);
    for (index, sample) in samples.iter().enumerate() {
        assert_eq!(sample.shape.tokens, 4_096.0);
        assert!((sample.seconds - 0.5).abs() < 1e-6);
        assert_eq!(
            sample.shape.latencies > 0.0,
            index == 0,
            "only the first was sent into silence"
        );
    }
}

#[test]
fn a_busy_rank_that_serves_from_its_cache_gives_samples_too() {
    let mut book = LoadBook::new();
    let hit = Work { cached_tokens: 4_000, ..work(1, 0.005) };
    book.book(LeaseId(0), hit, true, at(0.0));
    let mut samples = Vec::new();
    for n in 0..320_u32 {
        book.book(LeaseId(u64::from(n) + 1), hit, true, at(f64::from(n) * 0.01));
        samples.extend(book.first_token(LeaseId(u64::from(n)), at(f64::from(n + 1) * 0.01)));
    }
    assert_eq!(samples.len(), 10);
    assert!(samples.iter().all(|s| s.shape.tokens == 1.0));
    assert!(samples.iter().all(|s| (s.seconds - 0.01).abs() < 1e-6));
}

#[test]
fn a_prefill_that_was_given_up_is_in_no_sample() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), true, at(0.0));
    book.book(B, work(LONG, 1.0), true, at(0.0));
    assert!(book.end(A, at(0.6)));
    assert_delay(&book, 0.6, 1.0);
    assert_eq!(book.first_token(B, at(1.4)), None);
    // The next one into the idle rank is a sample again.
    book.book(C, work(LONG, 1.0), true, at(2.0));
    assert!(book.first_token(C, at(3.0)).is_some());
}

#[test]
fn a_rank_whose_last_prefill_was_only_predicted_to_end_is_not_taken_for_idle() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), false, at(0.0));
    book.book(B, work(LONG, 1.0), true, at(1.1));
    assert_eq!(book.first_token(B, at(3.0)), None, "the other may have run on");
    book.book(C, work(LONG, 1.0), true, at(3.0));
    assert!(book.first_token(C, at(4.0)).is_some(), "a first token was seen since");
    book.book(LeaseId(4), work(LONG, 1.0), false, at(5.0));
    book.book(LeaseId(5), work(LONG, 1.0), true, at(7.5));
    assert!(book.first_token(LeaseId(5), at(8.5)).is_some(), "twice its time has passed");
}

#[test]
fn a_request_that_does_not_stream_can_stand_in_the_middle_of_a_span() {
    let mut book = LoadBook::new();
    book.book(A, work(1_000, 0.1), false, at(0.0));
    book.book(B, work(1_000, 0.1), true, at(0.0));
    let sample = book.first_token(B, at(0.3)).expect("both ends were seen");
    assert_eq!(sample.shape.tokens, 1_000.0);
    assert!((sample.seconds - 0.15).abs() < 1e-9);
}

#[test]
fn starts_are_told_once_in_order_and_when_due() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), true, at(0.0));
    book.book(B, work(LONG, 1.0), true, at(0.0));
    book.book(C, work(LONG, 1.0), true, at(0.0));
    assert_eq!(starts(&mut book, at(0.0)), [A]);
    assert_eq!(starts(&mut book, at(0.5)), []);
    // The first is late, and it fills its steps alone: nothing else has begun.
    assert_eq!(starts(&mut book, at(1.5)), []);
    book.first_token(A, at(1.6));
    assert_eq!(starts(&mut book, at(1.6)), [B]);
    // An early finish is a start, too.
    book.first_token(C, at(1.7));
    assert_eq!(starts(&mut book, at(1.7)), [C]);
    assert_eq!(starts(&mut book, at(9.0)), []);
}

#[test]
fn short_prompts_start_by_the_clock_as_they_share_a_step() {
    let mut book = LoadBook::new();
    for lease in 1..=3 {
        book.book(LeaseId(lease), work(100, 0.1), true, at(0.0));
    }
    assert_eq!(starts(&mut book, at(0.05)), [A]);
    assert_eq!(starts(&mut book, at(0.15)), [B]);
    assert_eq!(starts(&mut book, at(0.25)), [C]);
}

#[test]
fn an_ended_lease_never_starts() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), true, at(0.0));
    book.book(B, work(LONG, 1.0), true, at(0.0));
    book.first_token(B, at(2.0));
    assert!(book.end(A, at(2.0)));
    assert!(!book.end(A, at(2.0)));
    assert_eq!(starts(&mut book, at(2.0)), [B]);
}

#[test]
fn a_lease_that_is_booked_twice_is_one_request() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), true, at(0.0));
    book.book(A, work(LONG, 3.0), true, at(0.0));
    assert_eq!(book.in_flight(), 1);
    assert_delay(&book, 0.0, 3.0);
}

#[test]
fn predictions_that_make_no_sense_do_no_harm() {
    let mut book = LoadBook::new();
    for (lease, seconds) in [f64::NAN, -1.0, f64::NEG_INFINITY].into_iter().enumerate() {
        book.book(LeaseId(lease as u64), work(LONG, seconds), true, at(0.0));
    }
    assert_delay(&book, 0.0, 0.0);
    book.book(LeaseId(9), work(LONG, f64::INFINITY), true, at(0.0));
    assert!(book.queue_delay_seconds(at(0.0)).is_finite());
}

fn reading(seconds: f64, running: u32, waiting: u32) -> LoadSample {
    LoadSample {
        at: at(seconds),
        running,
        waiting,
        kv_usage: None,
        preemptions: None,
        prefix_cache: None,
    }
}

#[test]
fn our_own_requests_are_not_foreign() {
    let mut book = LoadBook::new();
    for lease in 0..20 {
        book.book(LeaseId(lease), work(100, 0.01), true, at(1.0));
    }
    for lease in 0..15 {
        book.first_token(LeaseId(lease), at(1.5));
    }
    // One more than ours is one on its way.
    book.observe_load(&reading(2.0, 15, 6), at(2.0));
    assert_eq!(book.foreign_requests(at(2.0)), 0.0);
    let own = book.booked_seconds(at(2.0));
    assert_eq!(book.queue_delay_seconds(at(2.0)), own);
}

#[test]
fn a_reading_is_compared_with_what_we_had_at_its_time() {
    let mut book = LoadBook::new();
    for lease in 0..20 {
        book.book(LeaseId(lease), work(100, 0.01), true, at(1.0));
    }
    for lease in 0..20 {
        book.end(LeaseId(lease), at(2.0));
    }
    // The page was read before they ended, and arrives after.
    book.observe_load(&reading(1.5, 10, 10), at(2.2));
    assert_eq!(book.foreign_requests(at(2.2)), 0.0);
    // And one that was read while they ended is given the benefit of the doubt.
    book.observe_load(&reading(2.01, 15, 0), at(2.2));
    assert_eq!(book.foreign_requests(at(2.2)), 0.0);
}

#[test]
fn foreign_requests_that_wait_are_part_of_the_delay() {
    let mut book = LoadBook::new();
    for lease in 0..200 {
        book.book(LeaseId(lease), work(LONG, 0.5), true, at(1.0));
        book.end(LeaseId(lease), at(1.0));
    }
    book.observe_load(&reading(2.0, 8, 4), at(2.0));
    assert_eq!(book.foreign_requests(at(2.0)), 12.0);
    let delay = book.queue_delay_seconds(at(2.0));
    assert!((delay - 4.0 * 0.5).abs() < 0.02, "{delay}");
    assert_eq!(book.booked_seconds(at(2.0)), 0.0);
}

#[test]
fn the_foreign_estimate_is_smoothed_counts_a_reading_once_and_ages() {
    let mut book = LoadBook::new();
    book.observe_load(&reading(1.0, 0, 0), at(1.0));
    for _ in 0..10 {
        book.observe_load(&reading(2.0, 10, 0), at(2.0));
    }
    let once = book.foreign_requests(at(2.0));
    assert!((once - 3.0).abs() < 1e-9, "{once}");
    for second in 3..15 {
        book.observe_load(&reading(f64::from(second), 10, 0), at(f64::from(second)));
    }
    assert!(book.foreign_requests(at(15.0)) > 9.5);
    assert_eq!(book.foreign_requests(at(30.0)), 0.0, "nothing was read for long");
}

#[test]
fn a_reading_from_before_the_books_memory_is_ignored() {
    let mut book = LoadBook::new();
    for n in 0..2_000_u32 {
        let now = at(1.0 + f64::from(n) * 0.02);
        book.book(LeaseId(u64::from(n)), work(10, 0.001), true, now);
        book.end(LeaseId(u64::from(n)), now);
    }
    book.observe_load(&reading(1.0, 50, 0), at(41.0));
    assert_eq!(book.foreign_requests(at(41.0)), 0.0);
    book.observe_load(&reading(40.9, 50, 0), at(41.0));
    assert!(book.foreign_requests(at(41.0)) > 45.0);
}

#[test]
fn requests_on_their_way_have_their_latency_at_once() {
    let mut book = LoadBook::new();
    let late = |seconds| Work { latency_seconds: 0.06, ..work(LONG, seconds) };
    book.book(A, late(0.1), true, at(0.0));
    // It begins when it arrives, and so would the next one.
    assert_eq!(starts(&mut book, at(0.05)), []);
    assert_delay(&book, 0.0, 0.1);
    assert_delay(&book, 0.04, 0.06);
    assert_delay(&book, 0.2, 0.0);
    assert_eq!(starts(&mut book, at(0.07)), [A]);
}

#[test]
fn a_request_that_was_still_on_its_way_is_a_sample_of_its_own() {
    let mut book = LoadBook::new();
    let late = Work { latency_seconds: 0.06, ..work(500, 0.01) };
    book.book(A, late, true, at(0.0));
    book.book(B, late, true, at(0.05));
    let first = book.first_token(A, at(0.07)).expect("B has not arrived");
    assert_eq!(first.shape, Shape { latencies: 1.0, ..Shape::prefill(500, 0) });
    let second = book.first_token(B, at(0.12)).expect("nothing was ahead");
    assert!((second.seconds - 0.07).abs() < 1e-9);
    assert_eq!(second.shape.latencies, 1.0);
    assert_eq!((second.shape.decode_steps, second.shape.decode_running), (1.5, 1.5));
}

#[test]
fn what_does_not_fit_waits_with_all_behind_it_and_is_no_sample() {
    let mut book = LoadBook::new();
    for lease in [A, B, C] {
        book.book(lease, work(100, 0.1), true, at(0.0));
    }
    let mut asked = Vec::new();
    book.start_due(at(0.5), |lease, due| {
        asked.push((lease, due));
        lease == A
    });
    assert_eq!(asked, [(A, Due::Predicted), (B, Due::Predicted)]);
    assert_eq!(book.first_token(A, at(1.0)), None, "time went by without work");
    // Time that passes without room is no work done.
    book.start_due(at(5.0), |_, _| false);
    assert_delay(&book, 5.0, 0.2);
    assert_eq!(starts(&mut book, at(6.0)), [B]);
    assert_delay(&book, 6.0, 0.2);
    // The engine had room after all: what is seen counts.
    book.first_token(C, at(6.1));
    assert_eq!(starts(&mut book, at(6.1)), [C]);
}

#[test]
fn what_does_not_stream_does_not_finish_while_it_has_no_room() {
    let mut book = LoadBook::new();
    book.book(A, work(LONG, 1.0), false, at(0.0));
    book.start_due(at(0.0), |_, _| false);
    assert_delay(&book, 9.0, 0.0);
    book.start_due(at(9.0), |_, _| true);
    assert_eq!(book.running(), 0);
    assert_delay(&book, 9.0, 1.0);
    assert_eq!(starts(&mut book, at(10.0)), []);
    assert_eq!(book.running(), 1);
}

#[test]
fn the_wait_for_room_is_the_line_over_what_ends_in_a_second() {
    let mut book = LoadBook::new();
    assert_eq!(book.room_delay_seconds(100, false, at(0.0)), 0.0, "nothing is known yet");
    for n in 0..400_u32 {
        let now = at(f64::from(n) * 0.5);
        book.book(LeaseId(u64::from(n)), work(100, 0.01), true, now);
        book.first_token(LeaseId(u64::from(n)), now);
        book.end(LeaseId(u64::from(n)), now);
    }
    let now = at(200.0);
    assert_eq!(book.room_delay_seconds(100, true, now), 0.0);
    let alone = book.room_delay_seconds(100, false, now);
    assert!((alone - 0.5).abs() < 0.02, "{alone}");
    for lease in 1_000..1_009 {
        book.book(LeaseId(lease), work(100, 0.01), true, now);
    }
    let last = book.room_delay_seconds(100, false, now);
    assert!((last - 5.0).abs() < 0.2, "{last}");
    // Behind one that was refused even a prompt that fits has to wait.
    assert_eq!(book.room_delay_seconds(1, true, now), 0.0);
    book.start_due(now, |_, _| false);
    assert!(book.room_delay_seconds(1, true, now) > 4.0);
}

#[derive(Clone, Debug)]
enum Step {
    Book { lease: u64, tokens: u32, seconds: f64, streaming: bool },
    FirstToken { lease: u64 },
    End { lease: u64 },
    Starts,
    Wait { millis: u64 },
}

fn any_step() -> impl Strategy<Value = Step> {
    let lease = 0..12_u64;
    prop_oneof![
        4 => (lease.clone(), 0..20_000_u32, 0.0..2.0_f64, any::<bool>()).prop_map(
            |(lease, tokens, seconds, streaming)| Step::Book { lease, tokens, seconds, streaming }
        ),
        3 => lease.clone().prop_map(|lease| Step::FirstToken { lease }),
        2 => lease.prop_map(|lease| Step::End { lease }),
        2 => Just(Step::Starts),
        3 => (0..900_u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

proptest! {
    /// Against a model that keeps only who is booked and what was told.
    #[test]
    fn whatever_happens_counts_and_delays_stay_right(
        steps in prop::collection::vec(any_step(), 0..120),
    ) {
        let mut book = LoadBook::new();
        let mut booked = std::collections::BTreeMap::new();
        let mut told = std::collections::BTreeSet::new();
        let mut now = Moment::from_nanos(1);
        for step in steps {
            match step {
                Step::Book { lease, tokens, seconds, streaming } => {
                    book.book(LeaseId(lease), work(tokens, seconds), streaming, now);
                    booked.insert(lease, seconds);
                    told.remove(&lease);
                }
                Step::FirstToken { lease } => {
                    if let Some(sample) = book.first_token(LeaseId(lease), now) {
                        prop_assert!(booked.contains_key(&lease));
                        prop_assert!(sample.seconds.is_finite() && sample.seconds > 0.0);
                        prop_assert!((0.0..=1.0).contains(&sample.shape.latencies));
                    }
                }
                Step::End { lease } => {
                    prop_assert_eq!(
                        book.end(LeaseId(lease), now),
                        booked.remove(&lease).is_some()
                    );
                    told.remove(&lease);
                }
                Step::Starts => {
                    for lease in starts(&mut book, now) {
                        prop_assert!(booked.contains_key(&lease.0), "{lease:?} has ended");
                        prop_assert!(told.insert(lease.0), "{lease:?} was told twice");
                    }
                }
                Step::Wait { millis } => now = now + Duration::from_millis(millis),
            }
            prop_assert_eq!(book.in_flight() as usize, booked.len());
            prop_assert!(book.running() <= book.in_flight());
            let delay = book.queue_delay_seconds(now);
            let all: f64 = booked.values().sum();
            prop_assert!((0.0..=all + 1e-6).contains(&delay), "{} of {}", delay, all);
            let later = book.queue_delay_seconds(now + Duration::from_millis(100));
            prop_assert!(later <= delay && later >= delay - 0.1 - 1e-9);
        }
        for lease in starts(&mut book, now) {
            told.insert(lease.0);
        }
        for lease in booked.keys() {
            book.first_token(LeaseId(*lease), now);
        }
        let rest: Vec<u64> = starts(&mut book, now).iter().map(|l| l.0).collect();
        for lease in &rest {
            prop_assert!(told.insert(*lease));
        }
        prop_assert_eq!(told.into_iter().collect::<Vec<_>>(), booked.into_keys().collect::<Vec<_>>());
        prop_assert_eq!(book.booked_seconds(now), 0.0);
    }
}

proptest! {
    #[test]
    fn asking_for_starts_only_when_due_is_asking_all_the_time(
        steps in prop::collection::vec((any_step(), any::<u8>()), 0..120),
    ) {
        let (mut asked, mut spared) = (LoadBook::new(), LoadBook::new());
        let mut now = Moment::from_nanos(1);
        for (step, room) in steps {
            let start = |book: &mut LoadBook| {
                let mut told = Vec::new();
                book.start_due(now, |lease, due| {
                    told.push((lease, due));
                    u64::from(room) % 5 != lease.0 % 5
                });
                told
            };
            let told = start(&mut asked);
            let due = spared.next_due().is_some_and(|due| due <= now);
            prop_assert_eq!(if due { start(&mut spared) } else { Vec::new() }, told);
            for book in [&mut asked, &mut spared] {
                match step {
                    Step::Book { lease, tokens, seconds, streaming } => {
                        book.book(LeaseId(lease), work(tokens, seconds), streaming, now);
                    }
                    Step::FirstToken { lease } => {
                        book.first_token(LeaseId(lease), now);
                    }
                    Step::End { lease } => {
                        book.end(LeaseId(lease), now);
                    }
                    Step::Starts | Step::Wait { .. } => {}
                }
            }
            if let Step::Wait { millis } = step {
                now = now + Duration::from_millis(millis);
            }
            prop_assert_eq!(asked.snapshot(), spared.snapshot());
        }
    }
}
