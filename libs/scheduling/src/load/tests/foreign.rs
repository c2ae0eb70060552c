//! Requests that are not ours.

use domain::LoadSample;

use super::*;

pub(super) fn reading(seconds: f64, running: u32, waiting: u32) -> LoadSample {
    LoadSample {
        at: at(seconds),
        running,
        waiting,
        kv_usage: None,
        preemptions: None,
        prefix_cache: None,
        prefills: None,
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
fn ours_that_wait_though_they_were_thought_to_be_through_are_part_of_the_delay() {
    let mut book = LoadBook::new();
    for lease in 0..99 {
        book.book(LeaseId(lease), work(100, 0.01), true, at(1.0));
    }
    book.book(LeaseId(99), work(100, 0.01), true, at(1.1));
    // The first token of the last one says that all before it are through.
    book.first_token(LeaseId(99), at(1.5));
    assert_eq!(book.queue_delay_seconds(at(1.5)), 0.0);
    book.observe_load(&reading(2.0, 10, 90), at(2.0));
    assert_eq!(book.foreign_requests(at(2.0)), 0.0, "they are ours");
    let delay = book.queue_delay_seconds(at(2.0));
    assert!(delay > 0.5, "{delay}");
    assert_eq!(book.queue_delay_seconds(at(13.0)), 0.0, "nothing was read for long");
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
