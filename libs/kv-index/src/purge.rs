//! Forgetting what an engine turned out not to have.
//!
//! An engine that reports fewer cached tokens than its mirror foretold has lost a block of the
//! prompt, and with it everything that goes on from there, whichever prompt that belongs to.

use std::collections::HashMap;

use domain::BlockKey;

use crate::booking::Booking;
use crate::index::{KvIndex, count};
use crate::node::{NO_NODE, NodeId, Place, Target, common_prefix};
use crate::rank::ExtraKind;
use crate::types::Slot;

/// The part of the tree below one block: `node` from block `offset` of its label on, and all of
/// its descendants.
#[derive(Clone, Copy)]
struct Subtree {
    node: NodeId,
    offset: u32,
}

impl KvIndex {
    /// Forgets that the rank has the prompt's blocks beyond the first `keep_blocks`, and
    /// everything else that continues the first of those. Blocks that started requests hold stay;
    /// bookings stay. What is forgotten leaves room, as if it had been evicted. Returns the
    /// physical blocks forgotten.
    ///
    /// Takes time linear in the prompt, and if other prompts continue it, in the runs of the
    /// rank's free order: a call for the rare case that a mirror was wrong.
    pub fn purge(&mut self, slot: Slot, keys: &[BlockKey], keep_blocks: u32) -> u32 {
        self.sweep_some();
        let Some(index) = self.live(slot) else { return 0 };
        if let Some(slots) = self.ranks[index as usize].slots_mut() {
            return count(slots.purge(keys, keep_blocks));
        }
        let mut parent = NO_NODE;
        let mut depth = 0;
        while let Some(node) = keys.get(depth).and_then(|first| self.tree.child(parent, *first)) {
            let label = &self.tree.node(node).label;
            let common = common_prefix(label, &keys[depth..]);
            let keep = keep_blocks as usize - depth;
            if keep < common {
                return self.purge_subtree(index, Subtree { node, offset: keep as u32 });
            }
            if common < label.len() {
                break;
            }
            depth += common;
            parent = node;
        }
        0
    }

    /// [`KvIndex::purge`] of the prompt that was booked.
    pub fn purge_booked(&mut self, booking: &Booking, keep_blocks: u32) -> u32 {
        self.sweep_some();
        let Some(index) = self.live(booking.slot()) else { return 0 };
        if let Some(slots) = self.ranks[index as usize].slots_mut() {
            return count(slots.purge_booked(booking.job(), keep_blocks));
        }
        self.take_path(index, booking.tail());
        let mut keep = keep_blocks as usize;
        for at in 0..self.path.len() {
            let node = self.path[at];
            let len = self.tree.node(node).label.len();
            if keep < len {
                return self.purge_subtree(index, Subtree { node, offset: keep as u32 });
            }
            keep -= len;
        }
        0
    }

    /// Forgets everything that the rank has and no started request holds. Returns the blocks.
    pub fn purge_rank(&mut self, slot: Slot) -> u32 {
        self.sweep_some();
        let Some(index) = self.live(slot) else { return 0 };
        if let Some(slots) = self.ranks[index as usize].slots_mut() {
            return count(slots.clear());
        }
        let queued = self.ranks[index as usize].queued;
        let purged = self.evict(index, queued);
        self.merge_pending();
        count(purged)
    }

    fn purge_subtree(&mut self, slot: u32, subtree: Subtree) -> u32 {
        let held = self.tree.node(subtree.node).holder(slot);
        if held.is_none_or(|holder| holder.len <= subtree.offset) {
            return 0;
        }
        let (nodes, copies) = self.queued_below(slot, subtree);
        let mut purged = copies.len() as u64;
        for number in copies {
            self.drop_copy(slot, number);
        }
        for node in nodes {
            let keep = if node == subtree.node { subtree.offset } else { 0 };
            purged += self.purge_holder(slot, node, keep);
        }
        self.ranks[slot as usize].queued -= purged;
        self.merge_pending();
        count(purged)
    }

    /// What of the rank's free order lies in the subtree: nodes, and further copies by their
    /// number in the rank.
    fn queued_below(&self, slot: u32, subtree: Subtree) -> (Vec<NodeId>, Vec<u32>) {
        let (mut nodes, mut copies) = (Vec::new(), Vec::new());
        let top = self.tree.node(subtree.node);
        if top.children == 0 && top.copies == 0 {
            nodes.extend(top.holder(slot).filter(|h| h.is_queued()).map(|_| subtree.node));
            return (nodes, copies);
        }
        let rank = &self.ranks[slot as usize];
        let mut known = HashMap::from([(subtree.node, true), (NO_NODE, false)]);
        let mut place = rank.head;
        loop {
            place = match place.target() {
                Target::Nothing => return (nodes, copies),
                Target::Node(id) => {
                    if self.is_below(id, &mut known) {
                        nodes.push(id);
                    }
                    let holder = self.tree.node(id).holder(slot);
                    holder.map_or(Place::NONE, |holder| holder.links.next)
                }
                Target::Extra(number) => {
                    let extra = &rank.extras[number as usize];
                    if let ExtraKind::Copy { node, .. } = extra.kind
                        && self.is_below(node, &mut known)
                    {
                        copies.push(number);
                    }
                    extra.links.next
                }
            };
        }
    }

    /// Whether an ancestor of `id`, or it itself, is `known` to be in the subtree. Notes the
    /// answer for every node on the way up, so that no node is looked at twice.
    fn is_below(&self, id: NodeId, known: &mut HashMap<NodeId, bool>) -> bool {
        let mut at = id;
        let answer = loop {
            match known.get(&at) {
                Some(answer) => break *answer,
                None => at = self.tree.node(at).parent,
            }
        };
        at = id;
        while known.insert(at, answer).is_none() {
            at = self.tree.node(at).parent;
        }
        answer
    }

    /// Returns the physical blocks that went.
    fn purge_holder(&mut self, slot: u32, id: NodeId, keep: u32) -> u64 {
        if self.tree.node(id).copies > 0
            && let Some(number) = self.ranks[slot as usize].take_oldest_copy(id)
        {
            // The copy is a started request's: those that were free are gone already.
            self.promote(slot, id, number);
            return 1;
        }
        let len = self.tree.node(id).holder(slot).map_or(0, |holder| holder.len);
        self.forget_answers(slot, id);
        self.ranks[slot as usize].outlook.forget();
        if self.ranks[slot as usize].is_radix() && keep > 0 && keep < len {
            let above = self.split(id, keep as usize);
            let rank = &mut self.ranks[slot as usize];
            rank.mark_end(above);
            rank.unmark_end(id);
            self.cut_holder(slot, id, 0);
            return u64::from(len - keep);
        }
        if keep == 0 {
            self.ranks[slot as usize].unmark_end(id);
        }
        self.cut_holder(slot, id, keep);
        u64::from(len - keep)
    }
}
