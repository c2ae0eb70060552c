//! llama.cpp's slots (`tools/server/server-context.cpp`), for the ranks that have them.
//!
//! A slot keeps one sequence: the prompt it served last and its answer. A prompt goes to the idle
//! slot that shares the longest beginning with it, if that is more than a tenth of the prompt,
//! else to the one that was used least recently; what the slot has beyond the common part is
//! dropped. Requests that find no idle slot wait. A slot that loses more than half of its
//! sequence is first saved to a cache in the host's memory, where there is room for that, and a
//! saved sequence that serves a prompt better than the slot does is taken back.
//!
//! Slots share nothing with each other, so nothing of this is in the tree: a running request's
//! prompt is of use to no other, and a match compares a prompt with each sequence.
//!
//! Not mirrored: a prefix too short for a block, and servers whose slots share one context and
//! that drop idle ones when it is full.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use domain::BlockKey;

use crate::node::common_prefix;
use crate::types::Started;

/// The server's default for `--slot-prompt-similarity`.
const SIMILARITY: f64 = 0.1;

/// A slot that would keep less than this share of its sequence is saved first.
const KEPT_WITHOUT_SAVING: f64 = 0.5;

/// A saved sequence is not taken back for less than this share of it.
const WORTH_RESTORING: f64 = 0.25;

/// A prompt and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sequence {
    keys: Vec<BlockKey>,
    /// Blocks behind those whose keys are not known.
    answer: u64,
}

/// What of a sequence serves a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fit {
    /// Leading blocks with keys.
    keyed: u32,
    /// Blocks of an answer behind them that the prompt may go on with.
    answer: u32,
}

/// A request.
#[derive(Debug)]
struct Job {
    keys: Arc<[BlockKey]>,
    extra: u32,
    generated: u32,
    counts_on_answer: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Booked,
    /// Its prefill should have begun, and no slot is idle.
    Waiting,
    Running {
        slot: usize,
        started: Started,
    },
}

#[derive(Debug, Default)]
struct Slot {
    kept: Sequence,
    is_busy: bool,
    /// When it was used last, in ends of requests.
    used: u64,
}

/// The slots of one rank and its saved sequences.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// Oldest first.
    saved: VecDeque<Sequence>,
    /// Blocks that slots and saved sequences may hold together; what the slots hold themselves
    /// is never given up for it.
    capacity: u64,
    jobs: HashMap<u64, Job>,
    waiting: VecDeque<u64>,
    next_job: u64,
    clock: u64,
}

/// Counts for [`crate::RankStats`].
pub(crate) struct SlotStats {
    pub(crate) capacity: u64,
    pub(crate) pinned: u64,
    pub(crate) keyed: u64,
    pub(crate) anonymous: u64,
    pub(crate) free: u64,
    pub(crate) bookings: u32,
}

impl Sequence {
    fn blocks(&self) -> u64 {
        self.keys.len() as u64 + self.answer
    }

    fn fit(&self, prompt: &[BlockKey]) -> Fit {
        let keyed = common_prefix(&self.keys, prompt);
        let answer = if keyed == self.keys.len() && keyed > 0 {
            self.answer.min((prompt.len() - keyed) as u64)
        } else {
            0
        };
        Fit { keyed: keyed as u32, answer: answer as u32 }
    }

    /// Whether `other` is known to have all of this.
    fn is_part_of(&self, other: &Sequence) -> bool {
        self.answer == 0 && other.keys.starts_with(&self.keys)
    }
}

impl Fit {
    fn blocks(self, counts_on_answer: bool) -> u32 {
        self.keyed + if counts_on_answer { self.answer } else { 0 }
    }
}

impl Job {
    /// Its length as far as it is known in blocks.
    fn blocks(&self) -> u64 {
        self.keys.len() as u64 + u64::from(self.extra)
    }
}

impl Slots {
    pub(crate) fn new(count: u32, capacity: u64) -> Self {
        Slots {
            slots: (0..count.max(1)).map(|_| Slot::default()).collect(),
            saved: VecDeque::new(),
            capacity,
            jobs: HashMap::new(),
            waiting: VecDeque::new(),
            next_job: 0,
            clock: 0,
        }
    }

