//! Random operations on the index and on the model at once.

use domain::BlockKey;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::model::{Model, ModelBooking};
use crate::{Booking, KvIndex, Matches, RankStats, Slot, Started};

/// One operation; numbers are taken modulo what there is to choose from.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Book { rank: usize, path: Vec<u8>, extra: u32, counts_on_answer: bool },
    Start(usize),
    Grow(usize, u32),
    Finish { at: usize, cached: u32, answer: Vec<u8> },
    Rollback(usize),
    Purge { rank: usize, path: Vec<u8>, keep: u32 },
    PurgeBooked(usize, u32),
    SetCapacity(usize, u32),
    RemoveRank(usize),
    AddRank(u32),
}

/// How keys are made of a path of small numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alphabet {
    /// A key names a whole prefix.
    Chained,
    /// The same few keys at every depth and under every parent: nothing but collisions.
    Colliding,
}

const MAX_RANKS: usize = 5;
const MAX_BOOKINGS: usize = 14;

pub(super) struct Pair {
    pub(super) index: KvIndex,
    pub(super) model: Model,
    alphabet: Alphabet,
    pub(super) ranks: Vec<(Slot, Slot)>,
    bookings: Vec<(Booking, ModelBooking, Vec<u8>)>,
    stale: Vec<Slot>,
    pub(super) into: Matches,
    pub(super) blocks: Vec<u32>,
}

impl Pair {
    pub(super) fn new(alphabet: Alphabet) -> Self {
        let mut index = KvIndex::new();
        // So few that the entries of removed ranks are about for many operations.
        index.sweep.budget = 2;
        Pair {
            index,
            model: Model::new(),
            alphabet,
            ranks: Vec::new(),
            bookings: Vec::new(),
            stale: Vec::new(),
            into: Matches::default(),
            blocks: Vec::new(),
        }
    }

    pub(super) fn keys(&self, path: &[u8]) -> Vec<BlockKey> {
        let chained = path.iter().scan(0_u64, |before, step| {
            *before = (*before + u64::from(*step) + 1).wrapping_mul(0x0100_0000_01b3);
            Some(BlockKey(*before))
        });
        match self.alphabet {
            Alphabet::Chained => chained.collect(),
            Alphabet::Colliding => path.iter().map(|step| BlockKey(u64::from(*step))).collect(),
        }
    }

    fn add_rank(&mut self, capacity: u32) {
        if self.ranks.len() < MAX_RANKS {
            let slots = (self.index.add_rank(capacity), self.model.add_rank(capacity));
            assert!(!self.stale.contains(&slots.0));
            self.ranks.push(slots);
        }
    }

    fn start(&mut self, at: usize) {
        let (booking, twin, _) = &mut self.bookings[at];
        let alive = self.ranks.iter().any(|(slot, _)| *slot == booking.slot());
        let started = self.index.start(booking);
        let expected = self.model.start(twin);
        if alive {
            assert_eq!(started, expected);
            assert_eq!(self.index.start(booking), expected, "a second start changes nothing");
        } else {
            assert!(started == Started::default() || started == expected);
        }
    }

    pub(super) fn apply(&mut self, op: &Op) {
        let pending = self.bookings.len();
        match op {
            Op::Book { rank, path, extra, counts_on_answer } if !self.ranks.is_empty() => {
                let (slot, twin) = self.ranks[rank % self.ranks.len()];
                let prompt = self.keys(path);
                let mut booking = self.index.book(slot, &prompt, *extra);
                let mut twin = self.model.book(twin, &prompt, *extra);
                if *counts_on_answer {
                    booking.count_on_answer();
                    twin.count_on_answer();
                }
                self.bookings.push((booking, twin, path.clone()));
                if self.bookings.len() > MAX_BOOKINGS {
                    self.apply(&Op::Finish { at: 0, cached: extra % 2, answer: Vec::new() });
                }
            }
            Op::Start(at) if pending > 0 => self.start(at % pending),
            Op::Grow(at, blocks) if pending > 0 => {
                let (booking, twin, _) = &mut self.bookings[at % pending];
                self.index.grow(booking, *blocks);
                self.model.grow(twin, *blocks);
            }
            Op::Finish { at, cached, answer } if pending > 0 => {
                let (booking, twin, path) = self.bookings.swap_remove(at % pending);
                let whole = self.keys(&[&path[..], answer].concat());
                self.index.finish_with_answer(booking, *cached, &whole[path.len()..]);
                self.model.finish(twin, *cached, &whole[path.len()..]);
            }
            Op::Rollback(at) if pending > 0 => {
                let (booking, twin, _) = self.bookings.swap_remove(at % pending);
                self.index.rollback(booking);
                self.model.rollback(twin);
            }
            Op::Purge { rank, path, keep } if !self.ranks.is_empty() => {
                let (slot, twin) = self.ranks[rank % self.ranks.len()];
                let prompt = self.keys(path);
                let purged = self.index.purge(slot, &prompt, *keep);
                assert_eq!(purged, self.model.purge(twin, &prompt, *keep));
            }
            Op::PurgeBooked(at, keep) if pending > 0 => {
                let (booking, twin, _) = &self.bookings[at % pending];
                let purged = self.index.purge_booked(booking, *keep);
                if self.index.live(booking.slot()).is_some() {
                    assert_eq!(purged, self.model.purge(twin.slot(), twin.keys(), *keep));
                } else {
                    assert_eq!(purged, 0);
                }
            }
            Op::SetCapacity(rank, capacity) if !self.ranks.is_empty() => {
                let (slot, twin) = self.ranks[rank % self.ranks.len()];
                self.index.set_capacity(slot, *capacity);
                self.model.set_capacity(twin, *capacity);
            }
            Op::RemoveRank(rank) if !self.ranks.is_empty() => {
                let (slot, twin) = self.ranks.swap_remove(rank % self.ranks.len());
                self.index.remove_rank(slot);
                self.model.remove_rank(twin);
                self.stale.push(slot);
            }
            Op::AddRank(capacity) => self.add_rank(*capacity),
            _ => {}
        }
    }

