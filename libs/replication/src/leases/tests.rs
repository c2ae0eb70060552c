use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn rank(number: u8) -> RankId {
    RankId { backend: "b".into(), incarnation: Incarnation(u64::from(number)), rank: 0 }
}

fn key(edge: u8, lease: u64) -> LeaseKey {
    let edge = Process { id: "e".into(), incarnation: Incarnation(u64::from(edge)) };
    LeaseKey { edge, lease: LeaseId(lease) }
}

fn change() -> impl Strategy<Value = LeaseChange> {
    let name = (0_u8..2, 0_u64..6).prop_map(|(edge, lease)| key(edge, lease));
    let phase = prop_oneof![Just(Phase::Waiting), Just(Phase::Generating)];
    prop_oneof![
        4 => (name.clone(), 0_u8..3, 0_u32..9, phase.clone()).prop_map(|(key, at, blocks, phase)| {
            LeaseChange::Opened { key, lease: Lease { rank: rank(at), blocks, phase } }
        }),
        3 => (name.clone(), phase, 0_u32..9)
            .prop_map(|(key, phase, blocks)| LeaseChange::Progressed { key, phase, blocks }),
        3 => name.prop_map(|key| LeaseChange::Ended { key }),
        1 => (0_u8..3).prop_map(|at| LeaseChange::RankAdded { rank: rank(at) }),
        1 => (0_u8..3).prop_map(|at| LeaseChange::RankRemoved { rank: rank(at) }),
    ]
}

/// What a book should be: two maps without counters.
#[derive(Default)]
struct Naive {
    leases: BTreeMap<LeaseKey, Lease>,
    ranks: BTreeMap<RankId, ()>,
}

impl Naive {
    fn apply(&mut self, change: &LeaseChange) -> Option<Lease> {
        match change.clone() {
            LeaseChange::Opened { key, lease } => self.leases.insert(key, lease),
            LeaseChange::Progressed { key, phase, blocks } => {
                if let Some(lease) = self.leases.get_mut(&key) {
                    lease.phase = lease.phase.max(phase);
                    lease.blocks = lease.blocks.max(blocks);
                }
                None
            }
            LeaseChange::Ended { key } => self.leases.remove(&key),
            LeaseChange::RankAdded { rank } => {
                self.ranks.insert(rank, ());
                None
            }
            LeaseChange::RankRemoved { rank } => {
                self.ranks.remove(&rank);
                None
            }
        }
    }

    fn load(&self, rank: &RankId) -> Option<RankLoad> {
        self.ranks.get(rank)?;
        let mut load = RankLoad::default();
        for lease in self.leases.values().filter(|lease| lease.rank == *rank) {
            load.leases += 1;
            load.waiting += u32::from(lease.phase == Phase::Waiting);
            load.blocks += u64::from(lease.blocks);
        }
        Some(load)
    }
}

proptest! {
    #[test]
    fn counters_are_what_the_leases_add_up_to(changes in prop::collection::vec(change(), 0..120)) {
        let (mut book, mut naive) = (LeaseBook::default(), Naive::default());
        for change in &changes {
            prop_assert_eq!(book.apply(change), naive.apply(change));
            for number in 0..3 {
                prop_assert_eq!(book.load(&rank(number)), naive.load(&rank(number)));
            }
        }
        prop_assert!(book.iter().eq(naive.leases.iter()));
        prop_assert!(book.ranks().eq(naive.ranks.keys()));
        // Nothing is left of a rank that nobody speaks of any more.
        for key in naive.leases.keys() {
            book.apply(&LeaseChange::Ended { key: key.clone() });
        }
        for rank in naive.ranks.keys() {
            book.apply(&LeaseChange::RankRemoved { rank: rank.clone() });
        }
        prop_assert!(book.ranks.is_empty());
    }

    /// The checksum is one of the content, not of the way to it.
    #[test]
    fn equal_books_have_equal_checksums_and_others_do_not(
        changes in prop::collection::vec(change(), 0..60), odd in change(),
    ) {
        let mut book = LeaseBook::default();
        for change in &changes {
            book.apply(change);
        }
        let mut other = LeaseBook::default();
        for rank in book.ranks() {
            other.apply(&LeaseChange::RankAdded { rank: rank.clone() });
        }
        for (key, lease) in book.iter() {
            other.apply(&LeaseChange::Opened { key: key.clone(), lease: lease.clone() });
        }
        prop_assert!(book.checksums().eq(other.checksums()));
        other.apply(&odd);
        let same = book.iter().eq(other.iter()) && book.ranks().eq(other.ranks());
        prop_assert_eq!(same, book.checksums().eq(other.checksums()));
    }
}

#[test]
fn leases_of_a_rank_that_is_gone_live_on_and_count_on_nobody() {
    let mut book = LeaseBook::default();
    let lease = Lease { rank: rank(1), blocks: 5, phase: Phase::Generating };
    book.apply(&LeaseChange::RankAdded { rank: rank(1) });
    book.apply(&LeaseChange::Opened { key: key(0, 1), lease: lease.clone() });
    book.apply(&LeaseChange::RankRemoved { rank: rank(1) });
    book.apply(&LeaseChange::RankAdded { rank: rank(2) });
    assert_eq!(book.load(&rank(1)), None);
    assert_eq!(book.load(&rank(2)), Some(RankLoad::default()), "another life of the backend");
    assert_eq!(book.get(&key(0, 1)), Some(&lease), "its stream may still run");
    assert_eq!(book.apply(&LeaseChange::Ended { key: key(0, 1) }), Some(lease));
}
