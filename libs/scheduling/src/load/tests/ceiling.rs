//! The learned ceiling of running requests.

use super::foreign::reading;
use super::*;

fn after(readings: &[(u32, u32)]) -> LoadBook {
    let mut book = LoadBook::new();
    for (second, (running, waiting)) in (0..).zip(readings) {
        let second = f64::from(second);
        book.observe_load(&reading(second, *running, *waiting), at(second));
    }
    book
}

#[test]
fn the_most_that_run_while_others_wait_is_the_ceiling() {
    assert_eq!(after(&[(3, 0), (8, 0), (7, 0)]).running_ceiling(), None);
    assert_eq!(after(&[(7, 2), (8, 5)]).running_ceiling(), None, "too few readings");
    assert_eq!(after(&[(7, 2), (8, 5), (8, 1)]).running_ceiling(), Some(8));
    // It stands when nobody waits any more.
    assert_eq!(after(&[(8, 2), (8, 5), (8, 1), (2, 0)]).running_ceiling(), Some(8));
}

#[test]
fn a_wait_that_others_interrupt_shows_nothing() {
    assert_eq!(after(&[(1, 1), (1, 1), (1, 0), (1, 1), (1, 1)]).running_ceiling(), None);
}

#[test]
fn more_that_run_disprove_it_and_fewer_that_run_lower_it() {
    let learned = [(4, 1), (4, 1), (4, 1)];
    assert_eq!(after(&[&learned[..], &[(5, 0)]].concat()).running_ceiling(), None);
    let fewer = [&learned[..], &[(1, 0), (2, 9), (2, 9), (2, 9)]].concat();
    assert_eq!(after(&fewer).running_ceiling(), Some(2));
}

#[test]
fn an_engine_that_runs_nothing_while_requests_wait_tells_no_ceiling() {
    assert_eq!(after(&[(0, 4), (0, 4), (0, 4), (0, 4)]).running_ceiling(), None);
}

#[test]
fn a_rank_is_saturated_at_its_ceiling_or_when_its_queue_is_long() {
    let mut book = after(&[(2, 1), (2, 1), (2, 1), (0, 0)]);
    // The foreign requests of these readings are long gone.
    let now = at(20.0);
    assert!(!book.snapshot().is_saturated(now));
    for lease in 1..=2 {
        book.book(LeaseId(lease), work(10, 0.01), true, now);
    }
    assert!(book.snapshot().is_saturated(now), "as many as can run");
    let mut queue = LoadBook::new();
    queue.book(LeaseId(1), work(LONG, SATURATED_SECONDS + 0.5), true, now);
    assert!(queue.snapshot().is_saturated(now), "more work ahead than is good");
}
