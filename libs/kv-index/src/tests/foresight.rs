//! What prompts that wait for room are told to find.

use std::collections::HashSet;

use domain::BlockKey;
use proptest::prelude::*;

use super::{keys, serve};
use crate::{Booking, Eviction, KvIndex};

fn found(index: &KvIndex, booking: &Booking, before: &[Booking]) -> u32 {
    index.found_after(booking, before.iter().rev())
}

#[test]
fn what_those_before_it_evict_is_not_found_and_what_they_use_is() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    serve(&mut index, slot, &keys(0..40), 0);
    let own = index.book(slot, &keys(0..50), 1);
    let mut before = vec![index.book(slot, &keys(100..150), 0)];
    assert_eq!(found(&index, &own, &before), 40, "both fit");
    before.push(index.book(slot, &keys(200..240), 0));
    before.push(index.book(slot, &keys(300..320), 0));
    assert_eq!(found(&index, &own, &before), 0, "it was used before all of these");
    before.push(index.book(slot, &keys(0..30), 1));
    assert_eq!(found(&index, &own, &before), 30, "the last one brings it back, as far as it goes");
}

#[test]
fn only_what_stands_at_the_front_of_the_order_may_be_lost() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    serve(&mut index, slot, &keys(0..40), 0);
    serve(&mut index, slot, &keys(100..140), 0);
    let old = index.book(slot, &keys(0..40), 1);
    let young = index.book(slot, &keys(100..140), 1);
    assert!(!index.may_lose(&old), "20 blocks are empty");
    let other = index.book(slot, &keys(200..230), 1);
    assert!(index.may_lose(&old), "it was freed first");
    assert!(!index.may_lose(&young));
    let another = index.book(slot, &keys(300..380), 1);
    assert!(index.may_lose(&young), "they need more than all that is free");
    for booking in [other, another, young] {
        index.rollback(booking);
    }
    assert!(!index.may_lose(&old));
    index.remove_rank(slot);
    assert!(!index.may_lose(&old));
}

#[test]
fn a_rank_with_slots_tells_no_losses() {
    let mut index = KvIndex::new();
    let slot = index.add_rank_as(100, Eviction::Slots(1));
    let bookings = [0, 1, 2].map(|n| index.book(slot, &keys(n * 100..n * 100 + 60), 1));
    assert!(bookings.iter().all(|booking| !index.may_lose(booking)));
}

#[test]
fn a_prefix_that_they_share_takes_room_once() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    let prompt = |n: u64| [keys(0..60), keys(1_000 * n..1_000 * n + 10)].concat();
    let before: Vec<Booking> = (1..5).map(|n| index.book(slot, &prompt(n), 0)).collect();
    let first = index.book(slot, &prompt(1), 1);
    assert_eq!(found(&index, &first, &before), 70);
    let stranger = index.book(slot, &prompt(9), 1);
    assert_eq!(found(&index, &stranger, &before), 60);
}

#[test]
fn answers_take_room_as_the_last_ones_did() {
    let mut index = KvIndex::new();
    let slot = index.add_rank(100);
    let own = |index: &mut KvIndex| index.book(slot, &keys(0..40), 1);
    let answered = |index: &mut KvIndex, at: u64| {
        let mut booking = index.book(slot, &keys(at..at + 1), 0);
        index.start(&mut booking);
        index.grow(&mut booking, 60);
        index.finish(booking, 60);
    };
    let short = [own(&mut index), index.book(slot, &keys(100..150), 0)];
    let last = own(&mut index);
    assert_eq!(found(&index, &last, &short), 40);
    (500..560).for_each(|at| answered(&mut index, at));
    assert_eq!(found(&index, &last, &short), 22, "the room ends within it");
    let long = [own(&mut index), index.book(slot, &keys(200..280), 0)];
    assert_eq!(found(&index, &last, &long), 0, "80 blocks, and half of an answer's 60");
}

#[test]
fn a_rank_that_is_gone_holds_nothing() {
    let mut index = KvIndex::new();
    let slot = index.add_rank_as(100, Eviction::FreeQueue);
    let before = [index.book(slot, &keys(0..10), 0)];
    let own = index.book(slot, &keys(0..10), 0);
    index.remove_rank(slot);
    assert_eq!(found(&index, &own, &before), 0);
}

/// The keys that the last ones use, as far as there is room: of each prompt the first ones first.
fn kept(capacity: u64, prompts: &[Vec<BlockKey>], extras: &[u32]) -> HashSet<BlockKey> {
    let (mut kept, mut room) = (HashSet::new(), capacity);
    for (prompt, extra) in prompts.iter().zip(extras).rev() {
        for key in prompt {
            if !kept.contains(key) {
                if room == 0 {
                    break;
                }
                kept.insert(*key);
                room -= 1;
            }
        }
        room = room.saturating_sub(u64::from(*extra));
    }
    kept
}

proptest! {
    #[test]
    fn it_is_what_a_plain_set_of_keys_says(
        line in prop::collection::vec((0..6_u64, 1..30_u64, 0..3_u32), 1..40),
        capacity in 10..200_u32,
    ) {
        let mut index = KvIndex::new();
        let slot = index.add_rank(capacity);
        let prompts: Vec<Vec<BlockKey>> =
            line.iter().map(|(document, blocks, _)| keys(document * 100..document * 100 + blocks)).collect();
        let extras: Vec<u32> = line.iter().map(|(.., extra)| *extra).collect();
        let bookings: Vec<Booking> =
            prompts.iter().zip(&extras).map(|(keys, extra)| index.book(slot, keys, *extra)).collect();
        let own = bookings.len() - 1;
        let kept = kept(u64::from(capacity), &prompts[..own], &extras[..own]);
        let wanted = prompts[own].iter().take_while(|key| kept.contains(key)).count() as u32;
        prop_assert_eq!(found(&index, &bookings[own], &bookings[..own]), wanted);
        for booking in bookings {
            index.rollback(booking);
        }
        index.check_invariants();
    }
}
