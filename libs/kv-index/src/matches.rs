//! The longest prefix per rank.
//!
//! A rank that has a node has all of the node's ancestors, so along a path from the root the
//! sets of holders only shrink. The walk goes down by the table, then back up from the deepest
//! node; a node with as many holders as the one below it has the same ones and adds nothing.
//!
//! **What is listed.** The ranks that hold the deep part of a prompt are few, and listed one by
//! one. Nearer to the root stand prefixes that hundreds of ranks share, and to list those would
//! cost far more than all the rest. So the way up ends at the first node with more than
//! [`LISTED`] holders; from there on only the nodes are kept. They answer for every rank:
//! [`KvIndex::matched`] finds one rank's exact result in them when it is asked for, and
//! [`KvIndex::list_all`] lists the rest.

use domain::BlockKey;

use crate::index::KvIndex;
use crate::node::{Holder, NO_NODE, Node, NodeId, common_prefix, place_of};
use crate::types::{Matched, Shared, Slot};

/// Holders of a node at most for them to be listed.
pub(crate) const LISTED: usize = 32;

/// A node that a prompt goes through.
#[derive(Clone, Copy, Debug)]
struct Step {
    node: NodeId,
    /// Blocks before it.
    start: u32,
    /// Blocks of its label that match.
    usable: u32,
}

impl Step {
    /// Leading blocks of the prompt that are resident on the holder's rank, judged by this node.
    fn resident(self, holder: &Holder) -> u32 {
        if holder.len > 0 { self.start + holder.len.min(self.usable) } else { 0 }
    }

    /// The same with bookings counted.
    fn held(self, holder: &Holder) -> u32 {
        if holder.booked > 0 { self.start + self.usable } else { self.resident(holder) }
    }
}

/// Who holds how much of a prompt. Keep one and pass it to every match: after the first few
/// calls a match allocates nothing.
#[derive(Default, Debug)]
pub struct Matches {
    /// The listed ranks, ordered by slot.
    found: Vec<Matched>,
    spare: Vec<Matched>,
    /// The nodes of the walk from the root.
    path: Vec<Step>,
    /// So many of them are kept for later questions; the others' holders are listed.
    shared: usize,
    /// The state of the index that the nodes belong to.
    version: u64,
    /// Fully matched nodes that output follows, with the depth of their ends.
    ends: Vec<(NodeId, u32)>,
    /// Further blocks by slot index, ordered by it.
    answers: Vec<(u32, u32)>,
}

impl Matches {
    /// The ranks that hold a node which few ranks hold, each with its result.
    pub fn listed(&self) -> &[Matched] {
        &self.found
    }

    /// The result for one listed rank.
    fn get(&self, slot: u32) -> Option<&Matched> {
        let at = place_of(&self.found, slot, |m| m.slot.index).ok()?;
        self.found.get(at)
    }

    /// Blocks beyond the matched ones that the rank holds if the prompt goes on with an answer
    /// that this rank gave to the matched part of it. Zero where no answer follows there.
    pub fn answer_blocks(&self, slot: Slot) -> u32 {
        match self.answers.binary_search_by_key(&slot.index, |(index, _)| *index) {
            Ok(at) => self.answers[at].1,
            Err(_) => 0,
        }
    }

