//! Taking what a rank has to another index.
//!
//! What a rank has is the outcome of everything that was ever booked on it, but a copy needs no
//! history: [`KvIndex::contents`] lists what is cached in the order in which it would be evicted,
//! and [`KvIndex::restore`], called for one item after the other, puts it into another index in
//! that order. [`KvIndex::booked`] and [`KvIndex::restore_booking`] do the same for requests that
//! are open; they come after the content.
//!
//! Every item names its prefix from the beginning, as a block is content only behind all before
//! it. Engines free a prompt from its tail, so the beginning's own item mostly comes later: until
//! then it stands at the back of the order, and its item moves it to its place.
//!
//! A rank with slots (llama.cpp) has no order and lists nothing: its copy begins cold.

use domain::BlockKey;

use crate::asks::Asks;
use crate::booking::Booking;
use crate::index::KvIndex;
use crate::node::{NO_NODE, NodeId, Place, Target, common_prefix};
use crate::rank::ExtraKind;
use crate::types::{Slot, Started};

/// A run of blocks at one place of a rank's free order.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// The last blocks of a prefix.
    Prefix {
        /// Its keys, from the prompt's beginning.
        keys: Vec<BlockKey>,
        /// How many of them stand here.
        blocks: u32,
        /// How often the pool was asked for it, lately.
        asks: f32,
    },
    /// A further physical copy of this prefix's last block.
    Copy {
        /// Its keys, from the prompt's beginning.
        keys: Vec<BlockKey>,
    },
    /// Cached output whose keys are not known.
    Output {
        /// Its blocks.
        blocks: u64,
        /// The prefix that it follows; empty where that is not known.
        after: Vec<BlockKey>,
    },
}

/// What an open request holds of its rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    /// The prompt's full blocks.
    pub keys: Vec<BlockKey>,
    /// Blocks of the prompt that have no keys.
    pub extra_blocks: u32,
    /// Blocks of output so far.
    pub generated_blocks: u32,
    /// Whether [`Booking::count_on_answer`] was called.
    pub counts_on_answer: bool,
    /// What the start of its prefill did; `None` before that.
    pub started: Option<Started>,
    /// Whether it holds a copy of its own of the last block.
    pub holds_copy: bool,
}

impl KvIndex {
    /// What a rank has cached and no request holds, first what would be evicted first. Goes over
    /// all of it: for taking it elsewhere, not for every request.
    pub fn contents(&self, slot: Slot) -> Vec<Content> {
        let Some(index) = self.live(slot) else { return Vec::new() };
        let rank = &self.ranks[index as usize];
        let mut contents = Vec::new();
        let mut place = rank.head;
        loop {
            match place.target() {
                Target::Nothing => return contents,
                Target::Node(id) => {
                    let node = self.tree.node(id);
                    let Some(holder) = node.holder(index) else { return contents };
                    let mut keys = self.prefix(id);
                    keys.truncate(keys.len() - node.label.len() + holder.len as usize);
                    let (blocks, asks) = (holder.len, node.asks.lately(self.clock));
                    contents.push(Content::Prefix { keys, blocks, asks });
                    place = holder.links.next;
                }
                Target::Extra(number) => {
                    let extra = &rank.extras[number as usize];
                    contents.push(match extra.kind {
                        ExtraKind::Output { blocks, after } => {
                            Content::Output { blocks, after: self.prefix(after) }
                        }
                        ExtraKind::Copy { node, .. } => Content::Copy { keys: self.prefix(node) },
                    });
                    place = extra.links.next;
                }
            }
        }
    }

    /// The keys from the root to the end of a node.
    fn prefix(&self, mut id: NodeId) -> Vec<BlockKey> {
        let mut labels = Vec::new();
        while id != NO_NODE {
            let node = self.tree.node(id);
            labels.push(&node.label[..]);
            id = node.parent;
        }
        labels.reverse();
        labels.concat()
    }

