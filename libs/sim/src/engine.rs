//! A vLLM engine in virtual time.
//!
//! The model keeps what decides cache hits and first-token times exactly as vLLM does: physical
//! blocks with one free queue (`pool`), hashes given at scheduling time chunk by chunk, prefill in
//! chunks under a token budget, decode batched with it, output blocks hashed as they fill, and
//! preemption of the request that was scheduled last. What a step costs is a linear formula
//! ([`EngineConfig`]). The caller moves time: [`EngineModel::advance`] plays every step up to
//! `now`, however late it is called, so a late caller never bends the timeline.
//!
//! Differences to a real engine: no speculative decoding, one KV cache group, every request runs
//! to its output limit, a cancelled request's blocks are free at once instead of after the step.

mod config;
mod pool;
mod schedule;
mod sequence;

use std::collections::{HashMap, VecDeque};

use domain::Moment;

use crate::Error;
pub use config::EngineConfig;
use pool::BlockPool;
pub use pool::CacheEvent;
use schedule::Step;
use sequence::Sequence;

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// When, in the engine's time.
    pub at: Moment,
    /// The request.
    pub id: u64,
    /// What.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Its prefill begins, for the first time.
    Scheduled {
        /// Prompt tokens found in the cache.
        cached_tokens: u32,
    },
    /// It runs again after a preemption.
    Resumed {
        /// Tokens, prompt and output, found in the cache.
        cached_tokens: u32,
    },
    /// Its first output token exists.
    FirstToken,
    /// A further output token exists.
    Token {
        /// Its position in the output; the first token has position 0.
        index: u32,
    },
    /// It has all its output tokens and left the engine.
    Finished {
        /// How many they were.
        output_tokens: u32,
    },
    /// It lost its blocks to requests that came before it and waits again.
    Preempted,
}

/// Totals since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were scheduled at least once.
    pub scheduled_requests: u64,
    /// Requests that ran to their end.
    pub finished_requests: u64,
    /// Requests that were cancelled.
    pub cancelled_requests: u64,
    /// Prompt tokens looked up in the cache, at first scheduling.
    pub queried_tokens: u64,
    /// Those of them that were found.
    pub hit_tokens: u64,
    /// Full prompt blocks looked up, at first scheduling.
    pub queried_blocks: u64,
    /// Those of them that were found.
    pub hit_blocks: u64,
    /// Prompt tokens of requests whose prefill is done.
    pub prompt_tokens: u64,
    /// Tokens that prefill really computed, recomputation after preemption included.
    pub prefilled_tokens: u64,
    /// Output tokens.
    pub generated_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
}

/// One engine.
#[derive(Debug)]
pub struct EngineModel {
    config: EngineConfig,
    pool: BlockPool,
    sequences: HashMap<u64, Sequence>,
    /// In the order they were scheduled; the last one is preempted first.
    running: Vec<u64>,
    waiting: VecDeque<u64>,
    step: Option<Step>,
    /// No step may begin before this: the end of the last one, or the last arrival.
    idle_since: Moment,
    next_serial: u64,
    counters: Counters,
    pending: Vec<EngineEvent>,
    /// Leaves out [`EventKind::Token`].
    quiet: bool,
}

