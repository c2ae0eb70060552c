//! llama.cpp's slots: the server's rules over plain lists of blocks, and behaviours by name.

use domain::BlockKey;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{keys, matched, serve};
use crate::{Booking, Eviction, KvIndex, Matches, Slot};

/// The server as its code reads, with requests one after the other: each slot and each saved
/// entry is a list of blocks; an answer's blocks are numbers that no prompt has.
#[derive(Default)]
struct Server {
    slots: Vec<(Vec<u64>, u64)>,
    saved: Vec<Vec<u64>>,
    limit: usize,
    time: u64,
}

fn common(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Server {
    fn new(slots: usize, limit: usize) -> Self {
        Server { slots: vec![(Vec::new(), 0); slots], limit, ..Server::default() }
    }

    /// Serves a prompt of full blocks and a partial one, whose answer fills `answer` blocks.
    /// Returns the blocks it found.
    fn serve(&mut self, prompt: &[u64], answer: usize) -> usize {
        let length = prompt.len() + 1;
        let mut chosen = None;
        let mut best = 0.0;
        for (at, (kept, _)) in self.slots.iter().enumerate() {
            let similarity = common(kept, prompt) as f64 / length as f64;
            if similarity > best && similarity > 0.1 {
                (chosen, best) = (Some(at), similarity);
            }
        }
        let mut save = true;
        if let Some(at) = chosen {
            let kept = &self.slots[at].0;
            save = (common(kept, prompt) as f64 / kept.len() as f64) < 0.5;
        }
        let at = chosen.unwrap_or_else(|| {
            let mut oldest = 0;
            for (at, (_, used)) in self.slots.iter().enumerate() {
                if *used <= self.slots[oldest].1 {
                    oldest = at;
                }
            }
            oldest
        });
        if save {
            self.exchange(at, prompt, length);
        }
        let found = common(&self.slots[at].0, prompt);
        // While it runs it has its partial block.
        self.slots[at].0 = vec![u64::MAX; length];
        self.trim();
        self.time += 1;
        let unseen = (0..answer as u64).map(|block| u64::MAX - self.time * 100 - block);
        self.slots[at] = (prompt.iter().copied().chain(unseen).collect(), self.time);
        self.trim();
        found
    }

    fn exchange(&mut self, at: usize, prompt: &[u64], length: usize) {
        let kept = std::mem::take(&mut self.slots[at].0);
        let (mut keep, mut similarity) = (
            common(&kept, prompt) as f64 / kept.len().max(1) as f64,
            common(&kept, prompt) as f64 / length as f64,
        );
        let mut best = None;
        for (n, entry) in self.saved.iter().enumerate() {
            let k = common(entry, prompt) as f64 / entry.len() as f64;
            let s = common(entry, prompt) as f64 / length as f64;
            if k >= 0.25 && k > keep && s > similarity {
                (best, keep, similarity) = (Some(n), k, s);
            }
        }
        self.slots[at].0 = match best {
            Some(n) => self.saved.remove(n),
            None => kept.clone(),
        };
        if !kept.is_empty() && !self.saved.iter().any(|entry| entry.starts_with(&kept)) {
            self.saved.retain(|entry| !kept.starts_with(entry));
            self.saved.push(kept);
        }
    }

    fn trim(&mut self) {
        let held: usize = self.slots.iter().map(|(kept, _)| kept.len()).sum();
        while !self.saved.is_empty()
            && held + self.saved.iter().map(Vec::len).sum::<usize>() > self.limit
        {
            self.saved.remove(0);
        }
    }
}

fn random_prompt(rng: &mut SmallRng) -> Vec<u64> {
    let document = rng.random_range(0..6_u64);
    let shared = rng.random_range(0..12_u64);
    let own = rng.random_range(0..10_u64);
    let tail = rng.random_range(0..3_u64);
    (0..shared)
        .map(|block| document * 1_000 + block)
        .chain((0..own).map(|block| document * 1_000 + tail * 100 + 20 + block))
        .collect()
}

#[test]
fn one_request_after_the_other_is_served_as_by_a_plain_server() {
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let slots = rng.random_range(1..5_u32);
        // Small enough to give up entries, or for the slots alone.
        let limit = [0, 40, 90, 10_000][rng.random_range(0..4_usize)];
        let mut index = KvIndex::new();
        let rank = index.add_rank_as(limit, Eviction::Slots(slots));
        let mut server = Server::new(slots as usize, limit as usize);
        for _ in 0..200 {
            let prompt = random_prompt(&mut rng);
            let answer = rng.random_range(0..4_u32);
            let names: Vec<BlockKey> = prompt.iter().copied().map(BlockKey).collect();
            let (found, _) = matched(&index, rank, &names);
            let mut booking = index.book(rank, &names, 1);
            let started = index.start(&mut booking);
            index.grow(&mut booking, 5);
            index.finish(booking, answer);
            let expected = server.serve(&prompt, answer as usize);
            assert_eq!(started.cached_blocks as usize, expected, "seed {seed}");
            // A match does not know of the partial block, which may decide about similarity.
            let is_near_threshold = (found as usize).min(expected) <= 1 + prompt.len() / 9;
            assert!(found as usize == expected || is_near_threshold, "seed {seed}");
            let held: usize = server.slots.iter().map(|(kept, _)| kept.len()).sum();
            let saved: usize = server.saved.iter().map(Vec::len).sum();
            let stats = index.rank_stats(rank).expect("the rank is there");
            let blocks = stats.resident_keyed_blocks + stats.anonymous_blocks;
            assert_eq!(blocks as usize, held + saved);
        }
    }
}

fn with_slots(slots: u32, capacity: u32) -> (KvIndex, Slot) {
    let mut index = KvIndex::new();
    let rank = index.add_rank_as(capacity, Eviction::Slots(slots));
    (index, rank)
}