    /// Match of one prompt on every rank, and what was evicted, in order.
    fn compare_match(&mut self, path: &[u8]) {
        let prompt = self.keys(path);
        // However much of it is listed and however much kept as a sum, every rank's count is
        // the model's.
        for listed in [0, 1, 3, MAX_RANKS] {
            self.index.listed = listed;
            self.compare_counts(&prompt);
        }
        let evicted = std::mem::take(&mut self.index.evicted);
        for (slot, twin) in &self.ranks {
            let own = evicted.iter().filter(|(index, _)| *index == slot.index);
            let own: Vec<_> = own.map(|(_, key)| *key).collect();
            assert_eq!(own, self.model.take_evicted(*twin));
        }
    }

    fn compare_counts(&mut self, prompt: &[BlockKey]) {
        self.index.match_prefix(prompt, &mut self.into);
        let mut all = Matches::default();
        self.index.match_prefix(prompt, &mut all);
        self.index.list_all(&mut all);
        let mut holders = all.listed().to_vec();
        self.index.blocks_by_slot(&self.into, &mut self.blocks);
        for (slot, twin) in &self.ranks {
            let matched = self.index.matched(&self.into, *slot);
            let found = matched.map(|m| (m.blocks, m.confirmed_blocks));
            assert_eq!(found, self.model.matched(*twin, prompt), "{slot:?} {prompt:?}");
            assert_eq!(holders.iter().find(|m| m.slot == *slot), matched.as_ref());
            assert_eq!(self.blocks[slot.number()], matched.map_or(0, |m| m.blocks));
            let answer = self.model.answer_blocks(*twin, prompt);
            assert_eq!(self.into.answer_blocks(*slot), answer, "{slot:?} {prompt:?}");
            holders.retain(|m| m.slot != *slot);
        }
        assert_eq!(holders, [], "removed ranks hold nothing");
    }

    fn compare_state(&mut self) {
        self.index.check_invariants();
        for (slot, twin) in &self.ranks {
            assert_eq!(self.index.rank_stats(*slot), self.model.rank_stats(*twin));
            assert_eq!(self.index.free_order(*slot), self.model.free_order(*twin));
            assert_eq!(self.index.resident(*slot), self.model.resident(*twin));
            for blocks in [0, 1, 3, 50] {
                let (expected, asks) = self.model.evictable_after(*twin, blocks);
                let rank = &self.index.ranks[slot.index as usize];
                let places = rank.evicted_by(blocks);
                assert_eq!(places.end - places.start, u64::from(expected));
                self.index.ranks[slot.index as usize].outlook.forget();
                let beyond = self.index.ranks[slot.index as usize].asks_beyond(blocks);
                let own = self.index.asks_evicted_by(*slot, blocks) - beyond;
                if self.index.ranks[slot.index as usize].outlook.reaches(places.end) {
                    let fresh = self.index.asks_in_order(*slot, places);
                    assert!((own - fresh).abs() <= 1e-3 * fresh, "{own} is not {fresh}");
                    // A run counts as its end does, and keys that collide share what is kept of
                    // evicted ones.
                    let collide = matches!(self.alphabet, Alphabet::Colliding);
                    assert!(collide || own <= asks * 1.001, "{own} is more than {asks}");
                }
            }
        }
        for slot in &self.stale {
            assert_eq!(self.index.rank_stats(*slot), None::<RankStats>);
        }
        let (stats, expected) = (self.index.stats(), self.model.stats());
        assert_eq!(stats.residencies, expected.residencies);
        if self.index.sweep.is_pending() {
            assert!(stats.distinct_blocks >= expected.distinct_blocks);
        } else {
            assert_eq!(stats.distinct_blocks, expected.distinct_blocks);
        }
    }

