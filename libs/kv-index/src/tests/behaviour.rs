//! Single behaviours, by name.

use domain::BlockKey;

use super::{keys, matched, serve};
use crate::{Booking, IndexStats, KvIndex, Matches, Shared, Slot};

#[test]
fn a_booked_prompt_counts_as_resident_at_once_and_is_not_confirmed() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    let booking = index.book(slot, &keys(0..10), 1);
    assert_eq!(matched(&index, slot, &keys(0..20)), (10, 0));
    index.rollback(booking);
    assert_eq!(matched(&index, slot, &keys(0..20)), (0, 0));
    assert_eq!(index.stats(), IndexStats::default());
}

#[test]
fn a_booking_takes_no_memory_until_its_start() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(10);
    serve(&mut index, slot, &keys(0..10), 0);
    let mut booking = index.book(slot, &keys(100..104), 0);
    assert_eq!(matched(&index, slot, &keys(0..10)), (10, 10));
    assert_eq!(index.start(&mut booking).evicted_blocks, 4);
    assert_eq!(matched(&index, slot, &keys(0..10)), (6, 6), "the tail goes first");
    index.finish(booking, 0);
}

#[test]
fn a_second_request_hits_what_a_running_one_stored() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    let mut first = index.book(slot, &keys(0..10), 1);
    let mut second = index.book(slot, &keys(0..10), 1);
    assert_eq!(index.start(&mut first).cached_blocks, 0);
    assert_eq!(index.start(&mut second).cached_blocks, 10);
    index.finish(first, 0);
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!(stats.pinned_blocks, 11, "the second still holds the prefix and its own tail");
    index.finish(second, 0);
    assert_eq!(index.rank_stats(slot).map(|stats| stats.pinned_blocks), Some(0));
}

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
fn room_that_waiting_bookings_will_take_is_not_offered_twice() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(10);
    assert_eq!(serve(&mut index, slot, &keys(0..4), 0), (0, 0));
    assert_eq!(would_evict(&index, slot, 6), 0);
    let waiting = index.book(slot, &keys(10..14), 1);
    assert_eq!(would_evict(&index, slot, 6), 4, "five of the six blank blocks are spoken for");
    let same = index.book(slot, &keys(10..14), 1);
    assert_eq!(would_evict(&index, slot, 1), 1, "the second brings its partial block only");
    index.rollback(same);
    index.rollback(waiting);
    assert_eq!(would_evict(&index, slot, 6), 0);
}

fn would_evict(index: &KvIndex, slot: Slot, new_blocks: u32) -> u64 {
    let blocks = index.ranks[slot.index as usize].evicted_by(new_blocks);
    blocks.end - blocks.start
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

#[test]
fn overcommitted_starts_are_settled_by_later_ends() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(6);
    let mut first = index.book(slot, &keys(0..5), 0);
    let mut second = index.book(slot, &keys(10..15), 0);
    index.start(&mut first);
    index.start(&mut second);
    assert_eq!(index.rank_stats(slot).map(|stats| stats.pinned_blocks), Some(10));
    index.finish(first, 0);
    assert_eq!(matched(&index, slot, &keys(0..5)), (1, 1), "room for one block beside the second");
    index.finish(second, 0);
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!((stats.pinned_blocks, stats.resident_keyed_blocks), (0, 6));
}

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
fn a_start_and_an_end_without_keys_take_room_only_while_they_run() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(4);
    let mut booking = index.book(slot, &[], 2);
    index.start(&mut booking);
    assert_eq!(index.rank_stats(slot).map(|stats| stats.free_blocks), Some(2));
    index.finish(booking, 0);
    assert_eq!(index.rank_stats(slot).map(|stats| stats.free_blocks), Some(4));
}

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

#[test]
fn entries_stay_as_small_as_the_memory_target_needs() {
    assert_eq!(size_of::<crate::node::Holder>(), 24);
    assert!(size_of::<crate::node::Node>() <= 80);
}

