//! What one modelled engine is like.

use domain::Moment;

use crate::Error;

/// The longest fixed cost of a step that is accepted: anything above is a unit mistake.
const MAX_STEP_SECONDS: f64 = 3600.0;

/// Size and speed of an engine.
///
/// A step takes
/// `prefill_floor_seconds + prefill tokens / prefill_tokens_per_second` if it prefills anything,
/// plus `itl_base_seconds + itl_per_running_seconds × decoding requests` if it decodes anything.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Physical KV blocks; one of them is never handed out.
    pub blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Uncached prompt tokens computed in a second.
    pub prefill_tokens_per_second: f64,
    /// Fixed cost of a step that prefills.
    pub prefill_floor_seconds: f64,
    /// Tokens that one step may compute, prefill and decode together.
    pub token_budget: u32,
    /// Fixed cost of a step that decodes: the inter-token latency of a lone request.
    pub itl_base_seconds: f64,
    /// What each decoding request adds to a step.
    pub itl_per_running_seconds: f64,
    /// Requests that run at once; the others wait.
    pub max_running: u32,
    /// Whether output takes time. Without, a request ends with its first token; the blocks of its
    /// whole answer are in the cache then, as far as the others leave room.
    pub decode: bool,
}

impl Default for EngineConfig {
    /// 600 blocks of 16 tokens, one millisecond of prefill per block, two milliseconds per output
    /// token: small enough that documents have to be evicted, fast enough for a laptop's patience.
    /// Budget and concurrency are vLLM's usual ones.
    fn default() -> Self {
        Self {
            blocks: 600,
            block_size: 16,
            prefill_tokens_per_second: 16_000.0,
            prefill_floor_seconds: 0.0,
            token_budget: 8192,
            itl_base_seconds: 0.002,
            itl_per_running_seconds: 0.0,
            max_running: 256,
            decode: true,
        }
    }
}

impl EngineConfig {
    /// Blocks that can be handed out.
    pub fn usable_blocks(&self) -> u32 {
        self.blocks.saturating_sub(1)
    }

    /// Prompt and output tokens of the longest request that can run alone.
    pub fn max_tokens(&self) -> u32 {
        self.usable_blocks().saturating_mul(self.block_size)
    }

    /// # Errors
    /// [`Error::Config`] names the first field that makes no sense.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let seconds = |value: f64| (0.0..=MAX_STEP_SECONDS).contains(&value);
        let rules = [
            (self.blocks >= 2, "blocks", "at least 2, as one block is never handed out"),
            (self.block_size >= 1, "block_size", "at least 1 token"),
            (
                self.prefill_tokens_per_second.is_finite() && self.prefill_tokens_per_second >= 1.0,
                "prefill_tokens_per_second",
                "at least 1",
            ),
            (seconds(self.prefill_floor_seconds), "prefill_floor_seconds", "0 to 3600"),
            (self.token_budget >= 1, "token_budget", "at least 1 token"),
            (seconds(self.itl_base_seconds), "itl_base_seconds", "0 to 3600"),
            (seconds(self.itl_per_running_seconds), "itl_per_running_seconds", "0 to 3600"),
            (self.max_running >= 1, "max_running", "at least 1 request"),
            (
                u64::from(self.blocks) * u64::from(self.block_size) <= u64::from(u32::MAX / 2),
                "blocks",
                "at most 2^31 tokens in all",
            ),
        ];
        Error::first_broken(rules)
    }

    /// The end of a step that begins at `start`.
    pub(crate) fn step_end(&self, start: Moment, prefill_tokens: u64, decoding: u64) -> Moment {
        let mut seconds = 0.0;
        if prefill_tokens > 0 {
            seconds +=
                self.prefill_floor_seconds + prefill_tokens as f64 / self.prefill_tokens_per_second;
        }
        if decoding > 0 {
            seconds += self.itl_base_seconds + self.itl_per_running_seconds * decoding as f64;
        }
        // Saturating casts: a step that is too long for the clock ends at its end.
        Moment::from_nanos(start.as_nanos().saturating_add((seconds * 1e9).round() as u64))
    }
}
