//! How a request lies in blocks.

/// A prompt's length in blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measure {
    prompt: u64,
    block: u64,
}

impl Measure {
    pub(super) fn new(prompt_tokens: u32, block_tokens: u32) -> Self {
        Self { prompt: u64::from(prompt_tokens), block: u64::from(block_tokens.max(1)) }
    }

    /// Blocks of the prompt, a partial tail included.
    pub(super) fn prompt_blocks(&self) -> u32 {
        self.prompt.div_ceil(self.block) as u32
    }

    /// Blocks beyond the prompt's that `generated` output tokens occupy.
    pub(super) fn output_blocks(&self, generated: u32) -> u32 {
        (self.prompt + u64::from(generated)).div_ceil(self.block) as u32 - self.prompt_blocks()
    }

    /// Full blocks beyond the prompt's full ones that stay cached at the end. The last token was
    /// never fed back, so it has no KV.
    pub(super) fn cached_output_blocks(&self, generated: u32) -> u32 {
        let computed = self.prompt + u64::from(generated.saturating_sub(1));
        (computed / self.block - self.prompt / self.block) as u32
    }
}
