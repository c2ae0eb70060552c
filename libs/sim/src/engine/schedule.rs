//! One step after the other: which requests it serves, how long it takes, what it yields.

use domain::Moment;

use super::sequence::Sequence;
use super::{EngineModel, EventKind};

/// The step in flight.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) ends_at: Moment,
    /// Requests it computes, with their serials, in scheduling order.
    members: Vec<(u64, u64)>,
}

/// What a step under construction holds so far.
struct Plan {
    budget: u32,
    prefill_tokens: u64,
    decoding: u64,
    members: Vec<(u64, u64)>,
}

impl Plan {
    fn add(&mut self, id: u64, sequence: &Sequence, tokens: u32, decoding: bool) {
        self.budget -= tokens;
        if decoding {
            self.decoding += 1;
        } else {
            self.prefill_tokens += u64::from(tokens);
        }
        self.members.push((id, sequence.serial));
    }
}

impl EngineModel {
    /// Plays every step that ends by `now`. A step that would begin at `now` itself begins only
    /// if `begin_now`, so that all arrivals of one moment can join it.
    pub(super) fn play(&mut self, now: Moment, begin_now: bool) {
        loop {
            if let Some(step) = self.step.take_if(|step| step.ends_at <= now) {
                self.complete(step);
            }
            let due = self.idle_since < now || (begin_now && self.idle_since == now);
            if self.step.is_some() || self.sequences.is_empty() || !due {
                return;
            }
            self.begin_step();
        }
    }

    fn begin_step(&mut self) {
        let start = self.idle_since;
        let mut plan = Plan {
            budget: self.config.token_budget,
            prefill_tokens: 0,
            decoding: 0,
            members: Vec::with_capacity(self.running.len()),
        };
        let preempted = self.schedule_running(&mut plan, start);
        // Blocks were just taken from someone: nobody new gets any in the same step.
        if !preempted {
            self.admit_waiting(&mut plan, start);
        }
        // Submission refuses what could never run, so an engine with requests always finds one.
        debug_assert!(!plan.members.is_empty());
        self.counters.prefilled_tokens += plan.prefill_tokens;
        let ends_at = self.config.step_end(start, plan.prefill_tokens, plan.decoding);
        self.step = Some(Step { ends_at, members: plan.members });
    }

    /// Gives running requests their next tokens, oldest first. When blocks run out the youngest
    /// is preempted; returns whether any was.
    fn schedule_running(&mut self, plan: &mut Plan, start: Moment) -> bool {
        let mut preempted = false;
        let mut position = 0;
        while position < self.running.len() && plan.budget > 0 {
            let id = self.running[position];
            let sequence = &self.sequences[&id];
            let tokens = sequence.uncomputed().min(plan.budget);
            let decoding = sequence.is_decoding();
            let total = sequence.computed + tokens;
            let missing = total.div_ceil(self.config.block_size) - sequence.blocks.len() as u32;
            while missing > self.pool.free() && self.running.len() > position {
                self.preempt_youngest(start);
                preempted = true;
            }
            // It was itself the youngest.
            if self.running.len() == position {
                break;
            }
            self.extend(id, tokens, missing);
            plan.add(id, &self.sequences[&id], tokens, decoding);
            position += 1;
        }
        preempted
    }

    /// Admits waiting requests in order until one does not fit. A request is admitted only if its
    /// whole prompt fits the free blocks, though this step may compute just a part of it.
    fn admit_waiting(&mut self, plan: &mut Plan, start: Moment) {
        while plan.budget > 0 && self.running.len() < self.config.max_running as usize {
            let Some(&id) = self.waiting.front() else { return };
            let Some(sequence) = self.sequences.get_mut(&id) else {
                self.waiting.pop_front();
                continue;
            };
            // At least one token is always computed: the last one's logits are needed.
            let most_hits = (sequence.tokens() - 1) / self.config.block_size;
            sequence.ensure_hashes(most_hits);
            let hits = self.pool.find_prefix(&sequence.hashes[..most_hits as usize]);
            let held = hits.len() as u32;
            let whole = sequence.tokens().div_ceil(self.config.block_size) - held;
            if whole + self.pool.count_free(&hits) > self.pool.free() {
                return;
            }
            self.waiting.pop_front();
            self.running.push(id);
            let cached_tokens = held * self.config.block_size;
            sequence.computed = cached_tokens;
            sequence.hashed_blocks = held;
            self.pool.touch(&hits);
            sequence.blocks = hits;
            let tokens = sequence.uncomputed().min(plan.budget);
            let decoding = sequence.is_decoding();
            let total = sequence.computed + tokens;
            self.extend(id, tokens, total.div_ceil(self.config.block_size) - held);
            plan.add(id, &self.sequences[&id], tokens, decoding);
            self.note_admission(id, cached_tokens, start);
        }
    }

