//! One request inside the engine.

use crate::request::chained;

/// A request's tokens, hashes and blocks.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Distinguishes two requests that used the same id one after the other.
    pub(crate) serial: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) max_output_tokens: u32,
    /// Output tokens so far.
    pub(crate) generated: u32,
    /// Tokens whose KV exists or is being computed by the step in flight.
    pub(crate) computed: u32,
    /// Prompt tokens found in the cache when the request was first scheduled.
    pub(crate) cached_tokens: Option<u32>,
    /// The blocks it holds, in prompt order.
    pub(crate) blocks: Vec<u32>,
    /// How many of `blocks` carry their hash.
    pub(crate) hashed_blocks: u32,
    /// Chain hashes of its first blocks, as far as they were needed so far.
    pub(crate) hashes: Vec<u64>,
}

impl Sequence {
    pub(crate) fn new(
        serial: u64,
        hashes: Vec<u64>,
        prompt_tokens: u32,
        max_output_tokens: u32,
    ) -> Self {
        Self {
            serial,
            prompt_tokens,
            max_output_tokens,
            generated: 0,
            computed: 0,
            cached_tokens: None,
            blocks: Vec::new(),
            hashed_blocks: 0,
            hashes,
        }
    }

    /// Prompt and output so far. The last one has no KV yet.
    pub(crate) fn tokens(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    /// Tokens that must be computed before the next one can be generated.
    pub(crate) fn uncomputed(&self) -> u32 {
        self.tokens() - self.computed
    }

    /// Whether it only waits for its next output token.
    pub(crate) fn is_decoding(&self) -> bool {
        self.generated > 0 && self.uncomputed() == 1
    }

    /// Makes sure that the hashes of its first `count` blocks exist. Output blocks that the
    /// submitter named no hash for get one of their own, which no other request can match.
    pub(crate) fn ensure_hashes(&mut self, count: u32) {
        for index in self.hashes.len() as u64..u64::from(count) {
            let previous = self.hashes.last().copied().unwrap_or_default();
            self.hashes.push(chained(previous, chained(self.serial, index)));
        }
    }
}
