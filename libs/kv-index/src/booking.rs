//! The life of a request: booked, started, growing, ended.

use domain::BlockKey;

use crate::asks::Asks;
use crate::index::{KvIndex, count};
use crate::node::{NO_NODE, NodeId, Place, common_prefix};
use crate::rank::Rank;
use crate::snapshot::Booked;
use crate::types::{Slot, Started};

/// A prompt that was sent to a rank. It holds what it will release, so it cannot be copied,
/// and goes back to the index it came from by [`KvIndex::finish`] or [`KvIndex::rollback`];
/// one that is dropped instead keeps its blocks until the rank is removed.
#[must_use = "a booking that is not finished or rolled back keeps its blocks"]
#[derive(Debug)]
pub struct Booking {
    slot: Slot,
    /// The node that the prompt's last full block ends.
    tail: NodeId,
    /// Full blocks of the prompt.
    blocks: u32,
    extra: u32,
    /// Blocks that it was expected to need when it was booked, until it starts.
    awaited: u64,
    generated: u32,
    counts_on_answer: bool,
    /// Its number among the requests of a rank with slots.
    job: u64,
    phase: Phase,
}

/// A node that a booking goes over.
struct BookedEdge {
    node: NodeId,
    /// Keys of the prompt that it stands for.
    taken: usize,
    /// Those of its blocks that neither the rank has nor an earlier booking will bring.
    new_blocks: u64,
    /// How often they were asked for lately, this time included.
    asks: f32,
}

#[derive(Debug)]
enum Phase {
    Booked,
    Started {
        result: Started,
        /// Serial of the recomputed copy of the last block that this request holds instead of
        /// the one its node stands for.
        copy: Option<u64>,
    },
}

impl Booking {
    /// The rank it was booked on.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Blocks of output that it holds.
    pub fn generated_blocks(&self) -> u32 {
        self.generated
    }

    /// Full blocks of the prompt.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks of the prompt that have no keys.
    pub(crate) fn extra(&self) -> u32 {
        self.extra
    }

    /// The node that the prompt's last full block ends.
    pub(crate) fn tail(&self) -> NodeId {
        self.tail
    }

    /// To be called before the start: the prompt is taken to go on with the answer that an
    /// earlier one left behind. Its start then takes that answer's blocks as its own content.
    pub fn count_on_answer(&mut self) {
        self.counts_on_answer = true;
    }

    /// Whether [`Booking::count_on_answer`] was called.
    pub fn counts_on_answer(&self) -> bool {
        self.counts_on_answer
    }

    /// Blocks of the prompt, those without a key included.
    pub(crate) fn prompt_blocks(&self) -> u64 {
        u64::from(self.blocks) + u64::from(self.extra)
    }

    pub(crate) fn job(&self) -> u64 {
        self.job
    }

    pub(crate) fn awaited(&self) -> u64 {
        self.awaited
    }

    /// Serial of the copy of the last block that it holds.
    pub(crate) fn copy(&self) -> Option<u64> {
        match self.phase {
            Phase::Started { copy, .. } => copy,
            Phase::Booked => None,
        }
    }

    pub(crate) fn set_started(&mut self, result: Started, copy: Option<u64>) {
        self.phase = Phase::Started { result, copy };
    }

    /// All that is known of it without its index.
    pub(crate) fn outline(&self) -> Booked {
        let started = match self.phase {
            Phase::Started { result, .. } => Some(result),
            Phase::Booked => None,
        };
        Booked {
            keys: Vec::new(),
            extra_blocks: self.extra,
            generated_blocks: self.generated,
            counts_on_answer: self.counts_on_answer,
            started,
            holds_copy: false,
        }
    }

    /// Whether the start of its prefill was reported.
    pub fn is_started(&self) -> bool {
        matches!(self.phase, Phase::Started { .. })
    }
}

