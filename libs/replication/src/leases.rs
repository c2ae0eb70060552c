//! Leases: what an owner has promised of its ranks, to whom.
//!
//! A lease is named by the edge that asked, so that asking twice books once, and so that it
//! keeps its name over owners. Its life is split in two:
//! - the [`LeaseBook`] is replicated: which leases there are and what they add up to on each
//!   rank. It is changed by [`LeaseChange`]s alone.
//! - [`Sessions`](crate::Sessions) are the serving owner's own: whose session is live, what is
//!   orphaned, what must not be opened again. They decide the changes.

use std::collections::BTreeMap;

use domain::{Incarnation, LeaseId, RankId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::member::{MemberId, Process};

/// The name of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseKey {
    /// Who asked for it.
    pub edge: Process,
    /// Its number there; a process never gives one twice.
    pub lease: LeaseId,
}

/// How far a leased request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Before its first token.
    Waiting,
    /// It has generated.
    Generating,
}

/// What a lease holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The very life of the rank that it was booked on.
    pub rank: RankId,
    /// Blocks of prompt and output so far.
    pub blocks: u32,
    /// How far it is.
    pub phase: Phase,
}

impl Lease {
    /// Whether a report adds something; what is late does not take back what came before.
    fn is_behind(&self, phase: Phase, blocks: u32) -> bool {
        phase > self.phase || blocks > self.blocks
    }
}

/// A change of the book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// A lease is there, in place of any other of its name.
    Opened {
        /// Its name.
        key: LeaseKey,
        /// What it holds.
        lease: Lease,
    },
    /// It is further. Less than is known changes nothing.
    Progressed {
        /// Its name.
        key: LeaseKey,
        /// How far.
        phase: Phase,
        /// Blocks so far.
        blocks: u32,
    },
    /// It is gone.
    Ended {
        /// Its name.
        key: LeaseKey,
    },
    /// A rank takes part. Leases that named it before count on it from now on.
    RankAdded {
        /// The rank.
        rank: RankId,
    },
    /// A rank is gone. Leases on it live on, as their streams may, and count on nobody.
    RankRemoved {
        /// The rank.
        rank: RankId,
    },
}

/// What the leases of one rank add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RankLoad {
    /// Leases.
    pub leases: u32,
    /// Those before their first token.
    pub waiting: u32,
    /// Their blocks.
    pub blocks: u64,
}

/// All leases of a pool, and the load they make.
#[derive(Clone, Debug, Default)]
pub struct LeaseBook {
    leases: BTreeMap<LeaseKey, Lease>,
    /// Ranks that take part, and others while leases name them.
    ranks: BTreeMap<RankId, Rank>,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    takes_part: bool,
    load: RankLoad,
    /// Sum of the marks of its leases.
    checksum: u64,
}

impl LeaseBook {
    /// Makes a change. Returns the lease that is gone with it, for what was booked with it to
    /// be released.
    pub fn apply(&mut self, change: &LeaseChange) -> Option<Lease> {
        match change {
            LeaseChange::Opened { key, lease } => {
                let before = self.remove(key);
                self.add(key.clone(), lease.clone());
                before
            }
            LeaseChange::Progressed { key, phase, blocks } => {
                if self.leases.get(key).is_some_and(|lease| lease.is_behind(*phase, *blocks))
                    && let Some(mut lease) = self.remove(key)
                {
                    lease.phase = lease.phase.max(*phase);
                    lease.blocks = lease.blocks.max(*blocks);
                    self.add(key.clone(), lease);
                }
                None
            }
            LeaseChange::Ended { key } => self.remove(key),
            LeaseChange::RankAdded { rank } => {
                self.ranks.entry(rank.clone()).or_default().takes_part = true;
                None
            }
            LeaseChange::RankRemoved { rank } => {
                if let Some(entry) = self.ranks.get_mut(rank) {
                    entry.takes_part = false;
                }
                self.drop_unused(rank);
                None
            }
        }
    }

