//! Two copies of one block on a rank.

use super::{keys, matched, serve};
use crate::KvIndex;

#[test]
fn a_full_hit_recomputes_the_last_block_and_both_copies_take_room() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(5);
    assert_eq!(serve(&mut index, slot, &keys(0..2), 0), (0, 0));
    assert_eq!(serve(&mut index, slot, &keys(0..2), 0), (1, 0));
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!((stats.resident_keyed_blocks, stats.free_blocks), (2, 2));
    // Three blocks: two empty ones, then the older copy. The content stays.
    assert_eq!(serve(&mut index, slot, &keys(10..13), 0), (0, 1));
    assert_eq!(matched(&index, slot, &keys(0..2)), (2, 2));
    // The next one is the younger copy.
    assert_eq!(serve(&mut index, slot, &keys(20..21), 0), (0, 1));
    assert_eq!(matched(&index, slot, &keys(0..2)), (1, 1));
}

#[test]
fn a_copy_whose_elder_was_evicted_is_still_released_at_its_own_end() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(4);
    serve(&mut index, slot, &keys(0..2), 0);
    let mut again = index.book(slot, &keys(0..2), 0);
    index.start(&mut again);
    let mut other = index.book(slot, &keys(10..12), 0);
    assert_eq!(index.start(&mut other).evicted_blocks, 1, "the elder copy went");
    index.finish(other, 0);
    assert_eq!(matched(&index, slot, &keys(0..2)), (2, 2));
    index.finish(again, 0);
    assert_eq!(index.rank_stats(slot).map(|stats| stats.pinned_blocks), Some(0));
    index.check_invariants();
}
