//! The plainest possible mirror of vLLM's block pool: one entry per physical block, a free
//! queue per rank, a map from whole prefix to the physical copies of its last block.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use domain::BlockKey;

use crate::asks::{AskClock, Asks};
use crate::types::{IndexStats, RankStats, Slot, Started};

pub(crate) type Prefix = Vec<BlockKey>;

/// What a physical block in the free queue or in a request holds.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    Nothing,
    Output,
    Keyed(Prefix),
}

#[derive(Debug, Default)]
struct Rank {
    capacity: u32,
    next_block: u64,
    content: HashMap<u64, Content>,
    pins: HashMap<u64, u32>,
    queue: VecDeque<u64>,
    cached: HashMap<Prefix, Vec<u64>>,
    booked: HashMap<Prefix, u32>,
    /// Blocks that exist beyond the capacity and go as soon as the queue has one.
    debt: u32,
    bookings: u32,
    awaited: u64,
    evicted: Vec<Option<BlockKey>>,
    /// Answers whose keys are not known, oldest first.
    answers: Vec<Answer>,
}

/// Output blocks behind a whole prompt, first block first.
#[derive(Debug)]
struct Answer {
    after: Prefix,
    blocks: Vec<u64>,
}

impl Rank {
    fn fresh(&mut self) -> u64 {
        self.next_block += 1;
        self.content.insert(self.next_block, Content::Nothing);
        self.next_block
    }

    fn evict(&mut self, block: u64) -> bool {
        match self.content.insert(block, Content::Nothing) {
            Some(Content::Keyed(prefix)) => {
                self.evicted.push(prefix.last().copied());
                let copies = self.cached.get_mut(&prefix).expect("a keyed block is in the map");
                copies.retain(|copy| *copy != block);
                if copies.is_empty() {
                    self.cached.remove(&prefix);
                }
                true
            }
            Some(Content::Output) => {
                self.evicted.push(None);
                for answer in &mut self.answers {
                    answer.blocks.retain(|other| *other != block);
                }
                true
            }
            _ => false,
        }
    }

    /// The newest answer behind `prefix`.
    fn answer(&self, prefix: &[BlockKey]) -> Option<usize> {
        let is_it = |answer: &Answer| answer.after == prefix && !answer.blocks.is_empty();
        self.answers.iter().rposition(is_it)
    }

    /// Names the output block `block`. Returns whether it is the content that is found now:
    /// what a running request holds stays that, and of two that are free the newer one is it.
    fn name(&mut self, block: u64, prefix: Prefix) {
        self.content.insert(block, Content::Output);
        if let Some(older) = self.cached.get(&prefix) {
            let older = older[0];
            if self.pins.contains_key(&older) {
                return;
            }
            self.content.insert(older, Content::Output);
        }
        self.content.insert(block, Content::Keyed(prefix.clone()));
        self.cached.insert(prefix, vec![block]);
    }

    fn allocate(&mut self, evicted: &mut u32) -> u64 {
        let block = match self.queue.pop_front() {
            Some(block) => {
                *evicted += u32::from(self.evict(block));
                block
            }
            None => {
                self.debt += 1;
                self.fresh()
            }
        };
        self.pins.insert(block, 1);
        block
    }

    fn release(&mut self, block: u64) {
        let pins = self.pins.get_mut(&block).expect("a request's block is pinned");
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&block);
            if self.content[&block] == Content::Nothing {
                self.queue.push_front(block);
            } else {
                self.queue.push_back(block);
            }
        }
    }

    fn settle(&mut self) {
        while self.debt > 0 {
            let Some(block) = self.queue.pop_front() else { return };
            self.evict(block);
            self.content.remove(&block);
            self.debt -= 1;
        }
    }

    fn holds(&self, prefix: &[BlockKey]) -> bool {
        self.cached.contains_key(prefix)
    }
}

/// A booking of the model.
#[must_use]
#[derive(Debug)]
pub(crate) struct ModelBooking {
    slot: Slot,
    keys: Prefix,
    extra: u32,
    awaited: u64,
    generated: u32,
    counts_on_answer: bool,
    started: Option<Started>,
    keyed_blocks: Vec<u64>,
    anonymous: Vec<u64>,
}

impl ModelBooking {
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    pub(crate) fn keys(&self) -> &[BlockKey] {
        &self.keys
    }

