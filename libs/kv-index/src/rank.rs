//! One rank's counters, and the blocks it has that the tree does not hold.

use std::collections::HashMap;

use crate::node::{Links, NO_NODE, NodeId, Place, Target};
use crate::outlook::Outlook;
use crate::radix::NodeEnds;
use crate::slots::Slots;
use crate::types::Eviction;

/// Weight of an answer in the mean length of answers.
const ANSWER_GAIN: f32 = 0.05;

/// Weight of a booking in the mean of what bookings ask for.
const ASKS_GAIN: f32 = 0.05;

/// Blocks in the free order, or pinned, that are not a node's holder.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExtraKind {
    /// Cached output blocks, whose keys are not known, and the node whose end they follow;
    /// `NO_NODE` if that is not known either.
    Output { blocks: u64, after: NodeId },
    /// A further physical copy of a node's only block.
    Copy { node: NodeId, serial: u64, pinned: bool },
}

/// An entry of [`Rank::extras`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extra {
    pub(crate) kind: ExtraKind,
    pub(crate) links: Links,
}

/// What only one kind of engine has.
#[derive(Debug)]
pub(crate) enum Kind {
    FreeQueue,
    RadixLeaves(NodeEnds),
    Slots(Box<Slots>),
}

impl Kind {
    pub(crate) fn of(eviction: Eviction, capacity: u32) -> Self {
        match eviction {
            Eviction::FreeQueue => Kind::FreeQueue,
            Eviction::RadixLeaves => Kind::RadixLeaves(NodeEnds::default()),
            Eviction::Slots(count) => Kind::Slots(Box::new(Slots::new(count, u64::from(capacity)))),
        }
    }
}

/// One rank. Every physical block is pinned, queued or holds nothing.
///
/// A choice asks every rank what a prompt would evict there. What that reads comes first, in
/// three lines of the CPU's cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Rank {
    pub(crate) capacity: u64,
    /// Blocks of started requests. May exceed the capacity; then nothing is queued.
    pub(crate) pinned: u64,
    /// Cached blocks that no request holds: those in the free order.
    pub(crate) queued: u64,
    /// Blocks that bookings which have not started will need, as far as was known when they
    /// were made.
    pub(crate) awaited: u64,
    /// How often the blocks of a prompt that is booked here were asked for lately, on average over
    /// the last ones.
    pub(crate) asks: f32,
    pub(crate) outlook: Outlook,
    /// Distinct keyed blocks, pinned or queued.
    pub(crate) resident: u64,
    /// Blocks with content and no key, pinned or queued.
    pub(crate) anonymous: u64,
    pub(crate) bookings: u32,
    /// Front of the free order: evicted first.
    pub(crate) head: Place,
    /// Back of the free order.
    pub(crate) tail: Place,
    pub(crate) extras: Vec<Extra>,
    vacant_extras: Vec<u32>,
    /// Further copies per node in the order they were stored, so by ascending serial. A hit
    /// takes the oldest copy, which is always the node's holder.
    copies: HashMap<NodeId, Vec<u32>>,
    next_serial: u64,
    /// Blocks that an answer fills, on average over the last ones.
    pub(crate) answer_blocks: f32,
    pub(crate) kind: Kind,
}

impl Rank {
    pub(crate) fn new(capacity: u32, eviction: Eviction) -> Self {
        Rank {
            capacity: u64::from(capacity),
            pinned: 0,
            queued: 0,
            resident: 0,
            anonymous: 0,
            bookings: 0,
            awaited: 0,
            asks: 0.0,
            head: Place::NONE,
            tail: Place::NONE,
            extras: Vec::new(),
            vacant_extras: Vec::new(),
            copies: HashMap::new(),
            next_serial: 0,
            answer_blocks: 0.0,
            outlook: Outlook::default(),
            kind: Kind::of(eviction, capacity),
        }
    }

    /// An answer ended that filled so many blocks.
    pub(crate) fn note_answer(&mut self, blocks: u32) {
        self.answer_blocks += ANSWER_GAIN * (blocks as f32 - self.answer_blocks);
    }

    /// A prompt was booked whose blocks were asked for so often.
    pub(crate) fn note_asks(&mut self, asks: f32) {
        // A rank that is new is about to get what the others get.
        let gain = if self.asks == 0.0 { 1.0 } else { ASKS_GAIN };
        self.asks += gain * (asks - self.asks);
    }

