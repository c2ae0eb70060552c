//! Removed ranks: out of sight at once, their entries freed a few at a time.

use crate::index::KvIndex;
use crate::node::NodeId;
use crate::rank::Rank;
use crate::types::Eviction;

/// Nodes plus holders that one call looks at, at most (the last node may exceed it): some
/// tens of microseconds.
const BUDGET: usize = 1024;

/// Progress of the walk over the arena. The walk needs no list of a rank's entries: nodes
/// that it has passed get no entry of a removed rank again.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// See [`BUDGET`].
    pub(crate) budget: usize,
    cursor: NodeId,
    /// Slots whose entries this walk removes.
    batch: Vec<u32>,
    /// Slots removed since it began; the next walk takes them.
    waiting: Vec<u32>,
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep { budget: BUDGET, cursor: 0, batch: Vec::new(), waiting: Vec::new() }
    }
}

impl Sweep {
    pub(crate) fn is_pending(&self) -> bool {
        !(self.batch.is_empty() && self.waiting.is_empty())
    }

    pub(crate) fn add(&mut self, slot: u32) {
        self.waiting.push(slot);
    }
}

impl KvIndex {
    /// Every change begins here: does a bounded part of the work that removed ranks left behind.
    pub(crate) fn sweep_some(&mut self) {
        self.version = self.version.wrapping_add(1);
        if !self.sweep.is_pending() {
            return;
        }
        if self.sweep.batch.is_empty() {
            self.sweep.batch = std::mem::take(&mut self.sweep.waiting);
            self.sweep.cursor = 0;
        }
        let mut spent = 0;
        let mut next = self.tree.known_from(self.sweep.cursor);
        while let Some(id) = next.filter(|_| spent < self.sweep.budget) {
            spent += 1 + self.tree.node(id).holders.len();
            self.sweep_node(id);
            self.sweep.cursor = id + 1;
            next = self.tree.known_from(self.sweep.cursor);
        }
        if next.is_none() {
            for slot in std::mem::take(&mut self.sweep.batch) {
                self.radix_ranks -= u32::from(self.ranks[slot as usize].is_radix());
                self.ranks[slot as usize] = Rank::new(0, Eviction::FreeQueue);
                self.vacant_slots.push(slot);
            }
        }
        self.merge_pending();
    }

    fn sweep_node(&mut self, id: NodeId) {
        let mut holders = std::mem::take(&mut self.tree.node_mut(id).holders);
        let before = holders.len();
        let mut copies = 0;
        holders.retain(|holder| {
            let live = self.is_live(holder.slot);
            if !live {
                copies += self.ranks[holder.slot as usize].copies_of(id);
            }
            live
        });
        let changed = holders.len() < before;
        if self.answers.follow(id) {
            let generations = &self.generations;
            self.answers.retain(id, |slot| generations[slot as usize].is_multiple_of(2));
        }
        let node = self.tree.node_mut(id);
        node.holders = holders;
        if changed {
            node.holders.shrink_to_fit();
            node.copies -= copies;
            node.recount();
            self.tidy(id);
        }
    }
}