    pub(crate) fn count_on_answer(&mut self) {
        self.counts_on_answer = true;
    }
}

/// The model.
#[derive(Debug, Default)]
pub(crate) struct Model {
    ranks: Vec<Option<Rank>>,
    clock: AskClock,
    /// Of every prefix that was ever asked for.
    asks: HashMap<Prefix, Asks>,
}

impl Model {
    /// An empty index.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn rank(&mut self, slot: Slot) -> Option<&mut Rank> {
        self.ranks.get_mut(slot.index as usize)?.as_mut()
    }

    /// Adds a rank with so many usable blocks.
    pub(crate) fn add_rank(&mut self, capacity_blocks: u32) -> Slot {
        let mut rank = Rank::default();
        let index = self.ranks.len() as u32;
        for _ in 0..capacity_blocks {
            let block = rank.fresh();
            rank.queue.push_back(block);
        }
        rank.capacity = capacity_blocks;
        self.ranks.push(Some(rank));
        self.count_ranks();
        Slot { index, generation: 0 }
    }

    /// Forgets a rank.
    pub(crate) fn remove_rank(&mut self, slot: Slot) {
        if let Some(rank) = self.ranks.get_mut(slot.index as usize) {
            *rank = None;
        }
        self.count_ranks();
    }

    fn count_ranks(&mut self) {
        self.clock.set_ranks(self.ranks.iter().flatten().count());
    }

    /// Changes the usable blocks.
    pub(crate) fn set_capacity(&mut self, slot: Slot, blocks: u32) {
        let Some(rank) = self.rank(slot) else { return };
        for _ in blocks..rank.capacity {
            rank.debt += 1;
        }
        for _ in rank.capacity..blocks {
            if rank.debt > 0 {
                rank.debt -= 1;
            } else {
                let block = rank.fresh();
                rank.queue.push_front(block);
            }
        }
        rank.capacity = blocks;
        rank.settle();
    }

    /// Longest contiguous prefix of a rank.
    pub(crate) fn matched(&self, slot: Slot, keys: &[BlockKey]) -> Option<(u32, u32)> {
        let rank = self.ranks[slot.index as usize].as_ref()?;
        let ends = 1..=keys.len();
        let confirmed = ends.clone().take_while(|end| rank.holds(&keys[..*end])).count();
        let is_there =
            |end: &usize| rank.holds(&keys[..*end]) || rank.booked.contains_key(&keys[..*end]);
        let blocks = ends.take_while(is_there).count();
        (blocks > 0).then_some((blocks as u32, confirmed as u32))
    }

    /// Blocks of an answer behind what is matched.
    pub(crate) fn answer_blocks(&self, slot: Slot, keys: &[BlockKey]) -> u32 {
        let Some((blocks, _)) = self.matched(slot, keys) else { return 0 };
        let Some(rank) = &self.ranks[slot.index as usize] else { return 0 };
        let (prefix, rest) = keys.split_at(blocks as usize);
        let answer = rank.answer(prefix).map_or(0, |at| rank.answers[at].blocks.len());
        answer.min(rest.len()) as u32
    }

    /// Counts a prompt as resident at once.
    pub(crate) fn book(
        &mut self,
        slot: Slot,
        keys: &[BlockKey],
        extra_blocks: u32,
    ) -> ModelBooking {
        self.clock.tick();
        for end in 1..=keys.len() {
            self.asks.entry(keys[..end].to_vec()).or_default().ask(self.clock);
        }
        let mut awaited = u64::from(extra_blocks);
        if let Some(rank) = self.rank(slot) {
            rank.bookings += 1;
            let is_new = |end: &usize| {
                !rank.holds(&keys[..*end]) && !rank.booked.contains_key(&keys[..*end])
            };
            awaited += (1..=keys.len()).filter(is_new).count() as u64;
            rank.awaited += awaited;
            for end in 1..=keys.len() {
                *rank.booked.entry(keys[..end].to_vec()).or_default() += 1;
            }
        }
        ModelBooking {
            slot,
            keys: keys.to_vec(),
            extra: extra_blocks,
            awaited,
            generated: 0,
            counts_on_answer: false,
            started: None,
            keyed_blocks: Vec::new(),
            anonymous: Vec::new(),
        }
    }

    fn unbook(rank: &mut Rank, keys: &[BlockKey]) {
        for end in 1..=keys.len() {
            let count = rank.booked.get_mut(&keys[..end]).expect("booked before");
            *count -= 1;
            if *count == 0 {
                rank.booked.remove(&keys[..end]);
            }
        }
    }

    /// Predicted start of the prefill.
    pub(crate) fn start(&mut self, booking: &mut ModelBooking) -> Started {
        if let Some(started) = booking.started {
            return started;
        }
        let Some(rank) = self.rank(booking.slot) else { return Started::default() };
        rank.awaited -= booking.awaited;
        let keys = booking.keys.clone();
        Self::unbook(rank, &keys);
        let limit = if booking.extra == 0 { keys.len().saturating_sub(1) } else { keys.len() };
        let cached = (1..=limit).take_while(|end| rank.holds(&keys[..*end])).count();
        for end in 1..=cached {
            let block = rank.cached[&keys[..end]][0];
            *rank.pins.entry(block).or_default() += 1;
            rank.queue.retain(|queued| *queued != block);
            booking.keyed_blocks.push(block);
        }
        let mut answer_blocks = 0;
        if cached > 0
            && cached < limit
            && rank.holds(&keys[..cached])
            && let Some(at) = rank.answer(&keys[..cached])
        {
            answer_blocks = rank.answers[at].blocks.len().min(limit - cached);
            if booking.counts_on_answer {
                for block in rank.answers.remove(at).blocks.drain(..answer_blocks) {
                    rank.pins.insert(block, 1);
                    rank.queue.retain(|queued| *queued != block);
                    booking.keyed_blocks.push(block);
                }
            }
        }
        let found = booking.keyed_blocks.len();
        let mut evicted = 0;
        for _ in found..keys.len() {
            booking.keyed_blocks.push(rank.allocate(&mut evicted));
        }
        for _ in 0..booking.extra {
            booking.anonymous.push(rank.allocate(&mut evicted));
        }
        for end in cached + 1..=keys.len() {
            let block = booking.keyed_blocks[end - 1];
            let prefix = keys[..end].to_vec();
            rank.content.insert(block, Content::Keyed(prefix.clone()));
            rank.cached.entry(prefix).or_default().push(block);
        }
        let started = Started {
            cached_blocks: found as u32,
            answer_blocks: answer_blocks as u32,
            evicted_blocks: evicted,
        };
        booking.started = Some(started);
        started
    }

    /// Output blocks so far.
    pub(crate) fn grow(&mut self, booking: &mut ModelBooking, generated_blocks: u32) {
        let Some(rank) = self.rank(booking.slot) else { return };
        if booking.started.is_none() {
            return;
        }
        while booking.generated < generated_blocks {
            booking.anonymous.push(rank.allocate(&mut 0));
            booking.generated += 1;
        }
    }

    /// The request's end.
    pub(crate) fn finish(
        &mut self,
        mut booking: ModelBooking,
        output_cached_blocks: u32,
        answer_keys: &[BlockKey],
    ) {
        self.start(&mut booking);
        let Some(rank) = self.rank(booking.slot) else { return };
        rank.bookings -= 1;
        let outputs = (output_cached_blocks as usize).min(booking.anonymous.len());
        for block in &booking.anonymous[..outputs] {
            rank.content.insert(*block, Content::Output);
        }
        let known = answer_keys.len().min(outputs);
        let mut prefix = booking.keys.clone();
        let mut named = 0;
        for (block, key) in booking.anonymous[..known].iter().zip(answer_keys) {
            prefix.push(*key);
            if rank.cached.get(&prefix).is_some_and(|copies| copies.len() > 1) {
                break;
            }
            rank.name(*block, prefix.clone());
            named += 1;
        }
        if named == known && !prefix.is_empty() {
            let blocks = booking.anonymous[named..outputs].to_vec();
            rank.answers.push(Answer { after: prefix, blocks });
        }
        for block in booking.keyed_blocks.iter().chain(&booking.anonymous).rev() {
            rank.release(*block);
        }
        rank.settle();
    }

    /// The booking never came to be.
    pub(crate) fn rollback(&mut self, booking: ModelBooking) {
        if booking.started.is_some() {
            return self.finish(booking, 0, &[]);
        }
        let Some(rank) = self.rank(booking.slot) else { return };
        rank.bookings -= 1;
        rank.awaited -= booking.awaited;
        Self::unbook(rank, &booking.keys);
    }

    /// Forgets a rank's unpinned blocks beyond the first `keep` of a prompt. Returns how many.
    pub(crate) fn purge(&mut self, slot: Slot, keys: &[BlockKey], keep: u32) -> u32 {
        let Some(rank) = self.rank(slot) else { return 0 };
        let Some(lost) = keys.get(..=keep as usize) else { return 0 };
        if !rank.holds(lost) {
            return 0;
        }
        let is_lost = |content: &Content| match content {
            Content::Keyed(prefix) => prefix.starts_with(lost),
            _ => false,
        };
        let queued = rank.queue.iter().filter(|block| is_lost(&rank.content[*block]));
        let gone: Vec<u64> = queued.copied().collect();
        for block in &gone {
            rank.evict(*block);
            rank.evicted.pop();
            rank.queue.retain(|queued| queued != block);
            rank.queue.push_front(*block);
        }
        let cached = &rank.cached;
        rank.answers.retain(|answer| cached.contains_key(&answer.after));
        gone.len() as u32
    }

    /// Cached blocks that would go, and how often they were asked for.
    pub(crate) fn evictable_after(&self, slot: Slot, new_blocks: u32) -> (u32, f64) {
        let Some(Some(rank)) = self.ranks.get(slot.index as usize) else { return (0, 0.0) };
        let next = rank.queue.iter().skip(rank.awaited as usize).take(new_blocks as usize);
        let (mut blocks, mut sum) = (0, 0.0);
        for content in next.map(|block| &rank.content[block]) {
            blocks += u32::from(*content != Content::Nothing);
            if let Content::Keyed(prefix) = content {
                let asks = self.asks.get(prefix).copied().unwrap_or_default();
                sum += f64::from(asks.lately(self.clock));
            }
        }
        (blocks, sum)
    }

    /// The cached blocks of the free queue, front first: the prefix, or nothing for outputs.
    pub(crate) fn free_order(&self, slot: Slot) -> Vec<Option<Prefix>> {
        let Some(rank) = &self.ranks[slot.index as usize] else { return Vec::new() };
        let contents = rank.queue.iter().map(|block| rank.content[block].clone());
        let cached = contents.filter_map(|content| match content {
            Content::Nothing => None,
            Content::Output => Some(None),
            Content::Keyed(prefix) => Some(Some(prefix)),
        });
        cached.collect()
    }

    /// The resident prefixes with the number of their physical copies.
    pub(crate) fn resident(&self, slot: Slot) -> BTreeMap<Prefix, usize> {
        let Some(rank) = &self.ranks[slot.index as usize] else { return BTreeMap::new() };
        rank.cached.iter().map(|(prefix, copies)| (prefix.clone(), copies.len())).collect()
    }

    /// What was popped off the free queue since the last call.
    pub(crate) fn take_evicted(&mut self, slot: Slot) -> Vec<Option<BlockKey>> {
        self.rank(slot).map(|rank| std::mem::take(&mut rank.evicted)).unwrap_or_default()
    }

    /// State of a rank.
    pub(crate) fn rank_stats(&self, slot: Slot) -> Option<RankStats> {
        let rank = self.ranks.get(slot.index as usize)?.as_ref()?;
        let blank = |block: &&u64| rank.content[*block] == Content::Nothing;
        let anonymous = rank.pins.keys().filter(blank).count()
            + rank.content.values().filter(|content| **content == Content::Output).count();
        Some(RankStats {
            capacity: rank.capacity,
            pinned_blocks: rank.pins.len() as u32,
            resident_keyed_blocks: rank.cached.len() as u32,
            anonymous_blocks: anonymous as u32,
            free_blocks: rank.queue.iter().filter(blank).count() as u32,
            bookings: rank.bookings,
        })
    }

    /// Size.
    pub(crate) fn stats(&self) -> IndexStats {
        let ranks = || self.ranks.iter().flatten();
        let distinct: HashSet<&Prefix> =
            ranks().flat_map(|rank| rank.cached.keys().chain(rank.booked.keys())).collect();
        IndexStats {
            nodes: distinct.len(),
            distinct_blocks: distinct.len(),
            residencies: ranks().map(|rank| rank.cached.len()).sum(),
        }
    }
}
