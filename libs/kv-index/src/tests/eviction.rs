//! Evictions: in which order, and what they are said to cost.

use super::{keys, matched, serve, would_evict};
use crate::{Booking, KvIndex};

#[test]
fn the_time_of_the_end_decides_and_not_that_of_the_start() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(8);
    let mut early = index.book(slot, &keys(0..4), 0);
    index.start(&mut early);
    serve(&mut index, slot, &keys(10..14), 0);
    index.finish(early, 0);
    serve(&mut index, slot, &keys(20..24), 0);
    assert_eq!(matched(&index, slot, &keys(0..4)), (4, 4));
    assert_eq!(matched(&index, slot, &keys(10..14)), (0, 0));
}

#[test]
fn output_blocks_that_stay_cached_go_before_the_prompt_and_the_others_at_once() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(10);
    let mut booking = index.book(slot, &keys(0..4), 1);
    index.start(&mut booking);
    index.grow(&mut booking, 3);
    assert_eq!(index.rank_stats(slot).map(|stats| stats.anonymous_blocks), Some(4));
    index.finish(booking, 2);
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!((stats.anonymous_blocks, stats.free_blocks), (2, 4));
    assert_eq!(would_evict(&index, slot, 5), 1);
    assert_eq!(serve(&mut index, slot, &keys(10..16), 0), (0, 2));
    assert_eq!(matched(&index, slot, &keys(0..4)), (4, 4));
}

#[test]
fn what_requests_hold_or_wait_for_would_be_evicted_in_the_end() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(10);
    let prompt = |n: u64| keys(100 * n..100 * n + 4);
    let mut running = index.book(slot, &prompt(1), 0);
    index.start(&mut running);
    let waiting = index.book(slot, &prompt(2), 0);
    assert_eq!(index.asks_evicted_by(slot, 2), 0.0, "there is room for both and two more");
    let three = index.asks_evicted_by(slot, 3);
    assert!(three > 0.0, "one of theirs goes when they are through");
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
    near(index.asks_evicted_by(slot, 6), 4.0 * three);
    near(index.asks_evicted_by(slot, 50), 8.0 * three);
    let again = (0..200).map(|_| index.book(slot, &prompt(2), 0));
    let again: Vec<Booking> = again.collect();
    assert!(index.asks_evicted_by(slot, 3) > 20.0 * three, "they are asked for more often now");
    again.into_iter().chain([waiting]).for_each(|booking| index.rollback(booking));
    assert_eq!(index.asks_evicted_by(slot, 6), 0.0);
}

#[test]
fn what_would_be_evicted_counts_as_often_as_it_was_asked_for() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(10);
    let near = |asks: f64, expected: f64| assert!((asks - expected).abs() < 0.2, "{asks}");
    for _ in 0..3 {
        serve(&mut index, slot, &keys(0..4), 1);
    }
    let mut booking = index.book(slot, &keys(10..12), 0);
    index.start(&mut booking);
    index.grow(&mut booking, 2);
    index.finish(booking, 2);
    assert_eq!(index.asks_evicted_by(slot, 2), 0.0, "there is room");
    near(index.asks_evicted_by(slot, 5), 9.0);
    near(index.asks_evicted_by(slot, 6), 12.0);
    assert_eq!(index.asks_evicted_by(slot, 8), index.asks_evicted_by(slot, 6), "output");
    near(index.asks_evicted_by(slot, 10), 14.0);
    near(index.asks_evicted_by(slot, 50), 14.0);
    assert_eq!(serve(&mut index, slot, &keys(20..24), 1), (0, 3));
    near(index.asks_evicted_by(slot, 2), 3.0);
    near(index.asks_evicted_by(slot, 10), 3.0 + 2.0 + 4.0);
}

#[test]
fn how_often_it_was_asked_for_outlives_its_eviction() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(6);
    for _ in 0..5 {
        serve(&mut index, slot, &keys(0..4), 1);
    }
    serve(&mut index, slot, &keys(10..14), 0);
    assert_eq!(matched(&index, slot, &keys(0..4)), (2, 2));
    serve(&mut index, slot, &keys(0..4), 0);
    serve(&mut index, slot, &keys(20..26), 0);
    assert_eq!(matched(&index, slot, &keys(0..4)), (0, 0));
    serve(&mut index, slot, &keys(0..4), 0);
    serve(&mut index, slot, &keys(30..32), 0);
    assert_eq!(matched(&index, slot, &keys(20..26)), (0, 0));
    let asks = index.asks_evicted_by(slot, 4);
    assert!((asks - 4.0 * 7.0).abs() < 1.5, "{asks}");
}

#[test]
fn far_beyond_the_front_of_the_order_evictions_cost_what_they_do_there() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(400);
    for i in 0..100 {
        serve(&mut index, slot, &keys(i * 10..i * 10 + 4), 0);
    }
    let near = index.asks_evicted_by(slot, 40);
    let far = index.asks_evicted_by(slot, 400);
    assert!((far / near - 10.0).abs() < 1.5, "{near} {far}");
}
