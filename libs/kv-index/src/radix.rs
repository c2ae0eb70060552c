//! SGLang's radix tree (`python/sglang/srt/mem_cache/radix_cache.py`), for the ranks that have it.
//!
//! What it shares with vLLM's free queue is the order: a match and an insertion, at the end of the
//! prefill and of the request, set the time of every node on the path, and a child never is
//! younger than its parent, so leaves by least access are the free order of [`crate::order`].
//! What differs:
//! - The engine's nodes go as a whole. They are cut where a match ended and where a prompt or an
//!   answer ended, and never joined again.
//! - An allocation that does not fit evicts as many blocks as it needs, not as many as are missing.
//! - What was computed twice is given back at once.
//!
//! The shared tree has finer nodes, as other ranks' boundaries are in it too. So each such rank
//! keeps the set of nodes at whose ends a node of its engine's ends. The tree keeps those
//! boundaries.

use std::collections::HashSet;

use crate::index::KvIndex;
use crate::node::{NO_NODE, Node, NodeId, Target};
use crate::rank::{Kind, Rank};

/// Tree nodes at whose end a node of the engine's tree ends.
pub(crate) type NodeEnds = HashSet<NodeId>;

impl Rank {
    pub(crate) fn is_radix(&self) -> bool {
        matches!(self.kind, Kind::RadixLeaves(_))
    }

    pub(crate) fn ends_at(&self, id: NodeId) -> bool {
        match &self.kind {
            Kind::RadixLeaves(ends) => ends.contains(&id),
            Kind::FreeQueue | Kind::Slots(_) => false,
        }
    }

    /// Notes that a node of the engine's ends with `id`; for other kinds of rank nothing.
    pub(crate) fn mark_end(&mut self, id: NodeId) {
        if let Kind::RadixLeaves(ends) = &mut self.kind {
            ends.insert(id);
        }
    }

    /// `id` is the rank's no more.
    pub(crate) fn unmark_end(&mut self, id: NodeId) {
        if let Kind::RadixLeaves(ends) = &mut self.kind {
            ends.remove(&id);
        }
    }
}

impl KvIndex {
    /// Whether a node of some rank's engine ends with `node`.
    pub(crate) fn is_node_end(&self, id: NodeId, node: &Node) -> bool {
        self.radix_ranks > 0
            && node.holders.iter().any(|holder| self.ranks[holder.slot as usize].ends_at(id))
    }

    /// A prompt was matched and inserted: the engine's nodes are cut at these depths, where what
    /// was found of it ended, and at its end.
    pub(crate) fn mark_prompt(&mut self, slot: u32, tail: NodeId, depths: [u32; 2]) {
        for depth in depths {
            self.part_path(slot, tail, depth);
        }
        if tail != NO_NODE {
            self.ranks[slot as usize].mark_end(tail);
        }
    }

    /// Makes sure that a node of `self.path` ends at this depth, and one of the engine's with it.
    pub(crate) fn part_path(&mut self, slot: u32, tail: NodeId, depth: u32) {
        let mut rest = depth as usize;
        for at in 0..self.path.len() {
            let id = self.path[at];
            let len = self.tree.node(id).label.len();
            if rest == 0 {
                return;
            }
            if rest <= len {
                let end = if rest == len { id } else { self.split(id, rest) };
                self.ranks[slot as usize].mark_end(end);
                if rest < len {
                    self.take_path(slot, tail);
                }
                return;
            }
            rest -= len;
        }
    }

    /// Evicts leaves of the engine's tree, least recently used first, until `want` blocks are
    /// gone. Returns how many went.
    pub(crate) fn evict_leaves(&mut self, slot: u32, want: u64) -> u64 {
        let (mut evicted, mut inside) = (0, false);
        while evicted < want || inside {
            let popped = match self.ranks[slot as usize].head.target() {
                Target::Nothing => break,
                Target::Node(id) => {
                    let parent = self.tree.node(id).parent;
                    let rank = &mut self.ranks[slot as usize];
                    rank.unmark_end(id);
                    inside = parent != NO_NODE && !rank.ends_at(parent);
                    self.evict_holder(slot, id, u64::MAX)
                }
                Target::Extra(number) => self.evict_extra(slot, number, u64::MAX),
            };
            self.ranks[slot as usize].queued -= popped;
            evicted += popped;
        }
        evicted
    }
}