    /// The nodes of the walk from the root, each with the depth up to which the prompt goes along.
    pub(crate) fn path(&self) -> impl DoubleEndedIterator<Item = (NodeId, u32)> + '_ {
        self.path.iter().map(|step| (step.node, step.start + step.usable))
    }

    /// The state of the index that they belong to.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Forgets the results, keeps the memory.
    pub fn clear(&mut self) {
        self.found.clear();
        self.answers.clear();
        self.ends.clear();
        self.path.clear();
        self.shared = 0;
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
                if index.matched_at(self, slot).is_some_and(|m| m.blocks == depth) {
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

    /// Lists the holders of a node that lies above those seen so far.
    fn add_node(&mut self, index: &KvIndex, node: &Node, step: Step) {
        self.spare.clear();
        let mut seen = self.found.iter().peekable();
        for holder in node.holders.iter().filter(|holder| index.is_live(holder.slot)) {
            let resident = step.resident(holder);
            let known = seen.next_if(|m| m.slot.index == holder.slot);
            let mut matched = known.copied().unwrap_or_else(|| Matched {
                slot: index.slot(holder.slot),
                blocks: step.held(holder),
                confirmed_blocks: 0,
            });
            if matched.confirmed_blocks == 0 {
                matched.confirmed_blocks = resident;
            }
            self.spare.push(matched);
        }
        std::mem::swap(&mut self.found, &mut self.spare);
    }

    /// Goes on to list holders from the deepest node up, until there are more than `most`.
    fn list(&mut self, index: &KvIndex, most: usize) {
        let sweeping = index.sweep.is_pending();
        let mut below = (0, 0);
        while let Some(step) = self.shared.checked_sub(1).map(|at| self.path[at]) {
            let node = index.tree.node(step.node);
            let counts = (node.holders.len(), node.confirmed);
            if sweeping || counts != below {
                if counts.0 > most {
                    break;
                }
                self.add_node(index, node, step);
                below = counts;
            }
            self.shared -= 1;
        }
        // What is only booked in the listed nodes may be resident above them.
        let shared = &self.path[..self.shared];
        for matched in self.found.iter_mut().filter(|m| m.confirmed_blocks == 0) {
            matched.confirmed_blocks = index.confirmed_in(shared, matched.slot.index);
        }
    }
}

impl KvIndex {
    /// Finds how many leading blocks of the prompt the ranks hold. Time is linear in the blocks
    /// of the longest match; see [`Matches::listed`] for what is listed and what is kept for
    /// [`KvIndex::matched`].
    pub fn match_prefix(&self, keys: &[BlockKey], into: &mut Matches) {
        into.clear();
        into.version = self.version;
        let (mut parent, mut depth) = (NO_NODE, 0);
        while let Some(id) = keys.get(depth).and_then(|first| self.tree.child(parent, *first)) {
            let label = &self.tree.node(id).label;
            let usable = common_prefix(label, &keys[depth..]);
            into.path.push(Step { node: id, start: depth as u32, usable: usable as u32 });
            depth += usable;
            if usable < label.len() {
                break;
            }
            if self.answers.follow(id) && depth < keys.len() {
                into.ends.push((id, depth as u32));
            }
            parent = id;
        }
        into.shared = into.path.len();
        into.list(self, self.listed);
        if !into.ends.is_empty() {
            into.add_answers(self, keys.len() as u32);
        }
        if !self.slot_ranks.is_empty() {
            into.add_slots(self, keys);
        }
    }

    /// The result of one rank; `None` if it holds nothing of the prompt. The index must not have
    /// changed since the match: afterwards nothing is known of ranks that are not listed.
    pub fn matched(&self, matches: &Matches, slot: Slot) -> Option<Matched> {
        let index = self.live(slot)?;
        self.matched_at(matches, index)
    }

    fn matched_at(&self, matches: &Matches, slot: u32) -> Option<Matched> {
        if let Some(listed) = matches.get(slot) {
            return (listed.slot == self.slot(slot)).then_some(*listed);
        }
        if matches.version != self.version {
            return None;
        }
        // A rank that has a node has those above it.
        let shared = &matches.path[..matches.shared];
        let below = shared.partition_point(|step| self.holder_of(step, slot).is_some());
        let deepest = &shared[below.checked_sub(1)?];
        Some(Matched {
            slot: self.slot(slot),
            blocks: deepest.held(self.holder_of(deepest, slot)?),
            confirmed_blocks: self.confirmed_in(&shared[..below], slot),
        })
    }

    fn holder_of(&self, step: &Step, slot: u32) -> Option<&Holder> {
        self.tree.node(step.node).holder(slot)
    }

    /// Leading blocks that are resident, by the deepest of these nodes where any are.
    fn confirmed_in(&self, path: &[Step], slot: u32) -> u32 {
        let resident = |step: &Step| self.holder_of(step, slot).map(|holder| step.resident(holder));
        path.iter().rev().filter_map(resident).find(|blocks| *blocks > 0).unwrap_or(0)
    }

    /// Lists every rank that holds some of the prompt. For callers that look at most of the ranks
    /// anyway: a few nanoseconds for each, less than [`KvIndex::matched`] costs one by one. The
    /// index must not have changed since the match.
    pub fn list_all(&self, matches: &mut Matches) {
        if matches.version == self.version {
            matches.list(self, usize::MAX);
        }
    }

    /// The matched blocks of all ranks, each at the [number](Slot::number) of its slot; zero for
    /// those that hold nothing, and of no meaning where there is no rank. For callers that look at
    /// most of the ranks: about a nanosecond for each that holds some, and one load to look it
    /// up. The index must not have changed since the match.
    pub fn blocks_by_slot(&self, matches: &Matches, into: &mut Vec<u32>) {
        into.clear();
        into.resize(self.ranks.len(), 0);
        if matches.version == self.version {
            self.fill_from_shared(&matches.path[..matches.shared], into);
        }
        for matched in &matches.found {
            into[matched.slot.index as usize] = matched.blocks;
        }
    }

    /// What the holders of these nodes have, from the root down: whoever holds some of a deeper
    /// node holds more there.
    fn fill_from_shared(&self, path: &[Step], into: &mut [u32]) {
        let is_settled = !self.sweep.is_pending();
        for (at, step) in path.iter().enumerate() {
            let node = self.tree.node(step.node);
            let holders = node.holders.len();
            let has_them = |below: &Step| self.tree.node(below.node).holders.len() == holders;
            if is_settled && path.get(at + 1).is_some_and(has_them) {
                continue;
            }
            let whole = step.start + step.usable;
            let is_whole = node.full as usize == holders;
            if is_whole && is_settled && holders == self.ranks() {
                into.fill(whole);
            } else if is_whole {
                for holder in &node.holders {
                    into[holder.slot as usize] = whole;
                }
            } else {
                // No jump decides what stays: with a thousand holders it would be mispredicted often.
                for holder in &node.holders {
                    let blocks = &mut into[holder.slot as usize];
                    *blocks = (*blocks).max(step.held(holder));
                }
            }
        }
    }

    /// How much the ranks that are not listed can hold; `None` if all are listed. The index must not have
    /// changed since the match.
    pub fn shared(&self, matches: &Matches) -> Option<Shared> {
        let deepest = matches.path[..matches.shared].last()?;
        (matches.version == self.version).then(|| Shared {
            ranks: self.tree.node(deepest.node).holders.len() as u32,
            blocks: deepest.start + deepest.usable,
        })
    }
}