impl EngineModel {
    /// An idle engine with an empty cache.
    ///
    /// # Errors
    /// [`Error::Config`] if a field makes no sense.
    pub fn new(config: EngineConfig) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            pool: BlockPool::new(config.blocks),
            config,
            sequences: HashMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            step: None,
            idle_since: Moment::ZERO,
            next_serial: 0,
            counters: Counters::default(),
            pending: Vec::new(),
            quiet: false,
        })
    }

    /// Size and speed.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Queues a request. It is scheduled by the next step that begins; requests submitted at one
    /// moment can share that step.
    ///
    /// `block_hashes` holds a chain hash (one that names the whole prefix) for each full block of
    /// the prompt and may go on with those of the output to come; each becomes visible in the
    /// cache when its block is scheduled. Blocks beyond the list are cached but match nothing.
    ///
    /// # Errors
    /// [`Error::DuplicateRequest`], [`Error::EmptyRequest`], or [`Error::TooLong`] if prompt and
    /// output do not fit the empty cache.
    pub fn submit(
        &mut self,
        id: u64,
        block_hashes: Vec<u64>,
        prompt_tokens: u32,
        max_output_tokens: u32,
        now: Moment,
    ) -> Result<(), Error> {
        if prompt_tokens == 0 || max_output_tokens == 0 {
            return Err(Error::EmptyRequest);
        }
        // The last output token is never fed back, so it needs no KV.
        let kv_tokens = u64::from(prompt_tokens) + u64::from(max_output_tokens) - 1;
        let needed = kv_tokens.div_ceil(u64::from(self.config.block_size));
        let needed_blocks = u32::try_from(needed).unwrap_or(u32::MAX);
        let usable_blocks = self.pool.usable();
        if needed_blocks > usable_blocks {
            return Err(Error::TooLong { needed_blocks, usable_blocks });
        }
        if self.sequences.contains_key(&id) {
            return Err(Error::DuplicateRequest(id));
        }
        self.play(now, false);
        if self.step.is_none() && self.sequences.is_empty() {
            self.idle_since = self.idle_since.max(now);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let sequence = Sequence::new(serial, block_hashes, prompt_tokens, max_output_tokens);
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
        Ok(())
    }

    /// Takes a request out, wherever it is; its blocks are free at once. Unknown ids are ignored.
    pub fn cancel(&mut self, id: u64, now: Moment) {
        self.play(now, false);
        let Some(sequence) = self.sequences.remove(&id) else { return };
        self.pool.release(&sequence.blocks);
        self.running.retain(|&other| other != id);
        self.waiting.retain(|&other| other != id);
        self.counters.cancelled_requests += 1;
    }

    /// Plays everything up to and including `now`, and tells what happened since the last call.
    pub fn advance(&mut self, now: Moment) -> Vec<EngineEvent> {
        self.play(now, true);
        std::mem::take(&mut self.pending)
    }

    /// When [`advance`](Self::advance) has something to do; `None` while the engine is idle.
    pub fn next_event_at(&self) -> Option<Moment> {
        match &self.step {
            Some(step) => Some(step.ends_at),
            None if self.sequences.is_empty() => None,
            None => Some(self.idle_since),
        }
    }

    /// Requests that hold blocks.
    pub fn running(&self) -> u32 {
        self.running.len() as u32
    }

    /// Requests that wait to be scheduled, preempted ones included.
    pub fn waiting(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// The share of usable blocks that live requests hold, 0 to 1. Cached blocks that nobody
    /// holds do not count: it is 0 when the engine is idle, however full the cache.
    pub fn kv_usage(&self) -> f64 {
        1.0 - f64::from(self.pool.free()) / f64::from(self.pool.usable())
    }

    /// Different block hashes in the cache, held or not.
    pub fn cached_blocks(&self) -> usize {
        self.pool.cached_hashes()
    }

    /// Totals so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Tells no [`EventKind::Token`] from now on; [`output_tokens`](Self::output_tokens) has the
    /// counts.
    pub fn omit_token_events(&mut self) {
        self.quiet = true;
    }

    /// The requests that have output so far, and how many tokens of it, in no special order.
    pub fn output_tokens(&self) -> impl Iterator<Item = (u64, u32)> {
        let started = self.sequences.iter().filter(|(_, sequence)| sequence.generated > 0);
        started.map(|(&id, sequence)| (id, sequence.generated))
    }

    /// How many leading blocks of a prompt with these hashes are in the cache now.
    pub fn cached_prefix_blocks(&self, hashes: impl IntoIterator<Item = u64>) -> u32 {
        self.pool.prefix_len(hashes)
    }

    /// Drops the whole cache. Refused (`false`) while a request holds blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// Starts the log of changes to the cache's content. It grows until it is taken.
    pub fn record_cache_events(&mut self) {
        self.pool.record_events();
    }

    /// The changes of the cache's content since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.pool.take_events()
    }

    fn push_event(&mut self, at: Moment, id: u64, kind: EventKind) {
        self.pending.push(EngineEvent { at, id, kind });
    }
}

#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;