impl KvIndex {
    /// Counts the prompt's full blocks as resident on the rank from now on, without a claim
    /// on its memory. `extra_blocks` are those the request will need beyond the keyed ones: a
    /// partial tail, or a part of the prompt that has no keys. Zero says that the prompt ends
    /// with its last keyed block, which the engine then computes again even if it has it.
    pub fn book(&mut self, slot: Slot, keys: &[BlockKey], extra_blocks: u32) -> Booking {
        self.sweep_some();
        self.clock.tick();
        let mut tail = NO_NODE;
        let mut awaited = u64::from(extra_blocks);
        let mut asked = 0.0;
        let mut job = 0;
        if let Some(index) = self.live(slot) {
            let mut rest = keys;
            if let Some(slots) = self.ranks[index as usize].slots_mut() {
                job = slots.book(keys, extra_blocks);
                rest = &[];
            }
            while !rest.is_empty() {
                let edge = self.book_edge(index, tail, rest);
                tail = edge.node;
                awaited += edge.new_blocks;
                asked += edge.taken as f32 * edge.asks;
                rest = &rest[edge.taken..];
            }
            let rank = &mut self.ranks[index as usize];
            rank.bookings += 1;
            rank.awaited += awaited;
            if !keys.is_empty() {
                rank.note_asks(asked / keys.len() as f32);
            }
            // What it asks for may stand at the front of the order until it starts.
            rank.outlook.forget();
        }
        Booking {
            slot,
            tail,
            blocks: count(keys.len() as u64),
            extra: extra_blocks,
            awaited,
            generated: 0,
            counts_on_answer: false,
            job,
            phase: Phase::Booked,
        }
    }

    /// [`KvIndex::book_edge`], as the node and how many of the keys it stands for.
    pub(crate) fn book_node(
        &mut self,
        slot: u32,
        parent: NodeId,
        keys: &[BlockKey],
    ) -> (NodeId, usize) {
        let edge = self.book_edge(slot, parent, keys);
        (edge.node, edge.taken)
    }

    /// Books the node below `parent` that goes along `keys`, cut or made to measure.
    fn book_edge(&mut self, slot: u32, parent: NodeId, keys: &[BlockKey]) -> BookedEdge {
        let Some(found) = self.tree.child(parent, keys[0]) else {
            let known = self.forgotten.get(keys);
            let (taken, mut asks) = known.unwrap_or((keys.len(), Asks::default()));
            asks.ask(self.clock);
            let node = self.tree.add(parent, keys[..taken].to_vec());
            let added = self.tree.node_mut(node);
            added.asks = asks;
            added.change(slot, |holder| holder.booked += 1);
            let asks = asks.lately(self.clock);
            return BookedEdge { node, taken, new_blocks: taken as u64, asks };
        };
        let label = &self.tree.node(found).label;
        let common = common_prefix(label, keys);
        let is_whole = common == label.len();
        let node = if is_whole { found } else { self.split(found, common) };
        let mut new_blocks = 0;
        let clock = self.clock;
        let booked = self.tree.node_mut(node);
        booked.asks.ask(clock);
        booked.change(slot, |holder| {
            // What an earlier booking will bring is not brought twice.
            if holder.booked == 0 {
                new_blocks = common as u64 - u64::from(holder.len);
            }
            holder.booked += 1;
        });
        if !is_whole {
            self.tidy(found);
        }
        let asks = self.tree.node(node).asks.lately(clock);
        BookedEdge { node, taken: common, new_blocks, asks }
    }

    /// What the start of its prefill did. `None` before it was reported, and while the request
    /// waits for one of its engine's slots.
    pub fn started(&self, booking: &Booking) -> Option<Started> {
        let Phase::Started { result, .. } = booking.phase else { return None };
        let rank = self.live(booking.slot).map(|index| &self.ranks[index as usize]);
        match rank.and_then(Rank::slots) {
            Some(slots) => slots.started(booking.job),
            None => Some(result),
        }
    }

