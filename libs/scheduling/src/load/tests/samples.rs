//! What is measured, and what is not.

use super::*;

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
fn a_burst_whose_last_prompt_comes_first_is_measured_as_a_whole() {
    let mut book = LoadBook::new();
    for lease in 0..4 {
        book.book(LeaseId(lease), work(1_700, 0.1), true, at(0.001 * lease as f64));
    }
    // Edges are not equally quick: the engine begins with what it was sent last, alone.
    assert_eq!(book.first_token(LeaseId(3), at(0.11)), None);
    starts(&mut book, at(0.2));
    assert_delay(&book, 0.2, 0.21);
    assert_eq!(book.first_token(LeaseId(1), at(0.44)), None);
    assert_eq!(book.first_token(LeaseId(0), at(0.44)), None);
    let sample = book.first_token(LeaseId(2), at(0.44)).expect("the queue is empty");
    assert_eq!(sample.shape.tokens, 1_700.0);
    assert!((sample.seconds - 0.11).abs() < 1e-9, "{}", sample.seconds);
}

#[test]
fn many_cached_prompts_of_one_step_are_one_sample_though_the_last_comes_first() {
    let mut book = LoadBook::new();
    for lease in 0..64 {
        book.book(LeaseId(lease), work(16, 0.01), true, at(0.0));
    }
    let samples: Vec<_> = (0..64)
        .rev()
        .filter_map(|lease| book.first_token(LeaseId(lease), at(0.64)))
        .map(|sample| sample.seconds)
        .collect();
    assert_eq!(samples.len(), 1, "{samples:?}");
    assert!((samples[0] - 0.01).abs() < 1e-6, "{samples:?}");
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