    /// Ends everything and takes all room away: nothing may remain.
    fn drain(&mut self) {
        while !self.bookings.is_empty() {
            self.apply(&Op::Finish { at: 0, cached: 0, answer: Vec::new() });
        }
        for at in 0..self.ranks.len() {
            self.apply(&Op::SetCapacity(at, 0));
        }
        self.compare_state();
        while self.index.sweep.is_pending() {
            self.index.sweep_some();
        }
        assert_eq!(self.index.stats(), crate::IndexStats::default());
    }
}

pub(super) fn random_path(rng: &mut SmallRng) -> Vec<u8> {
    let len = rng.random_range(0..=10);
    // Mostly the first branch: long shared prefixes that diverge late.
    (0..len).map(|_| if rng.random_bool(0.8) { 1 } else { rng.random_range(2..=3) }).collect()
}

pub(super) fn random_op(rng: &mut SmallRng) -> Op {
    let at = rng.random_range(0..64);
    match rng.random_range(0..1000) {
        0..330 => Op::Book {
            rank: at,
            path: random_path(rng),
            extra: if rng.random_bool(0.5) { 0 } else { rng.random_range(1..=3) },
            counts_on_answer: rng.random_bool(0.5),
        },
        330..580 => Op::Start(at),
        580..660 => Op::Grow(at, rng.random_range(0..=4)),
        660..900 => Op::Finish {
            at,
            cached: rng.random_range(0..=4),
            answer: if rng.random_bool(0.5) { random_path(rng) } else { Vec::new() },
        },
        900..950 => Op::Rollback(at),
        950..960 => Op::Purge { rank: at, path: random_path(rng), keep: rng.random_range(0..6) },
        960..970 => Op::PurgeBooked(at, rng.random_range(0..6)),
        970..988 => Op::SetCapacity(at, rng.random_range(0..=60)),
        988..993 => Op::RemoveRank(at),
        _ => Op::AddRank(rng.random_range(5..=60)),
    }
}

fn run_random(seed: u64, operations: usize, alphabet: Alphabet) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut pair = Pair::new(alphabet);
    for done in 0..operations {
        pair.apply(&random_op(&mut rng));
        if done % 2 == 0 {
            pair.compare_match(&random_path(&mut rng));
        }
        if done % 16 == 0 {
            pair.compare_state();
        }
    }
    pair.drain();
}

#[test]
fn a_hundred_thousand_random_operations_agree_with_the_model() {
    run_random(0x5eed_0001, 100_000, Alphabet::Chained);
}

#[test]
pub(super) fn random_operations_on_colliding_keys_agree_with_the_model() {
    run_random(0x5eed_0002, 30_000, Alphabet::Colliding);
}

fn any_path() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![4 => Just(1_u8), 1 => 2..4_u8], 0..8)
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..64_usize, any_path(), 0..3_u32, any::<bool>()).prop_map(
            |(rank, path, extra, counts_on_answer)| Op::Book { rank, path, extra, counts_on_answer }
        ),
        6 => (0..64_usize).prop_map(Op::Start),
        2 => (0..64_usize, 0..4_u32).prop_map(|(at, blocks)| Op::Grow(at, blocks)),
        6 => (0..64_usize, 0..4_u32, any_path())
            .prop_map(|(at, cached, answer)| Op::Finish { at, cached, answer }),
        2 => (0..64_usize).prop_map(Op::Rollback),
        1 => (0..64_usize, any_path(), 0..5_u32)
            .prop_map(|(rank, path, keep)| Op::Purge { rank, path, keep }),
        1 => (0..64_usize, 0..5_u32).prop_map(|(at, keep)| Op::PurgeBooked(at, keep)),
        1 => (0..64_usize, 0..30_u32).prop_map(|(rank, blocks)| Op::SetCapacity(rank, blocks)),
        1 => (0..64_usize).prop_map(Op::RemoveRank),
        1 => (3..30_u32).prop_map(Op::AddRank),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_agrees_with_the_model(
        ops in proptest::collection::vec(any_op(), 1..60),
        collide in any::<bool>(),
    ) {
        let alphabet = if collide { Alphabet::Colliding } else { Alphabet::Chained };
        let mut pair = Pair::new(alphabet);
        pair.add_rank(12);
        pair.add_rank(20);
        for op in &ops {
            pair.apply(op);
            pair.compare_match(&[1, 1, 1, 1, 1, 1, 1]);
            pair.compare_state();
        }
        pair.drain();
    }
}