    fn add(&mut self, key: LeaseKey, lease: Lease) {
        let rank = self.ranks.entry(lease.rank.clone()).or_default();
        rank.load.leases += 1;
        rank.load.waiting += u32::from(lease.phase == Phase::Waiting);
        rank.load.blocks += u64::from(lease.blocks);
        rank.checksum = rank.checksum.wrapping_add(full_mark(&key, &lease));
        self.leases.insert(key, lease);
    }

    fn remove(&mut self, key: &LeaseKey) -> Option<Lease> {
        let lease = self.leases.remove(key)?;
        if let Some(rank) = self.ranks.get_mut(&lease.rank) {
            rank.load.leases -= 1;
            rank.load.waiting -= u32::from(lease.phase == Phase::Waiting);
            rank.load.blocks -= u64::from(lease.blocks);
            rank.checksum = rank.checksum.wrapping_sub(full_mark(key, &lease));
        }
        self.drop_unused(&lease.rank);
        Some(lease)
    }

    fn drop_unused(&mut self, rank: &RankId) {
        if self.ranks.get(rank).is_some_and(|r| !r.takes_part && r.load.leases == 0) {
            self.ranks.remove(rank);
        }
    }

    /// The lease of that name.
    pub fn get(&self, key: &LeaseKey) -> Option<&Lease> {
        self.leases.get(key)
    }

    /// All leases, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&LeaseKey, &Lease)> {
        self.leases.iter()
    }

    /// The leases of one process of an edge, ordered by number.
    pub fn of_edge<'a>(
        &'a self,
        edge: &Process,
    ) -> impl Iterator<Item = (LeaseId, &'a Lease)> + use<'a> {
        let key = |lease| LeaseKey { edge: edge.clone(), lease };
        let range = key(LeaseId(0))..=key(LeaseId(u64::MAX));
        self.leases.range(range).map(|(key, lease)| (key.lease, lease))
    }

    /// The leases of every process of an edge before `incarnation`.
    pub(crate) fn of_processes_before<'a>(
        &'a self,
        edge: &MemberId,
        incarnation: Incarnation,
    ) -> impl Iterator<Item = &'a LeaseKey> + use<'a> {
        let key = |incarnation| LeaseKey {
            edge: Process { id: edge.clone(), incarnation },
            lease: LeaseId(0),
        };
        self.leases.range(key(Incarnation(0))..key(incarnation)).map(|(key, _)| key)
    }

    /// What is leased on a rank; `None` if it does not take part.
    pub fn load(&self, rank: &RankId) -> Option<RankLoad> {
        self.ranks.get(rank).filter(|rank| rank.takes_part).map(|rank| rank.load)
    }

    /// The ranks that take part.
    pub fn ranks(&self) -> impl Iterator<Item = &RankId> {
        self.ranks.iter().filter(|(_, rank)| rank.takes_part).map(|(id, _)| id)
    }

    /// For each rank that takes part or is named by a lease, a checksum of its leases.
    pub fn checksums(&self) -> impl Iterator<Item = (&RankId, u64)> {
        let sum = |rank: &Rank| rank.checksum.wrapping_add(u64::from(rank.takes_part));
        self.ranks.iter().map(move |(id, rank)| (id, sum(rank)))
    }
}

/// A number for a lease on its rank, to be summed up: equal sums are equal sets.
pub(crate) fn mark(lease: LeaseId, rank: &RankId) -> u64 {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&lease.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&rank.incarnation.0.to_le_bytes());
    bytes[16..].copy_from_slice(&rank.rank.to_le_bytes());
    xxh3_64_with_seed(rank.backend.as_str().as_bytes(), xxh3_64_with_seed(&bytes, 0))
}

/// The same with the edge, and all that the lease holds.
fn full_mark(key: &LeaseKey, lease: &Lease) -> u64 {
    let mut bytes = [0; 21];
    bytes[..8].copy_from_slice(&mark(key.lease, &lease.rank).to_le_bytes());
    bytes[8..16].copy_from_slice(&key.edge.incarnation.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&lease.blocks.to_le_bytes());
    bytes[20] = u8::from(lease.phase == Phase::Generating);
    xxh3_64_with_seed(key.edge.id.as_str().as_bytes(), xxh3_64_with_seed(&bytes, 0))
}

#[cfg(test)]
mod tests;
