//! What an edge does when no router answers: it goes by its own last decisions.
//!
//! [`OwnDecisions`] maps prefixes to the rank that they were last sent to, at depths of 1, 2,
//! 4, 8 … blocks: enough to stay with a warm rank, in memory that does not grow with prompts.

use std::collections::HashMap;

use domain::{BlockKey, RankId};

/// How far above the mean of the requests in flight a warm rank may be.
const ABOVE_MEAN: f64 = 1.25;

/// A rank that may be chosen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackRank<'a> {
    /// The rank.
    pub rank: &'a RankId,
    /// Requests of this edge that are open there.
    pub in_flight: u32,
}

/// A choice that was made without a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackChoice {
    /// Which of the ranks that were given.
    pub index: usize,
    /// The depth in blocks at which it was remembered; 0 where it was taken for its load.
    pub remembered_blocks: u32,
}

/// An edge's own last decisions.
///
/// Two generations bound it: what is not used while as many others are is forgotten.
#[derive(Debug)]
pub struct OwnDecisions {
    capacity: usize,
    young: HashMap<BlockKey, RankId>,
    old: HashMap<BlockKey, RankId>,
    /// When a rank was last taken for its load, in turns; bounded by the ranks that are given.
    taken: HashMap<RankId, u64>,
    turn: u64,
}

impl OwnDecisions {
    /// Remembers between `capacity` and twice as many prefixes.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            young: HashMap::new(),
            old: HashMap::new(),
            taken: HashMap::new(),
            turn: 0,
        }
    }

    /// A prompt was sent to a rank, whoever decided it.
    pub fn remember(&mut self, keys: &[BlockKey], rank: &RankId) {
        for (_, key) in depths(keys) {
            self.old.remove(&key);
            if self.young.len() >= self.capacity && !self.young.contains_key(&key) {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(key, rank.clone());
        }
    }

    /// Prefixes that are remembered.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rank of the deepest remembered prefix that is among `ranks` and not too busy; else
    /// the one with the least in flight, of those the one that was taken least recently. `None`
    /// if there is no rank. The caller leaves out those that it knows to be gone.
    pub fn choose(
        &mut self,
        keys: &[BlockKey],
        ranks: &[FallbackRank<'_>],
    ) -> Option<FallbackChoice> {
        let limit = limit(ranks);
        let mut prefixes: Vec<_> = depths(keys).collect();
        prefixes.reverse();
        for (depth, key) in prefixes {
            let Some(rank) = self.young.get(&key).or_else(|| self.old.get(&key)) else { continue };
            let found = ranks.iter().position(|r| r.rank == rank && r.in_flight < limit);
            if let Some(index) = found {
                return Some(FallbackChoice { index, remembered_blocks: depth });
            }
        }
        let taken = |rank: &RankId| self.taken.get(rank).copied().unwrap_or_default();
        let least = |(_, r): &(usize, &FallbackRank<'_>)| (r.in_flight, taken(r.rank));
        let (index, chosen) = ranks.iter().enumerate().min_by_key(least)?;
        self.turn += 1;
        self.taken.retain(|rank, _| ranks.iter().any(|r| r.rank == rank));
        self.taken.insert(chosen.rank.clone(), self.turn);
        Some(FallbackChoice { index, remembered_blocks: 0 })
    }
}

/// The keys at depths of 1, 2, 4, 8 … blocks, with the depth.
fn depths(keys: &[BlockKey]) -> impl Iterator<Item = (u32, BlockKey)> {
    let depths = std::iter::successors(Some(1_usize), |depth| depth.checked_mul(2));
    depths.map_while(|depth| keys.get(depth - 1).map(|key| (depth as u32, *key)))
}

/// A warm rank is taken while it has fewer requests than this: the share of a rank if the new
/// request is counted, with [`ABOVE_MEAN`] on top, and at least one.
fn limit(ranks: &[FallbackRank<'_>]) -> u32 {
    let total: u64 = ranks.iter().map(|rank| u64::from(rank.in_flight)).sum();
    let mean = (total + 1) as f64 / ranks.len().max(1) as f64;
    (ABOVE_MEAN * mean).ceil() as u32
}

#[cfg(test)]
mod tests;