    /// Puts an item of [`KvIndex::contents`] at the back of a rank's free order. What does not
    /// fit is left out. Nothing happens on a rank with slots.
    pub fn restore(&mut self, slot: Slot, content: &Content) {
        self.sweep_some();
        let Some(index) = self.live(slot) else { return };
        if self.ranks[index as usize].slots().is_some() {
            return;
        }
        match content {
            Content::Prefix { keys, blocks, asks } => {
                let from = keys.len().saturating_sub(*blocks as usize);
                let (above, own) = keys.split_at(from);
                if let Some(above) = self.find_or_place(index, above)
                    && let Some(tail) = self.place(index, above, own)
                    && tail != NO_NODE
                {
                    self.tree.node_mut(tail).asks = Asks::of(*asks, self.clock);
                }
            }
            Content::Copy { keys } => self.restore_copy(index, keys),
            Content::Output { blocks, after } => {
                if let Some(after) = self.find_or_place(index, after)
                    && self.ranks[index as usize].shortage(*blocks) == 0
                {
                    self.ranks[index as usize].anonymous += blocks;
                    self.push_back_output(index, *blocks, after);
                }
            }
        }
        self.merge_pending();
    }

    /// The node that ends with `keys`. What is there stays where it is in the order; what is not
    /// is put to its back. `None` if it does not fit.
    fn find_or_place(&mut self, index: u32, keys: &[BlockKey]) -> Option<NodeId> {
        let missing = self.missing(index, NO_NODE, keys) as usize;
        let (there, rest) = keys.split_at(keys.len() - missing);
        let above = self.whole_path(index, there);
        self.place(index, above, rest)
    }

    /// Makes `keys`, which follow the node `above`, the rank's, at the back of its free order.
    /// Returns the node that they end with, or `None` if they do not fit.
    fn place(&mut self, index: u32, above: NodeId, keys: &[BlockKey]) -> Option<NodeId> {
        if self.ranks[index as usize].shortage(keys.len() as u64) > 0
            && self.ranks[index as usize].shortage(self.missing(index, above, keys)) > 0
        {
            return None;
        }
        self.path.clear();
        let (mut tail, mut rest) = (above, keys);
        while !rest.is_empty() {
            let (node, taken) = self.book_node(index, tail, rest);
            self.path.push(node);
            (tail, rest) = (node, &rest[taken..]);
        }
        let lens =
            self.path.iter().map(|id| self.tree.node(*id).holder(index).map_or(0, |h| h.len));
        let resident: u32 = lens.sum();
        for at in 0..self.path.len() {
            self.touch(index, self.path[at]);
        }
        self.allocate(index, keys.len() as u64 - u64::from(resident));
        self.store_path(index, false);
        if tail != NO_NODE {
            self.ranks[index as usize].mark_end(tail);
            self.mergeable.extend(self.tree.only_child(tail));
        }
        let mut id = tail;
        while id != above {
            self.mergeable.push(id);
            self.release(index, id);
            id = self.tree.node(id).parent;
        }
        Some(tail)
    }

    /// Blocks of `keys` behind `above` that the rank does not have.
    fn missing(&self, index: u32, above: NodeId, keys: &[BlockKey]) -> u64 {
        let (mut at, mut rest) = (above, keys);
        while !rest.is_empty() {
            let Some(id) = self.tree.child(at, rest[0]) else { break };
            let node = self.tree.node(id);
            let same = common_prefix(&node.label, rest);
            let resident = node.holder(index).map_or(0, |holder| holder.len as usize);
            rest = &rest[same.min(resident)..];
            if resident.min(same) < node.label.len() {
                break;
            }
            at = id;
        }
        rest.len() as u64
    }

