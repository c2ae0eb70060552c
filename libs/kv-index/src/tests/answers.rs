//! Answers that the next prompt goes on with.

use domain::BlockKey;

use super::{keys, matched, serve};
use crate::{KvIndex, Matches};

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