    fn note_admission(&mut self, id: u64, cached_tokens: u32, start: Moment) {
        let block_size = self.config.block_size;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.cached_tokens.is_some() {
            self.push_event(start, id, EventKind::Resumed { cached_tokens });
            return;
        }
        sequence.cached_tokens = Some(cached_tokens);
        let counters = &mut self.counters;
        counters.scheduled_requests += 1;
        counters.queried_tokens += u64::from(sequence.prompt_tokens);
        counters.hit_tokens += u64::from(cached_tokens);
        counters.queried_blocks += u64::from(sequence.prompt_tokens / block_size);
        counters.hit_blocks += u64::from(cached_tokens / block_size);
        self.push_event(start, id, EventKind::Scheduled { cached_tokens });
    }

    /// Allocates `missing` blocks for the next `tokens` tokens and hashes the blocks that those
    /// tokens fill: at scheduling time, before anything is computed.
    fn extend(&mut self, id: u64, tokens: u32, missing: u32) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        self.pool.allocate(missing, &mut sequence.blocks);
        sequence.computed += tokens;
        let (from, to) = (sequence.hashed_blocks, sequence.computed / self.config.block_size);
        sequence.hashed_blocks = to;
        sequence.ensure_hashes(to);
        let full = from as usize..to as usize;
        let parent = full.start.checked_sub(1).map(|last| sequence.hashes[last]);
        self.pool.store(&sequence.blocks[full.clone()], &sequence.hashes[full], parent);
    }

    /// Takes the blocks of the request that was scheduled last and puts it first in the queue.
    /// Its blocks stay cached until others need them.
    fn preempt_youngest(&mut self, at: Moment) {
        let Some(id) = self.running.pop() else { return };
        if let Some(sequence) = self.sequences.get_mut(&id) {
            self.pool.release(&sequence.blocks);
            sequence.blocks.clear();
            sequence.hashed_blocks = 0;
            sequence.computed = 0;
        }
        self.waiting.push_front(id);
        self.counters.preemptions += 1;
        self.push_event(at, id, EventKind::Preempted);
    }

    /// Ends a step: every member whose tokens are all computed has one more.
    fn complete(&mut self, step: Step) {
        let at = step.ends_at;
        self.idle_since = at;
        let mut finished = false;
        for (id, serial) in step.members {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            if sequence.serial != serial || sequence.uncomputed() > 0 {
                continue;
            }
            let index = sequence.generated;
            let made = if self.config.decode { 1 } else { sequence.max_output_tokens };
            sequence.generated += made;
            let output_tokens = sequence.generated;
            let prompt_tokens = u64::from(sequence.prompt_tokens);
            let done = output_tokens == sequence.max_output_tokens;
            self.counters.generated_tokens += u64::from(made);
            if index == 0 {
                self.counters.prompt_tokens += prompt_tokens;
                self.push_event(at, id, EventKind::FirstToken);
                self.extend_at_once(id, made - 1);
            } else if !self.quiet {
                self.push_event(at, id, EventKind::Token { index });
            }
            if done {
                finished = true;
                self.finish(id);
                self.push_event(at, id, EventKind::Finished { output_tokens });
            }
        }
        if finished {
            let sequences = &self.sequences;
            self.running.retain(|id| sequences.contains_key(id));
        }
    }

    /// The KV of `tokens` output tokens is there at once, as far as blocks are free for it.
    fn extend_at_once(&mut self, id: u64, tokens: u32) {
        let (block_size, free) = (self.config.block_size, self.pool.free());
        let Some(sequence) = self.sequences.get(&id).filter(|_| tokens > 0) else { return };
        let held = sequence.blocks.len() as u32;
        let wanted = (sequence.computed + tokens).div_ceil(block_size) - held;
        let missing = wanted.min(free);
        let fitting = (held + missing) * block_size - sequence.computed;
        self.extend(id, tokens.min(fitting), missing);
    }

    fn finish(&mut self, id: u64) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.pool.release(&sequence.blocks);
            self.counters.finished_requests += 1;
        }
    }
}