fn begin(index: &mut KvIndex, rank: Slot, prompt: &[BlockKey]) -> Booking {
    let mut booking = index.book(rank, prompt, 1);
    index.start(&mut booking);
    booking
}

#[test]
fn a_slot_that_is_taken_over_loses_its_sequence() {
    let (mut index, rank) = with_slots(2, 0);
    for document in 0..2 {
        serve(&mut index, rank, &keys(document * 100..document * 100 + 10), 1);
    }
    assert_eq!(matched(&index, rank, &keys(0..20)), (10, 10));
    serve(&mut index, rank, &keys(200..210), 1);
    assert_eq!(matched(&index, rank, &keys(0..20)), (0, 0), "it was the oldest");
    assert_eq!(matched(&index, rank, &keys(100..120)), (10, 10));
}

#[test]
fn what_differs_behind_the_common_part_is_dropped() {
    let (mut index, rank) = with_slots(2, 0);
    serve(&mut index, rank, &keys(0..10), 1);
    let branch = [keys(0..6), keys(50..52)].concat();
    assert_eq!(serve(&mut index, rank, &branch, 1).0, 6);
    assert_eq!(matched(&index, rank, &keys(0..10)), (6, 6));
    assert_eq!(matched(&index, rank, &branch), (8, 8));
}

#[test]
fn a_sequence_that_was_saved_is_taken_back() {
    let (mut index, rank) = with_slots(1, 1_000);
    serve(&mut index, rank, &keys(0..10), 1);
    serve(&mut index, rank, &keys(100..110), 1);
    assert_eq!(matched(&index, rank, &keys(0..20)), (10, 10));
    assert_eq!(serve(&mut index, rank, &keys(0..12), 1).0, 10);
    assert_eq!(matched(&index, rank, &keys(100..110)), (10, 10));
    index.set_capacity(rank, 12);
    assert_eq!(matched(&index, rank, &keys(100..110)), (0, 0));
}

#[test]
fn what_a_running_request_holds_is_of_no_use_to_others() {
    let (mut index, rank) = with_slots(2, 0);
    let running = begin(&mut index, rank, &keys(0..10));
    assert_eq!(matched(&index, rank, &keys(0..10)), (0, 0));
    let second = begin(&mut index, rank, &keys(0..10));
    assert_eq!(index.started(&second).map(|started| started.cached_blocks), Some(0));
    index.finish(running, 0);
    assert_eq!(matched(&index, rank, &keys(0..10)), (10, 10));
    index.finish(second, 0);
}

#[test]
fn an_idle_slot_that_is_spoken_for_is_not_promised_again() {
    let (mut index, rank) = with_slots(2, 0);
    serve(&mut index, rank, &keys(0..10), 1);
    let waiting = index.book(rank, &keys(0..11), 1);
    assert_eq!(matched(&index, rank, &keys(0..10)), (0, 0));
    index.rollback(waiting);
    assert_eq!(matched(&index, rank, &keys(0..10)), (10, 10));
}

#[test]
fn a_single_slot_passes_from_one_prompt_to_the_next() {
    let (mut index, rank) = with_slots(1, 0);
    let first = begin(&mut index, rank, &keys(0..10));
    assert_eq!(matched(&index, rank, &keys(0..12)), (10, 10), "it will be there by then");
    let mut second = index.book(rank, &keys(0..12), 1);
    index.start(&mut second);
    assert_eq!(index.started(&second), None, "it waits for the slot");
    index.finish(first, 0);
    assert_eq!(index.started(&second).map(|started| started.cached_blocks), Some(10));
    assert_eq!(index.finish(second, 0).cached_blocks, 10);
}

#[test]
fn requests_wait_in_line_and_may_go_while_they_do() {
    let (mut index, rank) = with_slots(1, 0);
    let running = begin(&mut index, rank, &keys(0..10));
    let gone = begin(&mut index, rank, &keys(100..110));
    let next = begin(&mut index, rank, &keys(200..210));
    assert_eq!(index.rank_stats(rank).map(|stats| stats.bookings), Some(3));
    index.rollback(gone);
    index.finish(running, 0);
    assert!(index.started(&next).is_some());
    index.finish(next, 0);
    assert_eq!(matched(&index, rank, &keys(200..210)), (10, 10));
    let stats = index.rank_stats(rank).expect("the rank is there");
    assert_eq!((stats.bookings, stats.pinned_blocks), (0, 0));
}

#[test]
fn the_next_turn_goes_on_with_a_slots_answer() {
    let (mut index, rank) = with_slots(4, 0);
    let mut booking = index.book(rank, &keys(0..10), 1);
    index.start(&mut booking);
    index.grow(&mut booking, 2);
    index.finish(booking, 3);
    let mut into = Matches::default();
    index.match_prefix(&keys(0..20), &mut into);
    assert_eq!(into.answer_blocks(rank), 3);
    let mut next = index.book(rank, &keys(0..20), 1);
    next.count_on_answer();
    assert_eq!(index.start(&mut next).cached_blocks, 13);
    index.finish(next, 0);
}

#[test]
fn slots_are_purged_and_removed() {
    let (mut index, rank) = with_slots(4, 100);
    serve(&mut index, rank, &keys(0..10), 1);
    assert_eq!(index.purge(rank, &keys(0..20), 4), 6);
    assert_eq!(matched(&index, rank, &keys(0..20)), (4, 4));
    assert_eq!(index.purge_rank(rank), 4);
    serve(&mut index, rank, &keys(0..10), 1);
    index.remove_rank(rank);
    assert_eq!(matched(&index, rank, &keys(0..20)), (0, 0));
    assert!(index.slot_ranks.is_empty());
}
