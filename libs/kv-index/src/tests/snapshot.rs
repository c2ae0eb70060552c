//! What is taken to another index is the same there.

use domain::BlockKey;
use proptest::prelude::*;

use crate::{Booking, Eviction, KvIndex, Slot};

/// One operation; numbers are taken modulo what there is to choose from.
#[derive(Clone, Debug)]
enum Op {
    Book(Vec<u8>, u32),
    Start(usize),
    Grow(usize, u32),
    Finish(usize, u32, u32),
}

fn keys(path: &[u8]) -> Vec<BlockKey> {
    let chained = path.iter().scan(0_u64, |before, step| {
        *before = (*before + u64::from(*step) + 1).wrapping_mul(0x0100_0000_01b3);
        Some(BlockKey(*before))
    });
    chained.collect()
}

struct Original {
    index: KvIndex,
    slot: Slot,
    open: Vec<Booking>,
    paths: Vec<Vec<u8>>,
}

impl Original {
    fn new(capacity: u32, eviction: Eviction) -> Self {
        let mut index = KvIndex::new();
        let slot = index.add_rank_as(capacity, eviction);
        Self { index, slot, open: Vec::new(), paths: Vec::new() }
    }

    fn apply(&mut self, op: &Op) {
        let open = self.open.len();
        match op {
            Op::Book(path, extra) => {
                self.open.push(self.index.book(self.slot, &keys(path), *extra));
                self.paths.push(path.clone());
            }
            Op::Start(at) if open > 0 => {
                self.index.start(&mut self.open[at % open]);
            }
            Op::Grow(at, blocks) if open > 0 => {
                self.index.grow(&mut self.open[at % open], *blocks);
            }
            Op::Finish(at, cached, answer) if open > 0 => {
                let booking = self.open.remove(at % open);
                let mut path = self.paths.remove(at % open);
                let prompt = path.len();
                path.extend((0..*answer).map(|_| 1));
                self.index.finish_with_answer(booking, *cached, &keys(&path)[prompt..]);
            }
            _ => {}
        }
    }

    /// The same in a new index.
    fn copy(&self, capacity: u32, eviction: Eviction) -> Self {
        let mut copy = Self::new(capacity, eviction);
        for content in self.index.contents(self.slot) {
            copy.index.restore(copy.slot, &content);
            copy.index.check_invariants();
        }
        let booked = self.open.iter().map(|booking| self.index.booked(booking));
        let mut booked: Vec<_> = booked.enumerate().collect();
        booked.sort_by_key(|(_, booked)| booked.holds_copy);
        let mut open = Vec::new();
        for (at, booked) in booked {
            open.push((at, copy.index.restore_booking(copy.slot, &booked)));
            copy.index.check_invariants();
        }
        open.sort_by_key(|(at, _)| *at);
        copy.open = open.into_iter().map(|(_, booking)| booking).collect();
        copy.paths.clone_from(&self.paths);
        copy
    }

    fn finish_all(&mut self) {
        while !self.open.is_empty() {
            self.apply(&Op::Finish(0, 1, 0));
        }
    }
}

fn any_path() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![4 => Just(1_u8), 1 => 2..4_u8], 0..8)
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (any_path(), 0..3_u32).prop_map(|(path, extra)| Op::Book(path, extra)),
        5 => (0..64_usize).prop_map(Op::Start),
        2 => (0..64_usize, 0..4_u32).prop_map(|(at, blocks)| Op::Grow(at, blocks)),
        5 => (0..64_usize, 0..4_u32, 0..3_u32).prop_map(|(at, c, a)| Op::Finish(at, c, a)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_has_the_same_content_in_the_same_order(
        ops in proptest::collection::vec(any_op(), 1..60),
        capacity in 4..60_u32,
    ) {
        let mut original = Original::new(capacity, Eviction::FreeQueue);
        for op in &ops {
            original.apply(op);
        }
        // Nothing in course: what is kept is the order alone.
        original.finish_all();
        let copy = original.copy(capacity, Eviction::FreeQueue);
        prop_assert_eq!(
            copy.index.free_order(copy.slot), original.index.free_order(original.slot)
        );
        prop_assert_eq!(
            copy.index.rank_stats(copy.slot), original.index.rank_stats(original.slot)
        );
    }

    #[test]
    fn a_copy_with_open_requests_has_the_same_prefixes_and_goes_on_alike(
        ops in proptest::collection::vec(any_op(), 1..60),
        later in proptest::collection::vec(any_op(), 0..12),
    ) {
        // Room for everything: an eviction may meet a copy that is held instead of its original.
        let capacity = 2_000;
        let mut original = Original::new(capacity, Eviction::FreeQueue);
        for op in &ops {
            original.apply(op);
        }
        let mut copy = original.copy(capacity, Eviction::FreeQueue);
        prop_assert_eq!(copy.index.resident(copy.slot), original.index.resident(original.slot));
        for op in &later {
            original.apply(op);
            copy.apply(op);
            copy.index.check_invariants();
        }
        original.finish_all();
        copy.finish_all();
        prop_assert_eq!(copy.index.resident(copy.slot), original.index.resident(original.slot));
    }

    #[test]
    fn a_radix_rank_keeps_its_prefixes(ops in proptest::collection::vec(any_op(), 1..40)) {
        let mut original = Original::new(2_000, Eviction::RadixLeaves);
        for op in &ops {
            original.apply(op);
        }
        original.finish_all();
        let copy = original.copy(2_000, Eviction::RadixLeaves);
        prop_assert_eq!(copy.index.resident(copy.slot), original.index.resident(original.slot));
    }
}

#[test]
fn a_rank_with_slots_lists_nothing_and_its_requests_keep_their_size() {
    let mut original = Original::new(100, Eviction::Slots(2));
    original.apply(&Op::Book(vec![1, 1, 1], 1));
    original.apply(&Op::Start(0));
    assert_eq!(original.index.contents(original.slot), []);
    let booked = original.index.booked(&original.open[0]);
    assert_eq!((booked.keys.len(), booked.extra_blocks), (0, 4));
}