    /// The predicted start of the prefill. The leading blocks that the rank has are pinned;
    /// the others are allocated, evicting what was freed least recently, and become resident.
    /// A second call changes nothing and returns the first result.
    pub fn start(&mut self, booking: &mut Booking) -> Started {
        self.sweep_some();
        if let Phase::Started { result, .. } = booking.phase {
            return result;
        }
        let Some(slot) = self.live(booking.slot) else { return Started::default() };
        let rank = &mut self.ranks[slot as usize];
        rank.awaited -= booking.awaited;
        if let Some(slots) = rank.slots_mut() {
            let result = slots.start(booking.job, booking.counts_on_answer).unwrap_or_default();
            booking.phase = Phase::Started { result, copy: None };
            return result;
        }
        let resident = self.take_path(slot, booking.tail);
        let ends_on_block = booking.extra == 0 && booking.blocks > 0;
        let is_whole_hit = ends_on_block && resident == booking.blocks;
        let found = resident - u32::from(is_whole_hit);
        if is_whole_hit {
            self.part_path(slot, booking.tail, found);
        }
        let is_radix = self.ranks[slot as usize].is_radix();
        let recompute = is_whole_hit && !is_radix;
        // The tail of a prompt that is recomputed stays as it is; it may even be evicted now.
        let touched = self.path.len() - usize::from(recompute);
        for at in 0..touched {
            self.touch(slot, self.path[at]);
        }
        let room = (booking.blocks - resident).saturating_sub(u32::from(ends_on_block));
        let answer_blocks = self.find_answer(slot, room, booking.counts_on_answer);
        let taken = if booking.counts_on_answer { answer_blocks } else { 0 };
        if is_radix {
            self.mark_prompt(slot, booking.tail, [resident, resident + taken]);
        }
        let cached_blocks = found + taken;
        let computed = booking.blocks - resident - taken + u32::from(recompute);
        let evicted = self.allocate(slot, u64::from(computed) + u64::from(booking.extra));
        self.ranks[slot as usize].anonymous += u64::from(booking.extra);
        let copy = self.store_path(slot, recompute);
        self.merge_pending();
        let evicted_blocks = count(evicted);
        let result = Started { cached_blocks, answer_blocks, evicted_blocks };
        booking.phase = Phase::Started { result, copy };
        result
    }

    /// Puts the nodes from the root to `tail` into `self.path`. Returns how many leading
    /// blocks of it the rank has.
    pub(crate) fn take_path(&mut self, slot: u32, tail: NodeId) -> u32 {
        self.path.clear();
        let mut id = tail;
        while id != NO_NODE {
            self.path.push(id);
            id = self.tree.node(id).parent;
        }
        self.path.reverse();
        let lens = self.path.iter().map(|id| self.tree.node(*id).holder(slot).map_or(0, |h| h.len));
        lens.sum()
    }

    /// Pins the resident blocks of a booked node.
    pub(crate) fn touch(&mut self, slot: u32, id: NodeId) {
        let Some(holder) = self.tree.node_mut(id).holder_mut(slot) else { return };
        if holder.len == 0 {
            return;
        }
        let (len, was_queued) = (holder.len, holder.is_queued());
        if was_queued {
            self.unlink(slot, Place::node(id));
            self.ranks[slot as usize].pin(u64::from(len));
        }
        self.tree.node_mut(id).change(slot, |holder| holder.pins += 1);
    }

    /// Turns the booking of `self.path` into pinned content. The blocks are allocated already.
    /// Returns the serial of a second copy of the last block, if there is one now.
    pub(crate) fn store_path(&mut self, slot: u32, recompute: bool) -> Option<u64> {
        let mut stored = 0;
        let mut copy = None;
        for at in 0..self.path.len() {
            let id = self.path[at];
            let is_recomputed = recompute && at + 1 == self.path.len();
            let node = self.tree.node_mut(id);
            let label_len = node.label.len() as u32;
            if is_recomputed && node.holder(slot).is_some_and(|holder| holder.len > 0) {
                node.copies += 1;
                copy = Some(self.ranks[slot as usize].add_copy(id));
                self.tree.node_mut(id).change(slot, |holder| holder.booked -= 1);
                continue;
            }
            node.change(slot, |holder| {
                stored += label_len - holder.len;
                holder.len = label_len;
                // A node that had no block of the rank's was not touched.
                holder.pins = holder.pins.max(1);
                holder.booked -= 1;
            });
        }
        self.ranks[slot as usize].resident += u64::from(stored);
        self.residencies += stored as usize;
        copy
    }

    /// Reports the blocks of output so far, the one being filled included. They take room and
    /// have no keys. A smaller number than before, or one before the start, is ignored.
    pub fn grow(&mut self, booking: &mut Booking, generated_blocks: u32) {
        self.sweep_some();
        let Some(slot) = self.live(booking.slot) else { return };
        let new_blocks = generated_blocks.saturating_sub(booking.generated);
        if new_blocks == 0 || !booking.is_started() {
            return;
        }
        booking.generated = generated_blocks;
        if let Some(slots) = self.ranks[slot as usize].slots_mut() {
            return slots.grow(booking.job, generated_blocks);
        }
        self.allocate(slot, u64::from(new_blocks));
        self.ranks[slot as usize].anonymous += u64::from(new_blocks);
        self.merge_pending();
    }

