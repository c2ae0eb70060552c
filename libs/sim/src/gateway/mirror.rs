//! What the gateway believes engines hold.
//!
//! Engines that follow vLLM are mirrored by the production [`KvIndex`]. The plain cache of the
//! published documents workload is another kind of engine: it may lose the beginning of a prompt
//! and keep the rest, which the index, made for engines that never do, cannot express. For it the
//! mirror is a cache of the same kind.

use std::collections::HashMap;

use domain::BlockKey;
use kv_index::feedback::{Ended, Feedback, Heard, Sample, ToldCapacity};
use kv_index::{AnswerShare, AskClock, Asks, Booking, KvIndex, Matches, Slot};
use scheduling::copies::{self, Copies};
use scheduling::hot::least_load;

use crate::lru::{Evict, PlainLru};

/// The kind of engine that a mirror follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorKind {
    /// vLLM's free queue.
    FreeQueue,
    /// A plain cache.
    PlainLru(Evict),
}

/// A request's part in the mirror.
pub(super) enum MirrorBooking {
    Booked(Booking, Sample),
    /// A plain cache has used its blocks when it was sent; nothing is held.
    Nothing,
}

pub(super) enum Mirror {
    FreeQueue {
        index: Box<KvIndex>,
        slots: Vec<Slot>,
        matches: Matches,
        feedback: Feedback,
        answers: AnswerShare,
    },
    PlainLru {
        caches: Vec<PlainLru>,
        numbers: Numbers,
        prompt: Vec<u32>,
        demand: Demand,
    },
}

impl Mirror {
    pub(super) fn new(kind: MirrorKind, blocks: &[u32]) -> Self {
        match kind {
            MirrorKind::FreeQueue => {
                let mut index = Box::new(KvIndex::new());
                let mut feedback = Feedback::default();
                let add = |blocks: &u32| add_rank(&mut index, &mut feedback, *blocks);
                let slots = blocks.iter().map(add).collect();
                let (matches, answers) = (Matches::default(), AnswerShare::default());
                Self::FreeQueue { index, slots, matches, feedback, answers }
            }
            MirrorKind::PlainLru(evict) => Self::PlainLru {
                caches: blocks.iter().map(|blocks| PlainLru::new(*blocks, evict)).collect(),
                numbers: Numbers::default(),
                prompt: Vec::new(),
                demand: Demand::new(blocks.len()),
            },
        }
    }

    /// Leading blocks of the prompt per rank, resident or booked. What engines hold for `truth`
    /// stands in for what the mirror has confirmed; bookings stay the mirror's.
    pub(super) fn match_prompt(
        &mut self,
        keys: &[BlockKey],
        truth: Option<&[u32]>,
        into: &mut Vec<u32>,
    ) {
        into.clear();
        match self {
            Self::FreeQueue { index, slots, matches, answers, .. } => {
                index.match_prefix(keys, matches);
                index.list_all(matches);
                let answer = |slot: &Slot| match answers.is_likely() {
                    true => matches.answer_blocks(*slot),
                    false => 0,
                };
                into.extend(slots.iter().enumerate().map(|(rank, slot)| {
                    let found = index.matched(matches, *slot);
                    match (truth, found) {
                        (None, found) => found.map_or(0, |m| m.blocks + answer(slot)),
                        (Some(truth), Some(m)) if m.blocks > m.confirmed_blocks => {
                            m.blocks.max(truth[rank])
                        }
                        (Some(truth), _) => truth[rank],
                    }
                }));
            }
            Self::PlainLru { caches, numbers, prompt, .. } => {
                numbers.of(keys, prompt);
                into.extend(caches.iter().enumerate().map(|(rank, cache)| {
                    truth.map_or_else(|| cache.matched(prompt), |truth| truth[rank])
                }));
            }
        }
    }

