//! The index: its ranks and their sizes.

use crate::answers::Answers;
use crate::asks::{AskClock, Forgotten};
use crate::matches::LISTED;
use crate::node::NodeId;
use crate::rank::Rank;
use crate::sweep::Sweep;
use crate::tree::Tree;
use crate::types::{Eviction, IndexStats, RankStats, Slot};

/// Which rank holds which prefix, with the engine's free queue mirrored for each rank. One
/// index serves the ranks of one pool that use the same block unit.
pub struct KvIndex {
    pub(crate) tree: Tree,
    pub(crate) ranks: Vec<Rank>,
    /// Per slot; even while a rank is there, odd from its removal until the slot is reused.
    pub(crate) generations: Vec<u32>,
    pub(crate) vacant_slots: Vec<u32>,
    live_ranks: usize,
    pub(crate) residencies: usize,
    pub(crate) sweep: Sweep,
    pub(crate) clock: AskClock,
    pub(crate) forgotten: Forgotten,
    /// Changes with every change; see [`KvIndex::matched`].
    pub(crate) version: u64,
    /// See [`LISTED`](crate::matches::LISTED).
    pub(crate) listed: usize,
    /// Output without keys, by the node it follows.
    pub(crate) answers: Answers,
    /// Ranks whose engines' nodes need boundaries of their own; removed ones count until they
    /// are swept.
    pub(crate) radix_ranks: u32,
    /// Ranks with slots: what they hold is not in the tree.
    pub(crate) slot_ranks: Vec<u32>,
    /// Nodes that may have become mergeable with their parents.
    pub(crate) mergeable: Vec<NodeId>,
    /// Scratch of booking, start and end.
    pub(crate) path: Vec<NodeId>,
    /// Blocks popped off the free orders, for tests that compare the order.
    #[cfg(test)]
    pub(crate) evicted: Vec<(u32, Option<domain::BlockKey>)>,
}

impl Default for KvIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for KvIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvIndex").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl KvIndex {
    /// An index without ranks.
    pub fn new() -> Self {
        KvIndex {
            tree: Tree::new(),
            ranks: Vec::new(),
            generations: Vec::new(),
            vacant_slots: Vec::new(),
            live_ranks: 0,
            residencies: 0,
            sweep: Sweep::default(),
            clock: AskClock::default(),
            forgotten: Forgotten::default(),
            version: 0,
            listed: LISTED,
            answers: Answers::default(),
            radix_ranks: 0,
            slot_ranks: Vec::new(),
            mergeable: Vec::new(),
            path: Vec::new(),
            #[cfg(test)]
            evicted: Vec::new(),
        }
    }

    /// Adds an empty rank that has room for so many blocks and evicts as vLLM does. For an engine
    /// whose own block is smaller than the index's, the caller converts.
    pub fn add_rank(&mut self, capacity_blocks: u32) -> Slot {
        self.add_rank_as(capacity_blocks, Eviction::FreeQueue)
    }

    /// Adds an empty rank of an engine that evicts in the given way.
    pub fn add_rank_as(&mut self, capacity_blocks: u32, eviction: Eviction) -> Slot {
        self.sweep_some();
        self.radix_ranks += u32::from(eviction == Eviction::RadixLeaves);
        let rank = Rank::new(capacity_blocks, eviction);
        let index = match self.vacant_slots.pop() {
            Some(index) => {
                self.ranks[index as usize] = rank;
                let generation = &mut self.generations[index as usize];
                *generation = generation.wrapping_add(1);
                index
            }
            None => {
                self.ranks.push(rank);
                self.generations.push(0);
                (self.ranks.len() - 1) as u32
            }
        };
        if matches!(eviction, Eviction::Slots(_)) {
            self.slot_ranks.push(index);
        }
        self.count_ranks(1);
        self.slot(index)
    }

    /// Removes a rank. No later call sees its content, and its bookings have no effect any
    /// more. The memory is freed by later calls, a bounded part in each.
    pub fn remove_rank(&mut self, slot: Slot) {
        self.sweep_some();
        let Some(index) = self.live(slot) else { return };
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
        self.residencies -= self.ranks[index as usize].resident as usize;
        self.slot_ranks.retain(|other| *other != index);
        self.sweep.add(index);
        self.count_ranks(-1);
    }

    fn count_ranks(&mut self, change: isize) {
        self.live_ranks = self.live_ranks.saturating_add_signed(change);
        self.clock.set_ranks(self.live_ranks);
        self.forgotten.set_ranks(self.live_ranks);
    }

    /// Changes a rank's capacity. Less room evicts from the front of its free order.
    pub fn set_capacity(&mut self, slot: Slot, blocks: u32) {
        self.sweep_some();
        let Some(index) = self.live(slot) else { return };
        if let Some(slots) = self.ranks[index as usize].slots_mut() {
            return slots.set_capacity(u64::from(blocks));
        }
        self.ranks[index as usize].capacity = u64::from(blocks);
        self.settle(index);
        self.merge_pending();
    }

    /// Ranks that are there.
    pub fn ranks(&self) -> usize {
        self.live_ranks
    }

    /// The state of one rank; `None` once it is removed.
    pub fn rank_stats(&self, slot: Slot) -> Option<RankStats> {
        let rank = &self.ranks[self.live(slot)? as usize];
        if let Some(slots) = rank.slots() {
            let stats = slots.stats();
            return Some(RankStats {
                capacity: count(stats.capacity),
                pinned_blocks: count(stats.pinned),
                resident_keyed_blocks: count(stats.keyed),
                anonymous_blocks: count(stats.anonymous),
                free_blocks: count(stats.free),
                bookings: stats.bookings,
            });
        }
        Some(RankStats {
            capacity: count(rank.capacity),
            pinned_blocks: count(rank.pinned),
            resident_keyed_blocks: count(rank.resident),
            anonymous_blocks: count(rank.anonymous),
            free_blocks: count(rank.blank()),
            bookings: rank.bookings,
        })
    }

    /// The size of the index.
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            nodes: self.tree.live(),
            distinct_blocks: self.tree.blocks(),
            residencies: self.residencies,
        }
    }

    /// Bytes on the heap that what the ranks hold takes: nodes, labels, holders and the table of
    /// edges, with room that is kept for more. Beside it every rank has some hundred bytes.
    /// Goes over all nodes: for benches, not for every request.
    pub fn heap_bytes(&self) -> usize {
        self.tree.heap_bytes()
    }

    /// The index of a slot whose rank is there.
    #[inline]
    pub(crate) fn live(&self, slot: Slot) -> Option<u32> {
        let generation = *self.generations.get(slot.index as usize)?;
        (generation == slot.generation && self.is_live(slot.index)).then_some(slot.index)
    }

    #[inline]
    pub(crate) fn is_live(&self, index: u32) -> bool {
        self.generations[index as usize].is_multiple_of(2)
    }

    pub(crate) fn slot(&self, index: u32) -> Slot {
        Slot { index, generation: self.generations[index as usize] }
    }
}

/// Blocks as they are reported. An overcommitted rank may count past `u32`.
pub(crate) fn count(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}
