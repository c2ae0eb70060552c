//! Answers: blocks that a request's output filled, behind the prompt that it answered.
//!
//! Where the caller knows an answer's keys, its blocks become ordinary content. Where not, they
//! are cached all the same, and the next turn of a conversation, whose prompt goes on with the
//! answer, finds them. So an index keeps whose end such output follows. A match that ends
//! exactly there tells how many further blocks are likely, and a start that is told to count
//! on them takes them over: the keys of its own prompt name them.

use std::collections::HashMap;

use domain::BlockKey;

use crate::booking::Booking;
use crate::index::KvIndex;
use crate::node::{NO_NODE, NodeId, Place};
use crate::rank::ExtraKind;

/// Output without keys that follows the end of a node.
#[derive(Clone, Copy, Debug)]
struct Answer {
    slot: u32,
    /// Its number among the rank's extras.
    number: u32,
}

/// Which output follows which node, oldest first.
#[derive(Default, Debug)]
pub(crate) struct Answers {
    by_node: HashMap<NodeId, Vec<Answer>>,
}

impl Answers {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// Whether output of any rank follows `node`; it needs the boundary then.
    pub(crate) fn follow(&self, node: NodeId) -> bool {
        !self.is_empty() && self.by_node.contains_key(&node)
    }

    fn add(&mut self, node: NodeId, slot: u32, number: u32) {
        self.by_node.entry(node).or_default().push(Answer { slot, number });
    }

    /// Takes an answer off the list. Returns whether it was the node's last one.
    fn remove(&mut self, node: NodeId, slot: u32, number: u32) -> bool {
        let Some(list) = self.by_node.get_mut(&node) else { return false };
        list.retain(|answer| (answer.slot, answer.number) != (slot, number));
        if list.is_empty() {
            self.by_node.remove(&node);
            return true;
        }
        false
    }