    pub(crate) fn book(&mut self, keys: &[BlockKey], extra: u32) -> u64 {
        let job = Job {
            keys: keys.into(),
            extra,
            generated: 0,
            counts_on_answer: false,
            state: State::Booked,
        };
        self.next_job += 1;
        self.jobs.insert(self.next_job, job);
        self.next_job
    }

    /// Leading blocks of the prompt that it would find now, and the blocks of an answer behind
    /// them. With every slot taken that is what saved sequences have, and of a single slot what
    /// the last prompt before this one will leave there.
    pub(crate) fn matched(&self, prompt: &[BlockKey]) -> (u32, u32) {
        let length = prompt.len() as u64;
        if let [slot] = &self.slots[..]
            && let Some(last) = self.last_in_line()
        {
            let ahead = Sequence { keys: last.keys.to_vec(), answer: 0 };
            let fit = self.best_saved(&slot.kept, prompt, length, false).map(|(_, fit)| fit);
            let keyed = ahead.fit(prompt).keyed.max(fit.map_or(0, |fit| fit.keyed));
            return (keyed, 0);
        }
        let Some((slot, is_similar)) = self.choose(prompt, length, false, &self.spoken_for())
        else {
            let saved = self.best_saved(&Sequence::default(), prompt, length, false);
            return saved.map_or((0, 0), |(_, fit)| (fit.keyed, fit.answer));
        };
        let kept = &self.slots[slot].kept;
        let mut fit = kept.fit(prompt);
        if self.is_saved_first(kept, fit, is_similar)
            && let Some((_, better)) = self.best_saved(kept, prompt, length, false)
        {
            fit = better;
        }
        (fit.keyed, fit.answer)
    }

    /// The idle slots that requests before the next one will take, in the order of their coming.
    fn spoken_for(&self) -> Vec<usize> {
        let ahead = self.jobs.iter().filter(|(_, job)| !matches!(job.state, State::Running { .. }));
        let mut ahead: Vec<(&u64, &Job)> = ahead.collect();
        ahead.sort_unstable_by_key(|(id, _)| **id);
        let mut taken = Vec::new();
        for (_, job) in ahead {
            match self.choose(&job.keys, job.blocks(), false, &taken) {
                Some((slot, _)) => taken.push(slot),
                None => break,
            }
        }
        taken
    }

    /// The prompt that was booked last and has not ended.
    fn last_in_line(&self) -> Option<&Job> {
        self.jobs.iter().max_by_key(|(id, _)| **id).map(|(_, job)| job)
    }

    /// The idle slot for a prompt of so many blocks, and whether it was chosen for what it has.
    fn choose(
        &self,
        prompt: &[BlockKey],
        length: u64,
        counts: bool,
        taken: &[usize],
    ) -> Option<(usize, bool)> {
        let is_idle = |(at, slot): &(usize, &Slot)| !slot.is_busy && !taken.contains(at);
        let idle = || self.slots.iter().enumerate().filter(is_idle);
        let mut best = None;
        let mut most = length as f64 * SIMILARITY;
        for (at, slot) in idle() {
            let blocks = f64::from(slot.kept.fit(prompt).blocks(counts));
            if blocks > most {
                (best, most) = (Some((at, true)), blocks);
            }
        }
        // Of slots that were never used the server takes the last.
        let oldest = || idle().rev().min_by_key(|(_, slot)| slot.used).map(|(at, _)| (at, false));
        best.or_else(oldest)
    }

    fn is_saved_first(&self, kept: &Sequence, fit: Fit, is_similar: bool) -> bool {
        !is_similar || f64::from(fit.keyed) < KEPT_WITHOUT_SAVING * kept.blocks() as f64
    }

    /// The saved sequence that serves a prompt better than what the slot has.
    fn best_saved(
        &self,
        kept: &Sequence,
        prompt: &[BlockKey],
        length: u64,
        counts: bool,
    ) -> Option<(usize, Fit)> {
        let share = |fit: Fit, of: u64| f64::from(fit.blocks(counts)) / of.max(1) as f64;
        let own = kept.fit(prompt);
        let (mut kept_share, mut similar) = (share(own, kept.blocks()), share(own, length));
        let mut best = None;
        for (at, sequence) in self.saved.iter().enumerate() {
            let fit = sequence.fit(prompt);
            let (keeps, sim) = (share(fit, sequence.blocks()), share(fit, length));
            if keeps >= WORTH_RESTORING && keeps > kept_share && sim > similar {
                (best, kept_share, similar) = (Some((at, fit)), keeps, sim);
            }
        }
        best
    }