    fn restore_copy(&mut self, index: u32, keys: &[BlockKey]) {
        let Some(last) = keys.len().checked_sub(1) else { return };
        let Some(tail) = self.find_or_place(index, keys) else { return };
        if self.ranks[index as usize].shortage(1) > 0 {
            return;
        }
        self.take_path(index, tail);
        self.part_path(index, tail, last as u32);
        self.tree.node_mut(tail).copies += 1;
        let rank = &mut self.ranks[index as usize];
        rank.pinned += 1;
        let serial = rank.add_copy(tail);
        if let Some(number) = rank.find_copy(tail, serial) {
            self.free_copy(index, number);
        }
    }

    /// The node that ends exactly with `keys`, cut to measure, if the rank has all of them.
    fn whole_path(&mut self, index: u32, keys: &[BlockKey]) -> NodeId {
        let (mut at, mut rest) = (NO_NODE, keys);
        while !rest.is_empty() {
            let Some(id) = self.tree.child(at, rest[0]) else { return NO_NODE };
            let node = self.tree.node(id);
            let len = node.label.len().min(rest.len());
            let resident = node.holder(index).map_or(0, |holder| holder.len as usize);
            if resident < len || node.label[..len] != rest[..len] {
                return NO_NODE;
            }
            at = if len < node.label.len() { self.split(id, len) } else { id };
            rest = &rest[len..];
        }
        at
    }

    /// What an open request holds, for [`KvIndex::restore_booking`]. Of one on a rank with slots,
    /// or that is gone, only its size is known.
    pub fn booked(&self, booking: &Booking) -> Booked {
        let mut booked = booking.outline();
        match self.live(booking.slot()) {
            Some(index) if self.ranks[index as usize].slots().is_none() => {
                booked.keys = self.prefix(booking.tail());
                booked.holds_copy = booking.copy().is_some_and(|serial| {
                    self.ranks[index as usize].find_copy(booking.tail(), serial).is_some()
                });
            }
            _ => booked.extra_blocks += booking.blocks(),
        }
        booked
    }

    /// Books what a request holds, as far on as it is.
    pub fn restore_booking(&mut self, slot: Slot, booked: &Booked) -> Booking {
        let mut booking = self.book(slot, &booked.keys, booked.extra_blocks);
        if booked.counts_on_answer {
            booking.count_on_answer();
        }
        let Some(started) = booked.started else { return booking };
        let index = self.live(slot).filter(|index| self.ranks[*index as usize].slots().is_none());
        match index {
            Some(index) => self.restore_start(index, &mut booking, started, booked.holds_copy),
            None => drop(self.start(&mut booking)),
        }
        self.grow(&mut booking, booked.generated_blocks);
        booking
    }

    fn restore_start(
        &mut self,
        index: u32,
        booking: &mut Booking,
        started: Started,
        holds_copy: bool,
    ) {
        self.ranks[index as usize].awaited -= booking.awaited();
        let resident = self.take_path(index, booking.tail());
        let recompute = holds_copy && booking.blocks() > 0 && resident == booking.blocks();
        if recompute {
            self.part_path(index, booking.tail(), resident - 1);
        }
        let touched = self.path.len() - usize::from(recompute);
        for at in 0..touched {
            self.touch(index, self.path[at]);
        }
        let missing = booking.blocks() - resident + u32::from(recompute) + booking.extra();
        self.allocate(index, u64::from(missing));
        let rank = &mut self.ranks[index as usize];
        rank.anonymous += u64::from(booking.extra());
        rank.mark_end(booking.tail());
        let copy = self.store_path(index, recompute);
        self.merge_pending();
        booking.set_started(started, copy);
    }
}

impl KvIndex {
    /// A copy that is not a request's any more goes to the back of the order.
    pub(crate) fn free_copy(&mut self, index: u32, number: u32) {
        let rank = &mut self.ranks[index as usize];
        if let ExtraKind::Copy { pinned, .. } = &mut rank.extras[number as usize].kind {
            *pinned = false;
        }
        rank.unpin(1);
        self.push_back(index, Place::extra(number));
    }
}