    /// Forgets what follows `node`, for ranks that are not to be kept.
    pub(crate) fn retain(&mut self, node: NodeId, keep: impl Fn(u32) -> bool) {
        if let Some(list) = self.by_node.get_mut(&node) {
            list.retain(|answer| keep(answer.slot));
            if list.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    /// The rank's newest answer behind `node`, by its number among the rank's extras.
    fn newest(&self, node: NodeId, slot: u32) -> Option<u32> {
        let list = self.by_node.get(&node)?;
        list.iter().rev().find(|answer| answer.slot == slot).map(|answer| answer.number)
    }

    /// The ranks with answers behind `node` and their numbers, oldest first.
    pub(crate) fn behind(&self, node: NodeId) -> impl Iterator<Item = (u32, u32)> {
        let list = self.by_node.get(&node).map_or(&[][..], Vec::as_slice);
        list.iter().map(|answer| (answer.slot, answer.number))
    }
}

/// What became of an answer's keys.
pub(crate) struct StoredAnswer {
    /// The node that the last stored key ends.
    pub(crate) tail: NodeId,
    /// Blocks that are content of their own now.
    pub(crate) new_blocks: u64,
    /// Blocks that the rank has a second time, the older copy standing in the order without a
    /// key.
    pub(crate) doubled_blocks: u64,
    /// What was cut off a node that goes on with other keys.
    cut: NodeId,
}

impl KvIndex {
    /// Appends cached output blocks to the free order, behind the node `after` if that is one.
    /// Runs that follow nothing and stand at the back grow in place.
    pub(crate) fn push_back_output(&mut self, slot: u32, blocks: u64, after: NodeId) {
        if blocks == 0 {
            return;
        }
        let rank = &mut self.ranks[slot as usize];
        rank.queued += blocks;
        if after == NO_NODE && !rank.is_radix() && rank.grow_output_at_back(blocks) {
            return;
        }
        let number = rank.add_extra(ExtraKind::Output { blocks, after });
        self.push_back(slot, Place::extra(number));
        if after != NO_NODE {
            self.answers.add(after, slot, number);
        }
    }

    /// Cuts so many blocks off the end of a run of output. The caller counts.
    pub(crate) fn cut_output(&mut self, slot: u32, number: u32, blocks: u64) {
        let extra = &mut self.ranks[slot as usize].extras[number as usize];
        let ExtraKind::Output { blocks: there, after } = &mut extra.kind else { return };
        *there -= blocks;
        let (is_gone, node) = (*there == 0, *after);
        if is_gone {
            self.unlist_answer(slot, node, number);
            self.unlink(slot, Place::extra(number));
            self.ranks[slot as usize].drop_extra(number);
        }
    }

    /// Takes the beginning of an answer away. What is left follows nothing that is known. The
    /// caller counts.
    fn take_answer(&mut self, slot: u32, number: u32, blocks: u64) {
        self.ranks[slot as usize].outlook.forget();
        let extra = &mut self.ranks[slot as usize].extras[number as usize];
        if let ExtraKind::Output { after, .. } = &mut extra.kind {
            let node = std::mem::replace(after, NO_NODE);
            self.unlist_answer(slot, node, number);
        }
        self.cut_output(slot, number, blocks);
    }

    /// An answer is gone from behind `node`, which may not need its boundary any more.
    fn unlist_answer(&mut self, slot: u32, node: NodeId, number: u32) {
        if node != NO_NODE && self.answers.remove(node, slot, number) {
            self.mergeable.extend(self.tree.only_child(node));
        }
    }

    /// How much of an earlier answer follows the resident beginning of `self.path`, up to
    /// `most` blocks. If `take` is set they are a request's from now on.
    pub(crate) fn find_answer(&mut self, slot: u32, most: u32, take: bool) -> u32 {
        let Some((number, blocks)) = self.answer_behind_path(slot) else { return 0 };
        let blocks = blocks.min(most);
        if take && blocks > 0 {
            let rank = &mut self.ranks[slot as usize];
            rank.pin(u64::from(blocks));
            rank.anonymous -= u64::from(blocks);
            self.take_answer(slot, number, u64::from(blocks));
        }
        blocks
    }

    /// The end of `node` is not the rank's any more: its answers there follow nothing known.
    pub(crate) fn forget_answers(&mut self, slot: u32, node: NodeId) {
        while let Some(number) = self.answers.newest(node, slot) {
            let extra = &mut self.ranks[slot as usize].extras[number as usize];
            if let ExtraKind::Output { after, .. } = &mut extra.kind {
                *after = NO_NODE;
            }
            self.unlist_answer(slot, node, number);
        }
    }

    /// The output on a rank that follows the resident beginning of `self.path`, and its blocks.
    fn answer_behind_path(&self, slot: u32) -> Option<(u32, u32)> {
        if self.answers.is_empty() {
            return None;
        }
        let mut end = NO_NODE;
        for id in &self.path {
            let node = self.tree.node(*id);
            match node.holder(slot).map_or(0, |holder| holder.len as usize) {
                0 => break,
                len if len < node.label.len() => return None,
                _ => end = *id,
            }
        }
        let number = self.answers.newest(end, slot)?;
        match self.ranks[slot as usize].extras[number as usize].kind {
            ExtraKind::Output { blocks, .. } => Some((number, crate::index::count(blocks))),
            ExtraKind::Copy { .. } => None,
        }
    }

    /// Blocks of the newest answer behind a node for each live rank, for
    /// [`Matches`](crate::Matches).
    pub(crate) fn answers_behind(&self, node: NodeId) -> impl Iterator<Item = (u32, u32)> {
        self.answers.behind(node).filter(|(slot, _)| self.is_live(*slot)).filter_map(
            |(slot, number)| match self.ranks[slot as usize].extras.get(number as usize)?.kind {
                ExtraKind::Output { blocks, .. } => Some((slot, crate::index::count(blocks))),
                ExtraKind::Copy { .. } => None,
            },
        )
    }

    /// Makes content of the answer's blocks whose keys are known, below the prompt's end. They
    /// are in no order yet; [`KvIndex::queue_answer`] puts them there. A block with copies ends
    /// the run: which of them the next key hangs on could not be told.
    pub(crate) fn store_answer(
        &mut self,
        slot: u32,
        booking: &Booking,
        keys: &[BlockKey],
    ) -> StoredAnswer {
        self.path.clear();
        let mut stored =
            StoredAnswer { tail: booking.tail(), new_blocks: 0, doubled_blocks: 0, cut: NO_NODE };
        let mut doubled = NO_NODE;
        let mut rest = keys;
        while let Some(first) = rest.first() {
            let id = match self.tree.child(stored.tail, *first) {
                None => self.tree.add(stored.tail, rest.to_vec()),
                Some(found) => {
                    let id = self.cut_to(slot, found, rest);
                    if id != found {
                        stored.cut = found;
                    }
                    id
                }
            };
            if self.ranks[slot as usize].copies_of(id) > 0 {
                break;
            }
            let node = self.tree.node(id);
            let len = node.label.len();
            rest = &rest[len..];
            if node.holder(slot).is_some_and(|holder| holder.len > 0) {
                stored.doubled_blocks += len as u64;
                doubled = id;
            } else {
                stored.new_blocks += len as u64;
            }
            self.path.push(id);
            stored.tail = id;
        }
        let rank = &mut self.ranks[slot as usize];
        for end in [doubled, stored.tail].into_iter().filter(|end| *end != NO_NODE) {
            rank.mark_end(end);
        }
        stored
    }

    /// The beginning of `found` that `keys` share, cut where the rank's residency ends: a node
    /// that the rank has as a whole or not at all.
    fn cut_to(&mut self, slot: u32, found: NodeId, keys: &[BlockKey]) -> NodeId {
        let node = self.tree.node(found);
        let mut common = crate::node::common_prefix(&node.label, keys);
        match node.holder(slot).map_or(0, |holder| holder.len as usize) {
            0 => {}
            len => common = common.min(len),
        }
        if common == node.label.len() { found } else { self.split(found, common) }
    }

    /// Puts the answer that was just stored into the free order, its end first. Of blocks that
    /// the rank had before, the older copy stays where it stood; SGLang keeps one copy.
    pub(crate) fn queue_answer(&mut self, slot: u32, stored: &StoredAnswer) {
        while let Some(id) = self.path.pop() {
            let node = self.tree.node(id);
            let len = node.label.len() as u32;
            let held = node.holder(slot).copied();
            self.mergeable.push(id);
            match held.filter(|holder| holder.len > 0) {
                Some(holder) if self.ranks[slot as usize].is_radix() => {
                    self.ranks[slot as usize].anonymous -= u64::from(len);
                    if holder.pins == 0 {
                        self.unlink(slot, Place::node(id));
                        self.push_back(slot, Place::node(id));
                    }
                }
                Some(holder) if holder.pins > 0 => {
                    self.push_back_output(slot, u64::from(len), NO_NODE);
                }
                Some(holder) => {
                    let rank = &mut self.ranks[slot as usize];
                    rank.queued += u64::from(len);
                    let kind = ExtraKind::Output { blocks: u64::from(len), after: NO_NODE };
                    let number = rank.add_extra(kind);
                    self.put(slot, Place::extra(number), holder.links);
                    self.push_back(slot, Place::node(id));
                }
                None => {
                    let rank = &mut self.ranks[slot as usize];
                    rank.queued += u64::from(len);
                    rank.resident += u64::from(len);
                    rank.anonymous -= u64::from(len);
                    self.residencies += len as usize;
                    self.tree.node_mut(id).change(slot, |holder| holder.len = len);
                    self.push_back(slot, Place::node(id));
                }
            }
        }
        if stored.cut != NO_NODE {
            self.tidy(stored.cut);
        }
        if stored.tail != NO_NODE {
            self.mergeable.extend(self.tree.only_child(stored.tail));
        }
    }
}

/// Whether prompts go on with the answers that earlier ones got, word for word: templates that
/// drop what a model reasoned, or clients that edit, break that. Learned from what engines say
/// they found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnswerShare {
    seen: f64,
    found: f64,
}

/// What one observation leaves of the weight of those before: the last fifty count.
const MEMORY: f64 = 0.98;

impl AnswerShare {
    /// A request has ended whose prompt found `cached_blocks` in its engine's cache. What its
    /// start did says how many it would find without an answer, and with one. Finding less than
    /// without tells nothing of the answer.
    pub fn observe(&mut self, index: &KvIndex, booking: &Booking, cached_blocks: f64) {
        if let Some(started) = index.started(booking) {
            let counted = if booking.counts_on_answer() { started.answer_blocks } else { 0 };
            let matched = f64::from(started.cached_blocks - counted);
            self.weigh(matched, f64::from(started.answer_blocks), cached_blocks);
        }
    }

    fn weigh(&mut self, matched: f64, answer: f64, cached: f64) {
        if answer <= 0.0 || cached < matched {
            return;
        }
        self.seen = MEMORY * self.seen + 1.0;
        self.found = MEMORY * self.found + ((cached - matched) / answer).min(1.0);
    }

    /// Whether answers are worth counting on: more than half of them were found.
    pub fn is_likely(&self) -> bool {
        self.found > 0.5 * self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::AnswerShare;

    #[test]
    fn answers_are_counted_on_once_most_of_them_were_found() {
        let mut share = AnswerShare::default();
        assert!(!share.is_likely(), "nothing was seen");
        share.weigh(10.0, 2.0, 9.0);
        assert_eq!(share, AnswerShare::default(), "less than the match says nothing");
        share.weigh(10.0, 2.0, 12.0);
        assert!(share.is_likely());
        share.weigh(10.0, 2.0, 10.0);
        share.weigh(10.0, 2.0, 10.0);
        assert!(!share.is_likely());
        (0..10).for_each(|_| share.weigh(10.0, 2.0, 14.0));
        assert!(share.is_likely());
    }
}