    /// The slots of a rank that has them.
    pub(crate) fn slots(&self) -> Option<&Slots> {
        match &self.kind {
            Kind::Slots(slots) => Some(slots),
            Kind::FreeQueue | Kind::RadixLeaves(_) => None,
        }
    }

    pub(crate) fn slots_mut(&mut self) -> Option<&mut Slots> {
        match &mut self.kind {
            Kind::Slots(slots) => Some(slots),
            Kind::FreeQueue | Kind::RadixLeaves(_) => None,
        }
    }

    /// Blocks that hold nothing.
    #[inline]
    pub(crate) fn blank(&self) -> u64 {
        self.capacity.saturating_sub(self.pinned + self.queued)
    }

    /// Blocks to evict before so many can be allocated.
    pub(crate) fn shortage(&self, blocks: u64) -> u64 {
        let missing = blocks.saturating_sub(self.blank());
        if missing > 0 && self.is_radix() { blocks } else { missing }
    }

    /// Cached blocks that stand above the capacity.
    pub(crate) fn excess(&self) -> u64 {
        (self.pinned + self.queued).saturating_sub(self.capacity).min(self.queued)
    }

    /// Moves blocks from the free order to requests.
    pub(crate) fn pin(&mut self, blocks: u64) {
        self.queued -= blocks;
        self.pinned += blocks;
    }

    /// Moves blocks from requests to the free order.
    pub(crate) fn unpin(&mut self, blocks: u64) {
        self.pinned -= blocks;
        self.queued += blocks;
    }

    pub(crate) fn add_extra(&mut self, kind: ExtraKind) -> u32 {
        let extra = Extra { kind, links: Links::NONE };
        match self.vacant_extras.pop() {
            Some(number) => {
                self.extras[number as usize] = extra;
                number
            }
            None => {
                self.extras.push(extra);
                (self.extras.len() - 1) as u32
            }
        }
    }

    /// Lengthens the run at the back of the free order if it is output that follows nothing.
    pub(crate) fn grow_output_at_back(&mut self, blocks: u64) -> bool {
        if let Target::Extra(n) = self.tail.target()
            && let ExtraKind::Output { blocks: there, after: NO_NODE } =
                &mut self.extras[n as usize].kind
        {
            *there += blocks;
            return true;
        }
        false
    }

    pub(crate) fn drop_extra(&mut self, number: u32) {
        self.vacant_extras.push(number);
        if self.vacant_extras.len() == self.extras.len() {
            self.extras.clear();
            self.vacant_extras.clear();
        }
    }

    /// Adds a pinned further copy of `node`'s block. Returns its serial.
    pub(crate) fn add_copy(&mut self, node: NodeId) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        let number = self.add_extra(ExtraKind::Copy { node, serial, pinned: true });
        self.copies.entry(node).or_default().push(number);
        serial
    }

    /// The further copy with this serial, unless it has become the node's holder.
    pub(crate) fn find_copy(&self, node: NodeId, serial: u64) -> Option<u32> {
        let numbers = self.copies.get(&node)?;
        let at = numbers.binary_search_by_key(&serial, |number| self.serial(*number)).ok()?;
        Some(numbers[at])
    }

    fn serial(&self, number: u32) -> u64 {
        match self.extras[number as usize].kind {
            ExtraKind::Copy { serial, .. } => serial,
            ExtraKind::Output { .. } => u64::MAX,
        }
    }

    /// Takes the oldest further copy of `node` off the list.
    pub(crate) fn take_oldest_copy(&mut self, node: NodeId) -> Option<u32> {
        let oldest = *self.copies.get(&node)?.first()?;
        self.unlist_copy(node, oldest);
        Some(oldest)
    }

    /// Takes a further copy off its node's list.
    pub(crate) fn unlist_copy(&mut self, node: NodeId, number: u32) {
        if let Some(numbers) = self.copies.get_mut(&node) {
            if let Some(at) = numbers.iter().position(|other| *other == number) {
                numbers.remove(at);
            }
            if numbers.is_empty() {
                self.copies.remove(&node);
            }
        }
    }

    /// Number of further copies of `node`'s block.
    pub(crate) fn copies_of(&self, node: NodeId) -> u32 {
        self.copies.get(&node).map_or(0, |numbers| numbers.len() as u32)
    }
}