    /// Leading blocks of the prompt last matched that one more rank should hold; 0 if none.
    pub(super) fn hot_blocks(&self) -> u32 {
        match self {
            Self::FreeQueue { index, matches, .. } => {
                let demand = index.demand(matches, least_load(index.ranks()));
                demand.filter(|demand| !demand.is_pending).map_or(0, |demand| demand.blocks)
            }
            Self::PlainLru { caches, prompt, demand, .. } => {
                let least = least_load(caches.len());
                let hot = |block: &u32| {
                    let holders = caches.iter().filter(|cache| cache.holds(*block)).count();
                    holders > 0 && demand.load(*block) > least * holders as f64
                };
                prompt.iter().rposition(hot).map_or(0, |last| last as u32 + 1)
            }
        }
    }

    /// Cached blocks that the prompt last matched would evict, `new_blocks` of it being new, each
    /// counted as often as it was asked for lately.
    pub(super) fn asks_evicted_by(&mut self, rank: usize, new_blocks: u32) -> f64 {
        match self {
            Self::FreeQueue { index, slots, .. } => index.asks_evicted_by(slots[rank], new_blocks),
            Self::PlainLru { caches, prompt, demand, .. } => {
                caches[rank].victims(prompt).map(|block| demand.lately(block)).sum()
            }
        }
    }

    /// How often the prompt last matched was asked for lately, up to its leading `matched` blocks.
    pub(super) fn asks_of(&self, matched: u32) -> f64 {
        match self {
            Self::FreeQueue { index, matches, .. } => index.asks_of(matches),
            Self::PlainLru { prompt, demand, .. } => demand.lately(prompt[matched as usize - 1]),
        }
    }

    /// What a further copy is charged on the rank, in blocks by their asks.
    pub(super) fn price_of_copy(&mut self, rank: usize, copies: Copies) -> f64 {
        let kept_out = match self {
            Self::FreeQueue { index, slots, .. } => {
                index.asks_evicted_by(slots[rank], copies.blocks)
            }
            Self::PlainLru { caches, demand, .. } => {
                caches[rank].front(copies.blocks).map(|block| demand.lately(block)).sum()
            }
        };
        copies::price(kept_out, copies)
    }

    /// The rank's engine is another from now on, of the same kind, with an empty cache of so many
    /// blocks.
    pub(super) fn replace(&mut self, rank: usize, blocks: u32) {
        match self {
            Self::FreeQueue { index, slots, feedback, .. } => {
                index.remove_rank(slots[rank]);
                feedback.remove(slots[rank]);
                slots[rank] = add_rank(index, feedback, blocks);
            }
            Self::PlainLru { caches, .. } => caches[rank].clear(),
        }
    }

    /// Distinct blocks that the rank is believed to hold.
    pub(super) fn resident(&self, rank: usize) -> u32 {
        match self {
            Self::FreeQueue { index, slots, .. } => {
                index.rank_stats(slots[rank]).map_or(0, |stats| stats.resident_keyed_blocks)
            }
            Self::PlainLru { caches, .. } => caches[rank].resident(),
        }
    }

    /// `in_line` if the prompt has a long line before it.
    pub(super) fn book(
        &mut self,
        rank: usize,
        keys: &[BlockKey],
        extra: u32,
        in_line: bool,
    ) -> MirrorBooking {
        match self {
            Self::FreeQueue { index, slots, feedback, answers, .. } => {
                let mut sample = feedback.sample(slots[rank], keys);
                if in_line {
                    sample.stands_in_line();
                }
                let mut booking = index.book(slots[rank], keys, extra);
                if answers.is_likely() {
                    booking.count_on_answer();
                }
                MirrorBooking::Booked(booking, sample)
            }
            Self::PlainLru { caches, prompt, demand, .. } => {
                demand.ask(prompt);
                caches[rank].access(prompt);
                MirrorBooking::Nothing
            }
        }
    }

    /// Whether the engine can start the prompt beside those that run.
    pub(super) fn has_room(&self, held: &MirrorBooking) -> bool {
        match (self, held) {
            (Self::FreeQueue { index, .. }, MirrorBooking::Booked(booking, _)) => {
                index.has_room(booking)
            }
            _ => true,
        }
    }