    /// See [`crate::KvIndex::start`]. `None` while it waits.
    pub(crate) fn start(&mut self, id: u64, counts_on_answer: bool) -> Option<Started> {
        let job = self.jobs.get_mut(&id)?;
        match job.state {
            State::Running { started, .. } => return Some(started),
            State::Waiting => return None,
            State::Booked => {}
        }
        job.counts_on_answer = counts_on_answer;
        // Those that wait are before it.
        if self.waiting.is_empty()
            && let Some(started) = self.run(id)
        {
            return Some(started);
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.state = State::Waiting;
            self.waiting.push_back(id);
        }
        None
    }

    /// Gives the request an idle slot if there is one.
    fn run(&mut self, id: u64) -> Option<Started> {
        let job = self.jobs.get(&id)?;
        let (keys, counts, length) = (job.keys.clone(), job.counts_on_answer, job.blocks());
        let ends_on_block = job.extra == 0;
        let (at, is_similar) = self.choose(&keys, length, counts, &[])?;
        let kept = std::mem::take(&mut self.slots[at].kept);
        let mut fit = kept.fit(&keys);
        let before = self.saved_blocks() + kept.blocks();
        if self.is_saved_first(&kept, fit, is_similar) {
            fit = self.exchange(kept, &keys, length, counts).unwrap_or(fit);
        }
        // At least the last token is computed.
        let most = (keys.len() as u32).saturating_sub(u32::from(ends_on_block));
        let answer_blocks = fit.answer.min(most.saturating_sub(fit.keyed));
        let taken = if counts { answer_blocks } else { 0 };
        let cached_blocks = fit.keyed.min(most) + taken;
        self.slots[at].is_busy = true;
        self.shrink(length);
        let left = self.saved_blocks() + u64::from(fit.blocks(counts));
        let evicted_blocks = crate::index::count(before.saturating_sub(left));
        let started = Started { cached_blocks, answer_blocks, evicted_blocks };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.state = State::Running { slot: at, started };
        }
        Some(started)
    }

    /// Saves a slot's sequence and takes a better one back. Returns what of that serves the
    /// prompt.
    fn exchange(
        &mut self,
        kept: Sequence,
        keys: &[BlockKey],
        length: u64,
        counts: bool,
    ) -> Option<Fit> {
        let best = self.best_saved(&kept, keys, length, counts);
        let restored = best.and_then(|(at, fit)| Some((self.saved.remove(at)?, fit)));
        if kept.blocks() > 0 && !self.saved.iter().any(|saved| kept.is_part_of(saved)) {
            self.saved.retain(|saved| !saved.is_part_of(&kept));
            self.saved.push_back(kept);
        }
        restored.map(|(_, fit)| fit)
    }

    fn saved_blocks(&self) -> u64 {
        self.saved.iter().map(Sequence::blocks).sum()
    }

    /// Gives up saved sequences, oldest first, until all fits, `more` blocks included.
    fn shrink(&mut self, more: u64) {
        let mut total = self.saved_blocks() + self.held_blocks() + more;
        while total > self.capacity
            && let Some(oldest) = self.saved.pop_front()
        {
            total -= oldest.blocks();
        }
    }

    /// Blocks of the slots, those of running requests included.
    fn held_blocks(&self) -> u64 {
        let kept: u64 = self.slots.iter().map(|slot| slot.kept.blocks()).sum();
        kept + self.running_blocks()
    }

    fn running_blocks(&self) -> u64 {
        let running = self.jobs.values().filter(|job| matches!(job.state, State::Running { .. }));
        running.map(|job| job.blocks() + u64::from(job.generated)).sum()
    }

    pub(crate) fn grow(&mut self, id: u64, generated: u32) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.generated = job.generated.max(generated);
        }
    }

    /// See [`crate::KvIndex::finish_with_answer`].
    pub(crate) fn finish(&mut self, id: u64, cached: u32, answer: &[BlockKey]) -> Started {
        if self.start(id, false).is_none() {
            // The engine had a slot for it, though the mirror knows of none: no sequence that
            // could be told which.
            self.waiting.retain(|waiting| *waiting != id);
            self.jobs.remove(&id);
            return Started::default();
        }
        let Some(job) = self.jobs.remove(&id) else { return Started::default() };
        let State::Running { slot, started } = job.state else { return Started::default() };
        let cached = cached.min(job.extra + job.generated) as usize;
        let known = answer.len().min(cached);
        let keys = [&job.keys[..], &answer[..known]].concat();
        self.clock += 1;
        self.slots[slot] = Slot {
            kept: Sequence { keys, answer: (cached - known) as u64 },
            is_busy: false,
            used: self.clock,
        };
        self.shrink(0);
        self.serve_waiting();
        started
    }

    fn serve_waiting(&mut self) {
        while let Some(id) = self.waiting.front().copied() {
            if self.jobs.contains_key(&id) && self.run(id).is_none() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// A request that had not begun is gone; one that had is finished.
    pub(crate) fn rollback(&mut self, id: u64) {
        let is_running =
            self.jobs.get(&id).is_some_and(|job| matches!(job.state, State::Running { .. }));
        if is_running {
            self.finish(id, 0, &[]);
        } else {
            self.jobs.remove(&id);
            self.waiting.retain(|waiting| *waiting != id);
        }
    }

    /// What its start did, once it has a slot.
    pub(crate) fn started(&self, id: u64) -> Option<Started> {
        match self.jobs.get(&id)?.state {
            State::Running { started, .. } => Some(started),
            State::Booked | State::Waiting => None,
        }
    }

    pub(crate) fn set_capacity(&mut self, blocks: u64) {
        self.capacity = blocks;
        self.shrink(0);
    }

    /// Blocks that would be given up for so many new ones.
    pub(crate) fn evicted_by(&self, new_blocks: u64) -> u64 {
        let replaced = self.choose(&[], new_blocks, false, &[]);
        let replaced = replaced.map_or(0, |(at, _)| self.slots[at].kept.blocks());
        let room = self.capacity.saturating_sub(self.saved_blocks() + self.held_blocks());
        new_blocks.saturating_sub(room).min(self.saved_blocks() + replaced)
    }

    /// Forgets sequences beyond the first `keep` blocks of a prompt that they go on with.
    pub(crate) fn purge(&mut self, keys: &[BlockKey], keep: u32) -> u64 {
        let keep = keep as usize;
        let Some(lost) = keys.get(..=keep) else { return 0 };
        let mut purged = 0;
        let slots = self.slots.iter_mut().map(|slot| &mut slot.kept);
        for sequence in slots.chain(&mut self.saved).filter(|s| s.keys.starts_with(lost)) {
            purged += sequence.blocks() - keep as u64;
            sequence.keys.truncate(keep);
            sequence.answer = 0;
        }
        self.saved.retain(|sequence| !sequence.keys.is_empty());
        purged
    }

    /// [`Slots::purge`] for the prompt of a booking.
    pub(crate) fn purge_booked(&mut self, id: u64, keep: u32) -> u64 {
        let keys = self.jobs.get(&id).map(|job| job.keys.clone());
        keys.map_or(0, |keys| self.purge(&keys, keep))
    }

    /// Forgets everything that no request holds.
    pub(crate) fn clear(&mut self) -> u64 {
        let kept: u64 = self.slots.iter().map(|slot| slot.kept.blocks()).sum();
        let purged = kept + self.saved_blocks();
        self.saved.clear();
        self.slots.iter_mut().for_each(|slot| slot.kept = Sequence::default());
        purged
    }

    pub(crate) fn stats(&self) -> SlotStats {
        let kept = || self.slots.iter().map(|slot| &slot.kept).chain(&self.saved);
        let pinned = self.running_blocks();
        let keyed = kept().map(|sequence| sequence.keys.len() as u64).sum::<u64>();
        let anonymous = kept().map(|sequence| sequence.answer).sum::<u64>();
        SlotStats {
            capacity: self.capacity,
            pinned,
            keyed,
            anonymous,
            free: self.capacity.saturating_sub(keyed + anonymous + pinned),
            bookings: self.jobs.len() as u32,
        }
    }
}