    /// The request's end. Its blocks are freed from the last to the first: those without
    /// content to the front of the free order, cached ones to the back. Of its blocks without
    /// keys the first `output_cached_blocks` are full and stay cached. A booking whose start
    /// was never reported is started first: a request that ended was computed. Returns what its
    /// start did.
    pub fn finish(&mut self, booking: Booking, output_cached_blocks: u32) -> Started {
        self.finish_with_answer(booking, output_cached_blocks, &[])
    }

    /// [`KvIndex::finish`] of a request whose answer is known: `answer_keys` are the keys of
    /// the blocks behind the prompt's full ones, as far as they are known and no more than
    /// stay cached. Those become content that a later prompt finds.
    pub fn finish_with_answer(
        &mut self,
        mut booking: Booking,
        output_cached_blocks: u32,
        answer_keys: &[BlockKey],
    ) -> Started {
        let started = self.start(&mut booking);
        let Some(slot) = self.live(booking.slot) else { return started };
        let rank = &mut self.ranks[slot as usize];
        if let Some(slots) = rank.slots_mut() {
            return slots.finish(booking.job, output_cached_blocks, answer_keys);
        }
        let keyless = u64::from(booking.extra) + u64::from(booking.generated);
        let cached = u64::from(output_cached_blocks).min(keyless);
        let rank = &mut self.ranks[slot as usize];
        rank.bookings -= 1;
        rank.note_answer(booking.generated);
        rank.pinned -= keyless;
        rank.anonymous -= keyless - cached;
        let known = answer_keys.len().min(cached as usize);
        let stored = self.store_answer(slot, &booking, &answer_keys[..known]);
        let keyed = stored.new_blocks + stored.doubled_blocks;
        let follows = if keyed == known as u64 { stored.tail } else { NO_NODE };
        self.push_back_output(slot, cached - keyed, follows);
        self.queue_answer(slot, &stored);
        self.release_path(slot, &booking);
        self.settle(slot);
        self.merge_pending();
        started
    }

    /// Frees the keyed blocks of a started request, and marks its nodes for merging.
    fn release_path(&mut self, slot: u32, booking: &Booking) {
        let mut id = booking.tail;
        if id == NO_NODE {
            return;
        }
        self.mergeable.extend(self.tree.only_child(id));
        let Phase::Started { copy, .. } = booking.phase else { return };
        let copy = copy.and_then(|serial| self.ranks[slot as usize].find_copy(id, serial));
        if let Some(number) = copy {
            self.free_copy(slot, number);
            id = self.tree.node(id).parent;
        }
        while id != NO_NODE {
            self.mergeable.push(id);
            self.release(slot, id);
            id = self.tree.node(id).parent;
        }
    }

    pub(crate) fn release(&mut self, slot: u32, id: NodeId) {
        let Some(holder) = self.tree.node_mut(id).holder_mut(slot) else { return };
        holder.pins -= 1;
        if holder.pins == 0 {
            let len = u64::from(holder.len);
            self.ranks[slot as usize].unpin(len);
            self.push_back(slot, Place::node(id));
        }
    }

    /// Undoes a booking whose request failed. Before the start nothing of it remains; after
    /// it the engine has the prompt, as at any other end.
    pub fn rollback(&mut self, booking: Booking) {
        if booking.is_started() {
            self.finish(booking, 0);
            return;
        }
        self.sweep_some();
        let Some(slot) = self.live(booking.slot) else { return };
        let rank = &mut self.ranks[slot as usize];
        rank.bookings -= 1;
        rank.awaited -= booking.awaited;
        if let Some(slots) = rank.slots_mut() {
            return slots.rollback(booking.job);
        }
        self.take_path(slot, booking.tail);
        if booking.tail != NO_NODE {
            self.mergeable.extend(self.tree.only_child(booking.tail));
        }
        while let Some(id) = self.path.pop() {
            self.tree.node_mut(id).change(slot, |holder| holder.booked -= 1);
            self.mergeable.push(id);
            self.tidy(id);
        }
        self.merge_pending();
    }
}
