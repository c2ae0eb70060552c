//! A rank that is removed.

use super::{keys, matched, serve};
use crate::{IndexStats, KvIndex};

#[test]
fn a_removed_rank_is_out_of_sight_and_its_bookings_are_inert() {
    let mut index = KvIndex::new();
    let old = index.add_rank(50);
    serve(&mut index, old, &keys(0..10), 1);
    let mut started = index.book(old, &keys(0..12), 1);
    index.start(&mut started);
    let waiting = index.book(old, &keys(0..14), 1);
    index.remove_rank(old);
    assert_eq!(matched(&index, old, &keys(0..14)), (0, 0));
    assert_eq!(index.stats().residencies, 0);
    while index.sweep.is_pending() {
        index.sweep_some();
    }
    assert_eq!(index.stats(), IndexStats::default(), "the memory is free again");
    let new = index.add_rank(50);
    assert_eq!(new.index, old.index, "the place is reused");
    serve(&mut index, new, &keys(0..10), 1);
    index.grow(&mut started, 5);
    index.finish(started, 2);
    index.rollback(waiting);
    index.set_capacity(old, 0);
    index.remove_rank(old);
    assert_eq!(index.rank_stats(old), None);
    assert_eq!(matched(&index, new, &keys(0..14)), (10, 10));
    index.check_invariants();
}

#[test]
fn the_sweep_of_a_removed_rank_is_spread_over_later_calls() {
    let mut index = KvIndex::new();
    let (gone, stays) = (index.add_rank(1_000_000), index.add_rank(1_000_000));
    for at in 0..5_000 {
        serve(&mut index, gone, &keys(at * 10..at * 10 + 10), 1);
    }
    let full = index.stats().nodes;
    index.remove_rank(gone);
    let mut left = full;
    while index.sweep.is_pending() {
        let booking = index.book(stays, &[], 0);
        index.rollback(booking);
        let now = index.stats().nodes;
        assert!(left - now <= 1024, "{} nodes in one step", left - now);
        left = now;
    }
    assert_eq!(index.stats(), IndexStats::default());
}