    /// The rank's engine has counted so many preemptions in all.
    pub(super) fn preempted(&mut self, rank: usize, total: u64) {
        if let Self::FreeQueue { slots, feedback, .. } = self {
            feedback.preempted(slots[rank], total);
        }
    }

    /// Leading blocks that a booked prompt will find when it starts after `before`, the last
    /// booked first; `None` for those that it would find now.
    pub(super) fn found_after<'a>(
        &self,
        held: &MirrorBooking,
        before: impl Iterator<Item = &'a MirrorBooking>,
    ) -> Option<u32> {
        let booking = |held: &'a MirrorBooking| match held {
            MirrorBooking::Booked(booking, _) => Some(booking),
            MirrorBooking::Nothing => None,
        };
        match (self, held) {
            (Self::FreeQueue { index, .. }, MirrorBooking::Booked(own, _))
                if index.may_lose(own) =>
            {
                Some(index.found_after(own, before.filter_map(booking)))
            }
            _ => None,
        }
    }

    pub(super) fn start(&mut self, held: &mut MirrorBooking) {
        if let (Self::FreeQueue { index, feedback, .. }, MirrorBooking::Booked(booking, sample)) =
            (self, held)
        {
            feedback.start(index, booking, sample);
        }
    }

    pub(super) fn grow(&mut self, held: &mut MirrorBooking, output_blocks: u32) {
        if let (Self::FreeQueue { index, .. }, MirrorBooking::Booked(booking, _)) = (self, held) {
            index.grow(booking, output_blocks);
        }
    }

    /// The request is over; `output` blocks of its answer stay cached, or it never began.
    pub(super) fn release(&mut self, held: MirrorBooking, output: Option<u32>, heard: Heard) {
        if let (
            Self::FreeQueue { index, feedback, answers, .. },
            MirrorBooking::Booked(booking, sample),
        ) = (self, held)
        {
            match output {
                Some(blocks) => {
                    if let Heard::Found { blocks, .. } = heard {
                        answers.observe(index, &booking, f64::from(blocks));
                    }
                    let ended = Ended { output_cached_blocks: blocks, answer_keys: &[], heard };
                    let _ = feedback.finish(index, booking, sample, ended);
                }
                None => index.rollback(booking),
            }
        }
    }
}

fn add_rank(index: &mut KvIndex, feedback: &mut Feedback, blocks: u32) -> Slot {
    let slot = index.add_rank(blocks);
    let told = ToldCapacity { blocks, is_assumed: false, group: u64::from(blocks) };
    let capacity = feedback.set_told_capacity(slot, told);
    index.set_capacity(slot, capacity);
    slot
}

/// How often each numbered block was asked for lately: what the index keeps of its runs.
pub(super) struct Demand {
    clock: AskClock,
    asks: Vec<Asks>,
}

impl Demand {
    fn new(ranks: usize) -> Self {
        Self { clock: AskClock::new(ranks), asks: Vec::new() }
    }

    fn ask(&mut self, prompt: &[u32]) {
        self.clock.tick();
        for block in prompt.iter().map(|block| *block as usize) {
            if block >= self.asks.len() {
                self.asks.resize(block + 1, Asks::default());
            }
            self.asks[block].ask(self.clock);
        }
    }

    fn lately(&self, block: u32) -> f64 {
        self.asks.get(block as usize).map_or(0.0, |asks| f64::from(asks.lately(self.clock)))
    }

    /// Over what a rank gets on average.
    fn load(&self, block: u32) -> f64 {
        self.asks.get(block as usize).map_or(0.0, |asks| asks.load(self.clock))
    }
}

/// Numbers blocks in the order they are first seen, as a plain cache wants them.
#[derive(Default)]
pub(super) struct Numbers(HashMap<BlockKey, u32>);

impl Numbers {
    /// The numbers of `keys`.
    pub(super) fn of(&mut self, keys: &[BlockKey], into: &mut Vec<u32>) {
        into.clear();
        into.extend(keys.iter().map(|key| {
            let next = self.0.len() as u32;
            *self.0.entry(*key).or_insert(next)
        }));
    }
}
