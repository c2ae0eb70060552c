//! The longest prefix per rank.
//!
//! A rank that has a node has all of the node's ancestors, so along a path from the root the
//! sets of holders only shrink. The walk goes down by the table, then back up from the deepest
//! node; a node with as many holders as the one below it has the same ones and adds nothing.

use domain::BlockKey;

use crate::index::KvIndex;
use crate::node::{NO_NODE, Node, NodeId, common_prefix};
use crate::types::{Matched, Slot};

/// The ranks that hold a prefix, ordered by slot. Keep one and pass it to every match: after
/// the first few calls a match allocates nothing.
#[derive(Default, Debug)]
pub struct Matches {
    found: Vec<Matched>,
    spare: Vec<Matched>,
    path: Vec<NodeId>,
    /// Fully matched nodes that output follows, with the depth of their ends.
    ends: Vec<(NodeId, u32)>,
    /// Further blocks by slot index, ordered by it.
    answers: Vec<(u32, u32)>,
}

impl Matches {
    /// The ranks with at least one matched block.
    pub fn iter(&self) -> std::slice::Iter<'_, Matched> {
        self.found.iter()
    }

    /// The result for one rank; `None` if it holds nothing of the prefix.
    pub fn get(&self, slot: Slot) -> Option<&Matched> {
        let at = self.found.binary_search_by_key(&slot.index, |m| m.slot.index).ok()?;
        self.found.get(at).filter(|m| m.slot == slot)
    }

    /// Blocks beyond the matched ones that the rank holds if the prompt goes on with an answer
    /// that this rank gave to the matched part of it. Zero where no answer follows there.
    pub fn answer_blocks(&self, slot: Slot) -> u32 {
        match self.answers.binary_search_by_key(&slot.index, |(index, _)| *index) {
            Ok(at) if self.get(slot).is_some() => self.answers[at].1,
            _ => 0,
        }
    }

    /// Forgets the results, keeps the memory.
    pub fn clear(&mut self) {
        self.found.clear();
        self.answers.clear();
    }

    /// Adds the ranks whose slots keep a beginning of the prompt.
    fn add_slots(&mut self, index: &KvIndex, keys: &[BlockKey]) {
        for rank in &index.slot_ranks {
            let found = index.ranks[*rank as usize].slots().map(|slots| slots.matched(keys));
            let Some((blocks, answer)) = found.filter(|(blocks, _)| *blocks > 0) else { continue };
            let matched = Matched { slot: index.slot(*rank), blocks, confirmed_blocks: blocks };
            if let Err(at) = self.found.binary_search_by_key(rank, |m| m.slot.index) {
                self.found.insert(at, matched);
            }
            if answer > 0
                && let Err(at) = self.answers.binary_search_by_key(rank, |(slot, _)| *slot)
            {
                self.answers.insert(at, (*rank, answer));
            }
        }
    }

    /// Finds the answers that begin where a rank's match ends, in a prompt of `blocks` blocks.
    fn add_answers(&mut self, index: &KvIndex, blocks: u32) {
        for (node, depth) in std::mem::take(&mut self.ends) {
            for (slot, answer) in index.answers_behind(node) {
                let at = self.found.binary_search_by_key(&slot, |m| m.slot.index);
                if at.is_ok_and(|at| self.found[at].blocks == depth) {
                    self.answers.push((slot, answer.min(blocks - depth)));
                }
            }
        }
        // Of several behind one prompt the newest counts, which is the last.
        self.answers.sort_by_key(|(slot, _)| *slot);
        self.answers.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                *kept = *later;
            }
            same
        });
    }

    /// Adds the holders of a node that lies above those seen so far. `start` blocks come
    /// before it and `usable` of its label's blocks match.
    fn add_node(&mut self, index: &KvIndex, node: &Node, start: u32, usable: u32) {
        self.spare.clear();
        let mut seen = self.found.iter().peekable();
        for holder in node.holders.iter().filter(|holder| index.is_live(holder.slot)) {
            let resident = if holder.len > 0 { start + holder.len.min(usable) } else { 0 };
            let known = seen.next_if(|m| m.slot.index == holder.slot);
            let mut matched = known.copied().unwrap_or_else(|| Matched {
                slot: index.slot(holder.slot),
                blocks: if holder.booked > 0 { start + usable } else { resident },
                confirmed_blocks: 0,
            });
            if matched.confirmed_blocks == 0 {
                matched.confirmed_blocks = resident;
            }
            self.spare.push(matched);
        }
        std::mem::swap(&mut self.found, &mut self.spare);
    }
}

impl<'a> IntoIterator for &'a Matches {
    type Item = &'a Matched;
    type IntoIter = std::slice::Iter<'a, Matched>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl KvIndex {
    /// Finds for every rank how many leading blocks of the prompt it holds. Ranks without any
    /// are not listed. Time is linear in the blocks of the longest match, plus the holders of
    /// those nodes on its path where the set of holders changes.
    pub fn match_prefix(&self, keys: &[BlockKey], into: &mut Matches) {
        into.clear();
        into.path.clear();
        let (mut parent, mut depth, mut usable) = (NO_NODE, 0, 0);
        while let Some(id) = keys.get(depth).and_then(|first| self.tree.child(parent, *first)) {
            let label = &self.tree.node(id).label;
            usable = common_prefix(label, &keys[depth..]);
            depth += usable;
            into.path.push(id);
            if usable < label.len() {
                break;
            }
            if self.answers.follow(id) && depth < keys.len() {
                into.ends.push((id, depth as u32));
            }
            parent = id;
        }
        let sweeping = self.sweep.is_pending();
        let mut below = (0, 0);
        while let Some(id) = into.path.pop() {
            let node = self.tree.node(id);
            depth -= usable;
            let counts = (node.holders.len(), node.confirmed);
            if sweeping || counts != below {
                into.add_node(self, node, depth as u32, usable as u32);
                below = counts;
            }
            usable = into.path.last().map_or(0, |above| self.tree.node(*above).label.len());
        }
        if !into.ends.is_empty() {
            into.add_answers(self, keys.len() as u32);
        }
        if !self.slot_ranks.is_empty() {
            into.add_slots(self, keys);
        }
    }
}
