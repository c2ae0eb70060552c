mod ceiling;
mod foreign;
mod random;
mod room;
mod samples;

use domain::{LeaseId, Moment};

use super::*;
use crate::{SATURATED_SECONDS, Shape};

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
    book.book(B, work(LONG, 1.0), true, at(0.1));
    book.book(C, work(LONG, 1.0), true, at(0.1));
    book.first_token(B, at(2.0));
    assert_eq!(book.running(), 2);
    assert_delay(&book, 2.0, 1.0);
    assert_eq!(book.first_token(A, at(2.1)), None);
    assert_delay(&book, 2.1, 0.9);
}

#[test]
fn what_was_overtaken_on_its_way_stands_in_the_queue_again() {
    let mut book = LoadBook::new();
    book.book(A, work(2_000, 1.0), true, at(0.0));
    book.book(B, work(2_000, 1.0), false, at(0.01));
    book.book(C, work(2_000, 1.0), true, at(0.02));
    book.first_token(C, at(0.9));
    assert_eq!(starts(&mut book, at(0.9)), [A, B, C]);
    assert_delay(&book, 0.9, 0.0);
    assert_eq!(book.next_due(), Some(at(0.95)));
    // Nothing came of the first one: the engine works on it since it is through with the last.
    assert_eq!(starts(&mut book, at(0.95)), []);
    assert_delay(&book, 1.0, 0.9);
    assert_eq!((book.in_flight(), book.running()), (3, 2));
    // One that was sent later says that it has finished.
    let later = LeaseId(4);
    book.book(later, work(LONG, 1.0), true, at(1.5));
    book.first_token(later, at(3.0));
    starts(&mut book, at(9.0));
    assert_eq!(book.running(), 4);
    assert_delay(&book, 9.0, 0.0);
}

#[test]
fn what_does_not_fit_one_step_with_the_prompt_that_is_heard_of_still_waits() {
    let mut book = LoadBook::new();
    for lease in [A, B, C] {
        book.book(lease, work(6_000, 1.0), true, at(0.0));
    }
    book.first_token(C, at(1.0));
    // One more may have been in the step, and the engine works on the other at the least.
    assert_delay(&book, 1.0, 1.0);
    starts(&mut book, at(1.05));
    assert_delay(&book, 1.05, 1.95);
    let lost = LeaseId(9);
    book.book(lost, work(100, 0.1), true, at(1.06));
    book.end(B, at(1.1));
    book.first_token(A, at(1.9));
    assert_eq!((book.in_flight(), book.running()), (3, 2));
    assert_delay(&book, 1.9, 0.1);
}

#[test]
fn those_sent_at_one_moment_stand_again_as_they_stood() {
    let mut book = LoadBook::new();
    for lease in [A, B, C] {
        book.book(lease, work(100, 1.0), true, at(0.0));
    }
    book.first_token(B, at(1.0));
    starts(&mut book, at(2.0));
    // The one before the other closes nothing behind it.
    book.first_token(A, at(2.1));
    assert_eq!((book.in_flight(), book.running()), (3, 2));
}

#[test]
fn a_line_is_no_slower_for_first_tokens_that_come_the_last_one_first() {
    let mut book = LoadBook::new();
    for lease in 0..10 {
        book.book(LeaseId(lease), work(700, 0.1), true, at(0.0));
    }
    for lease in (0..10).rev() {
        book.first_token(LeaseId(lease), at(1.0));
    }
    for lease in [A, B] {
        book.book(LeaseId(10 + lease.0), work(LONG, 0.1), true, at(1.1));
    }
    assert_delay(&book, 1.1, 0.2);
}

#[test]
fn first_tokens_of_one_step_are_heard_in_any_order() {
    let mut book = LoadBook::new();
    for lease in [A, B, C] {
        book.book(lease, work(100, 1.0), true, at(0.0));
    }
    book.first_token(C, at(2.0));
    assert_delay(&book, 2.0, 0.0);
    book.first_token(A, at(2.01));
    assert!(book.end(B, at(2.02)));
    assert_delay(&book, 2.02, 0.0);
    starts(&mut book, at(9.0));
    assert_delay(&book, 9.0, 0.0);
    assert_eq!((book.in_flight(), book.running()), (2, 2));
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
fn what_stands_in_a_line_that_is_slower_than_booked_counts_for_as_much_more() {
    let mut book = LoadBook::new();
    let cached = |lease| (LeaseId(lease), Work { cached_tokens: 1_700, ..work(20, 0.001) });
    for (lease, work) in (0..40).map(cached) {
        book.book(lease, work, true, at(0.0));
    }
    // Each takes as long as if nothing were cached, and the next ones are taken to do so too.
    for finished in 0..20 {
        book.first_token(LeaseId(finished), at(0.1 * (finished + 1) as f64));
    }
    let before = book.queue_delay_seconds(at(2.0));
    assert!(before <= 0.02 + 1e-9, "{before}");
    let (lease, work) = cached(99);
    book.book(lease, work, true, at(2.0));
    let added = book.queue_delay_seconds(at(2.0)) - before;
    assert!((added - 0.1).abs() < 1e-6, "{added}");
    // An empty line is as fast as ever.
    for finished in (20..40).chain([99]) {
        book.first_token(LeaseId(finished), at(2.1));
    }
    let (lease, work) = cached(100);
    book.book(lease, work, true, at(5.0));
    assert_delay(&book, 5.0, 0.001);
}
