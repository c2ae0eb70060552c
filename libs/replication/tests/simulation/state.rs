//! A small pool: leases, and for each rank an LRU set of block keys.

use std::cell::Cell;
use std::collections::BTreeMap;

use domain::{BlockKey, RankId};
use replication::{Lease, LeaseBook, LeaseChange, LeaseKey, Replicated};

/// Blocks that a rank's cache has room for.
const CAPACITY: usize = 48;

#[derive(Clone, Debug)]
pub(crate) enum Delta {
    Lease(LeaseChange),
    /// A prompt was sent to a rank.
    Cached {
        rank: RankId,
        keys: Vec<BlockKey>,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Chunk {
    Turn { turn: u64, damage: u64 },
    Rank { rank: RankId, blocks: Vec<(BlockKey, u64)> },
    Leases(Vec<(LeaseKey, Lease)>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PoolState {
    pub(crate) book: LeaseBook,
    /// Per rank, its blocks with the turn of their last use.
    caches: BTreeMap<RankId, BTreeMap<BlockKey, u64>>,
    turn: u64,
    /// A damage that shows in the checksums.
    damage: Cell<u64>,
}

impl PoolState {
    /// Leading keys that the rank holds.
    pub(crate) fn matched(&self, rank: &RankId, keys: &[BlockKey]) -> usize {
        let Some(cache) = self.caches.get(rank) else { return 0 };
        keys.iter().take_while(|key| cache.contains_key(key)).count()
    }

    fn use_blocks(&mut self, rank: &RankId, keys: &[BlockKey]) {
        // Content of a rank that is gone is of no use to anybody.
        if self.book.load(rank).is_none() {
            return;
        }
        let cache = self.caches.entry(rank.clone()).or_default();
        for key in keys {
            self.turn += 1;
            cache.insert(*key, self.turn);
        }
        while cache.len() > CAPACITY {
            let oldest = cache.iter().min_by_key(|(_, used)| **used).map(|(key, _)| *key);
            oldest.map(|key| cache.remove(&key));
        }
    }

    /// Everything, to be compared.
    pub(crate) fn content(&self) -> String {
        format!("{:?}", (&self.book, &self.caches, self.turn))
    }

    /// Makes this state differ, as a fault of memory would; whether that shows.
    pub(crate) fn corrupt(&self) -> bool {
        let shows = self.book.ranks().next().is_some();
        self.damage.set(self.damage.get() + u64::from(shows));
        shows
    }
}

impl Replicated for PoolState {
    type Delta = Delta;
    type Chunk = Chunk;

    fn apply(&mut self, delta: &Delta) {
        match delta {
            Delta::Lease(change) => {
                self.book.apply(change);
                if let LeaseChange::RankRemoved { rank } = change {
                    self.caches.remove(rank);
                }
            }
            Delta::Cached { rank, keys } => self.use_blocks(rank, keys),
        }
    }

    fn weight(delta: &Delta) -> usize {
        match delta {
            Delta::Lease(_) => 64,
            Delta::Cached { keys, .. } => 64 + 8 * keys.len(),
        }
    }

    fn snapshot(&self) -> Vec<Chunk> {
        let mut chunks = vec![Chunk::Turn { turn: self.turn, damage: self.damage.get() }];
        for rank in self.book.ranks() {
            let cache = self.caches.get(rank).cloned().unwrap_or_default();
            let blocks: Vec<_> = cache.into_iter().collect();
            let mut parts: Vec<Vec<_>> = blocks.chunks(16).map(<[_]>::to_vec).collect();
            if parts.is_empty() {
                parts.push(Vec::new());
            }
            let chunk = |blocks| Chunk::Rank { rank: rank.clone(), blocks };
            chunks.extend(parts.into_iter().map(chunk));
        }
        let leases: Vec<_> = self.book.iter().map(|(k, l)| (k.clone(), l.clone())).collect();
        chunks.extend(leases.chunks(4).map(|part| Chunk::Leases(part.to_vec())));
        chunks
    }

    fn empty(&self) -> Self {
        Self::default()
    }

    fn load(&mut self, chunk: Chunk) {
        match chunk {
            Chunk::Turn { turn, damage } => {
                self.turn = turn;
                self.damage.set(damage);
            }
            Chunk::Rank { rank, blocks } => {
                self.book.apply(&LeaseChange::RankAdded { rank: rank.clone() });
                if !blocks.is_empty() {
                    self.caches.entry(rank).or_default().extend(blocks);
                }
            }
            Chunk::Leases(leases) => {
                for (key, lease) in leases {
                    self.book.apply(&LeaseChange::Opened { key, lease });
                }
            }
        }
    }

    fn checksums(&self) -> Vec<(RankId, u64)> {
        let with_blocks = |(rank, leases): (&RankId, u64)| {
            let blocks = self.caches.get(rank).into_iter().flatten();
            let sum = blocks.fold(leases ^ self.damage.get(), |sum, (key, used)| {
                sum.wrapping_add((key.0 ^ used.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            });
            (rank.clone(), sum)
        };
        self.book.checksums().map(with_blocks).collect()
    }
}
