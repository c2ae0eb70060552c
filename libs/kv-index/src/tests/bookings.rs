//! Bookings: what they count, and what room they take.

use super::{keys, matched, serve, would_evict};
use crate::{IndexStats, KvIndex};

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
