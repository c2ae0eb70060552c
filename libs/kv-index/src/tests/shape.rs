//! The tree: its nodes, and what a match tells.

use domain::BlockKey;

use super::{keys, matched, serve};
use crate::{KvIndex, Matches, Shared};

#[test]
fn chains_whose_keys_collide_midway_do_not_graft() {
    let chain = |list: &[u64]| list.iter().copied().map(BlockKey).collect::<Vec<_>>();
    let mut index = KvIndex::new();
    let (one, two) = (index.add_rank(100), index.add_rank(100));
    serve(&mut index, one, &chain(&[1, 2, 50, 51, 52]), 1);
    serve(&mut index, one, &chain(&[1, 2, 60]), 1);
    // The same key 50 under other parents: as an edge of its own, and as a first block.
    serve(&mut index, two, &chain(&[7, 8]), 1);
    assert_eq!(matched(&index, two, &chain(&[7, 8, 50, 51, 52])), (2, 2));
    assert_eq!(matched(&index, one, &chain(&[50, 51, 52])), (0, 0));
    serve(&mut index, two, &chain(&[7, 8, 9]), 1);
    serve(&mut index, two, &chain(&[7, 8, 50, 99]), 1);
    assert_eq!(matched(&index, one, &chain(&[7, 8, 50])), (0, 0));
    assert_eq!(matched(&index, one, &chain(&[1, 2, 50, 51, 52])), (5, 5));
    assert_eq!(matched(&index, two, &chain(&[7, 8, 50, 51])), (3, 3));
    assert_eq!(matched(&index, two, &chain(&[1, 2, 50, 99])), (0, 0));
    index.check_invariants();
}

#[test]
fn nodes_join_again_when_nothing_needs_the_boundary() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    let booking = index.book(slot, &keys(0..20), 1);
    let branch = index.book(slot, &keys(0..8), 1);
    assert_eq!(index.stats().nodes, 2);
    index.rollback(branch);
    assert_eq!(index.stats().nodes, 1, "the rollback took the boundary away");
    index.finish(booking, 0);
    serve(&mut index, slot, &keys(0..8), 1);
    assert_eq!(index.stats().nodes, 1, "freed one directly behind the other");
    let other = index.add_rank(100);
    serve(&mut index, other, &keys(0..20), 1);
    let both = index.stats();
    assert_eq!((both.nodes, both.distinct_blocks, both.residencies), (1, 20, 40));
}

#[test]
fn a_branch_that_goes_leaves_no_boundary_behind() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    serve(&mut index, slot, &keys(0..20), 1);
    let branch = index.book(slot, &[keys(0..8), keys(100..105)].concat(), 1);
    assert_eq!(index.stats().nodes, 3);
    index.rollback(branch);
    assert_eq!(index.stats().nodes, 1);
}

#[test]
fn matches_list_every_holder_at_its_own_depth() {
    let mut index = KvIndex::new();
    let slots: Vec<_> = (0..40).map(|_| index.add_rank(1_000)).collect();
    for (depth, slot) in slots.iter().enumerate() {
        serve(&mut index, *slot, &keys(0..depth as u64), 1);
    }
    let mut into = Matches::default();
    index.match_prefix(&keys(0..100), &mut into);
    index.list_all(&mut into);
    let listed = into.listed().iter();
    let found: Vec<_> = listed.map(|m| (m.slot, m.blocks, m.confirmed_blocks)).collect();
    let expected = slots.iter().enumerate().skip(1);
    let expected: Vec<_> = expected.map(|(at, slot)| (*slot, at as u32, at as u32)).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_very_many_ranks_share_is_told_in_one() {
    let mut index = KvIndex::new();
    let slots: Vec<_> = (0..100).map(|_| index.add_rank(1_000)).collect();
    for slot in &slots {
        serve(&mut index, *slot, &keys(0..4), 1);
    }
    serve(&mut index, slots[70], &keys(0..10), 1);
    serve(&mut index, slots[71], &[keys(0..4), keys(20..30)].concat(), 1);
    let mut into = Matches::default();
    index.match_prefix(&keys(0..10), &mut into);
    let listed: Vec<_> = into.listed().iter().map(|m| (m.slot, m.blocks)).collect();
    assert_eq!(listed, [(slots[70], 10)]);
    assert_eq!(index.shared(&into), Some(Shared { ranks: 100, blocks: 4 }));
    assert_eq!(index.matched(&into, slots[3]).map(|m| m.blocks), Some(4));
    // Of an index that has changed, only what was listed is known.
    serve(&mut index, slots[3], &keys(50..60), 1);
    assert_eq!(index.matched(&into, slots[3]), None);
    assert_eq!(index.matched(&into, slots[70]).map(|m| m.blocks), Some(10));
    assert_eq!(index.shared(&into), None);
}

#[test]
fn entries_stay_as_small_as_the_memory_target_needs() {
    assert_eq!(size_of::<crate::node::Holder>(), 24);
    assert!(size_of::<crate::node::Node>() <= 80);
}