/// Serves a prompt of ten blocks and a partial one whose answer fills that and two more.
fn converse(index: &mut KvIndex, slot: crate::Slot, answer: &[BlockKey]) {
    let mut booking = index.book(slot, &keys(0..10), 1);
    index.start(&mut booking);
    index.grow(&mut booking, 2);
    index.finish_with_answer(booking, 3, answer);
}

#[test]
fn the_next_turn_finds_the_answer_that_it_goes_on_with() {
    let mut index = KvIndex::new();
    let (slot, other) = (index.add_rank(100), index.add_rank(100));
    converse(&mut index, slot, &[]);
    serve(&mut index, other, &keys(0..10), 1);
    let mut into = Matches::default();
    index.match_prefix(&keys(0..20), &mut into);
    assert_eq!(index.matched(&into, slot).map(|m| m.blocks), Some(10));
    assert_eq!((into.answer_blocks(slot), into.answer_blocks(other)), (3, 0));
    index.match_prefix(&keys(0..10), &mut into);
    assert_eq!(into.answer_blocks(slot), 0, "the prompt itself, again");
    index.match_prefix(&keys(0..12), &mut into);
    assert_eq!(into.answer_blocks(slot), 2, "no more than the prompt has");

    let anonymous = |index: &KvIndex| index.rank_stats(slot).map(|stats| stats.anonymous_blocks);
    assert_eq!(anonymous(&index), Some(3));
    let mut next = index.book(slot, &keys(0..20), 1);
    next.count_on_answer();
    let started = index.start(&mut next);
    assert_eq!((started.cached_blocks, started.answer_blocks), (13, 3));
    assert_eq!(anonymous(&index), Some(1), "its own partial block");
    index.finish(next, 0);
    assert_eq!(matched(&index, slot, &keys(0..30)), (20, 20));
    index.check_invariants();
}

#[test]
fn an_answer_that_is_not_counted_on_is_told_of_and_left_alone() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    converse(&mut index, slot, &[]);
    let mut next = index.book(slot, &keys(0..20), 0);
    let started = index.start(&mut next);
    assert_eq!((started.cached_blocks, started.answer_blocks), (10, 3));
    assert_eq!(index.finish(next, 0), started);
    assert_eq!(index.rank_stats(slot).map(|stats| stats.anonymous_blocks), Some(3));
    index.check_invariants();
}

#[test]
fn an_answer_whose_keys_are_known_is_content() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    converse(&mut index, slot, &keys(10..12));
    assert_eq!(matched(&index, slot, &keys(0..20)), (12, 12));
    let mut into = Matches::default();
    index.match_prefix(&keys(0..20), &mut into);
    assert_eq!(into.answer_blocks(slot), 1, "the third block's key was not told");
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!((stats.resident_keyed_blocks, stats.anonymous_blocks), (12, 1));
    // Given once more, the older copy has lost its name.
    converse(&mut index, slot, &keys(10..12));
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!((stats.resident_keyed_blocks, stats.anonymous_blocks), (12, 4));
    index.check_invariants();
}

#[test]
fn the_first_answer_to_a_prompt_shorter_than_a_block_may_have_keys() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(10);
    let mut booking = index.book(slot, &[], 1);
    index.start(&mut booking);
    index.grow(&mut booking, 1);
    index.finish_with_answer(booking, 1, &keys(0..1));
    assert_eq!(matched(&index, slot, &keys(0..4)), (1, 1));
}

#[test]
fn a_prompt_has_room_when_what_running_requests_do_not_hold_of_it_fits() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(20);
    let mut running = index.book(slot, &keys(0..12), 0);
    index.start(&mut running);
    let other = index.book(slot, &keys(100..108), 1);
    assert!(!index.has_room(&other), "nine blocks beside twelve");
    let same = index.book(slot, &keys(0..20), 0);
    assert!(index.has_room(&same), "twelve of them are held already");
    index.finish(running, 0);
    assert!(index.has_room(&other), "cached content that nobody holds gives way");
    let large = index.book(slot, &keys(200..230), 0);
    assert!(index.has_room(&large), "a rank that holds nothing takes any");
    index.remove_rank(slot);
    assert!(index.has_room(&large));
    for booking in [other, same, large] {
        index.rollback(booking);
    }
}
