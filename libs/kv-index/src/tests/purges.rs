//! Purges of what an engine turned out not to hold.

use super::{keys, matched, serve};
use crate::KvIndex;

#[test]
fn a_purge_takes_what_goes_on_from_the_lost_block_and_no_more() {
    let mut index = KvIndex::new();
    let (slot, other) = (index.add_rank(100), index.add_rank(100));
    let branch = [keys(0..8), keys(100..105)].concat();
    for rank in [slot, other] {
        serve(&mut index, rank, &branch, 1);
        serve(&mut index, rank, &keys(0..20), 1);
    }
    assert_eq!(index.purge(slot, &keys(0..20), 10), 10);
    assert_eq!(matched(&index, slot, &keys(0..20)), (10, 10));
    assert_eq!(matched(&index, slot, &branch), (13, 13), "the branch leaves before block 10");
    assert_eq!(index.purge(slot, &keys(0..20), 5), 10, "5 to 10, and the branch's own 5");
    assert_eq!(matched(&index, slot, &branch), (5, 5));
    assert_eq!(matched(&index, other, &keys(0..20)), (20, 20));
    assert_eq!(index.rank_stats(slot).map(|stats| stats.free_blocks), Some(95));
}

#[test]
fn a_purge_leaves_what_a_request_holds() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    serve(&mut index, slot, &keys(0..20), 1);
    let mut running = index.book(slot, &keys(0..12), 1);
    index.start(&mut running);
    assert_eq!(index.purge_booked(&running, 4), 8, "the blocks that only the first one had");
    assert_eq!(matched(&index, slot, &keys(0..20)), (12, 12));
    index.finish(running, 0);
    assert_eq!(matched(&index, slot, &keys(0..20)), (12, 12));
}

#[test]
fn a_purged_rank_keeps_only_what_runs() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    serve(&mut index, slot, &keys(0..20), 1);
    let mut done = index.book(slot, &keys(50..60), 1);
    index.start(&mut done);
    index.grow(&mut done, 5);
    index.finish(done, 5);
    let mut running = index.book(slot, &keys(0..12), 1);
    index.start(&mut running);
    assert_eq!(index.purge_rank(slot), 8 + 10 + 5);
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!((stats.resident_keyed_blocks, stats.pinned_blocks), (12, 13));
    index.finish(running, 0);
    assert_eq!(matched(&index, slot, &keys(0..20)), (12, 12));
}
