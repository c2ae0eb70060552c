//! Requests as a run replays them.

use std::sync::Arc;
use std::time::Duration;

use domain::block::mix;
use domain::{BlockKey, Moment};

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At a fixed time, whatever became of others.
    At(Moment),
    /// Some time after another request of the set has ended.
    After {
        /// Its place in the set; always an earlier one.
        parent: usize,
        /// The time between.
        gap: Duration,
    },
    /// When one of the run's callers is free, in the order of the set.
    WhenFree,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// When it is sent.
    pub start: Start,
    /// One key for each full block of the prompt, and after them, where a later prompt repeats
    /// them, of the output. The gateway is shown the prompt's alone.
    pub keys: Arc<[BlockKey]>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
}

impl Request {
    /// Full blocks of the prompt.
    pub fn prompt_blocks(&self, block_tokens: u32) -> u32 {
        (self.prompt_tokens / block_tokens).min(self.keys.len() as u32)
    }

    /// The keys of the prompt's full blocks.
    pub fn prompt_keys(&self, block_tokens: u32) -> &[BlockKey] {
        &self.keys[..self.prompt_blocks(block_tokens) as usize]
    }

    /// The keys, as far as there are any, of the blocks that the answer fills. Its last token is not
    /// computed: no other follows it.
    pub fn output_keys(&self, block_tokens: u32) -> &[BlockKey] {
        let computed = (self.prompt_tokens + self.output_tokens).saturating_sub(1);
        let prompt = self.prompt_blocks(block_tokens) as usize;
        let end = ((computed / block_tokens) as usize).min(self.keys.len());
        &self.keys[prompt..end.max(prompt)]
    }
}

/// Everything that is sent in one run.
#[derive(Clone, Debug)]
pub struct RequestSet {
    /// Tokens in a block.
    pub block_tokens: u32,
    /// The requests; those with [`Start::At`] in the order of their time.
    pub requests: Vec<Request>,
    /// How many of the [`Start::WhenFree`] requests are in flight at once.
    pub callers: usize,
}

impl RequestSet {
    /// Prompt tokens of all requests.
    pub fn prompt_tokens(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.prompt_tokens)).sum()
    }

    /// The share of full prompt blocks that one cache of unlimited size would find: all that a
    /// request before has had in its prompt or its answer. Of the requests from number `from` on.
    pub fn ceiling(&self, from: usize) -> f64 {
        let mut seen = std::collections::HashSet::new();
        let (mut all, mut hits) = (0_u64, 0_u64);
        for (number, request) in self.requests.iter().enumerate() {
            for key in request.prompt_keys(self.block_tokens) {
                let is_hit = !seen.insert(*key);
                if number >= from {
                    all += 1;
                    hits += u64::from(is_hit);
                }
            }
            seen.extend(request.output_keys(self.block_tokens));
        }
        if all == 0 { 0.0 } else { hits as f64 / all as f64 }
    }
}

/// The key of a block that follows the block `previous`: equal chains have equal keys.
pub(crate) fn chained(previous: u64, content: u64) -> u64 {
    mix(previous ^ mix(content.wrapping_add(1)))
}

/// A chain of keys that grows by runs of blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    keys: Vec<BlockKey>,
}

impl Chain {
    /// Adds the blocks of a piece of content, named by `content`.
    pub(crate) fn push(&mut self, content: u64, blocks: u32) {
        for block in 0..u64::from(blocks) {
            self.push_one(mix(content).wrapping_add(block));
        }
    }

    /// Adds one block.
    pub(crate) fn push_one(&mut self, content: u64) {
        let previous = self.keys.last().map_or(0, |key| key.0);
        self.keys.push(BlockKey(chained(previous, content)));
    }

    /// The keys so far.
    pub(crate) fn keys(&self) -> Arc<[BlockKey]> {
        self.keys.as_slice().into()
    }
}
