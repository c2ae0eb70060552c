//! How a request lies in blocks, in either unit.

use domain::{BlockUnit, Prompt};

/// Another's count of a prompt's tokens, by ours: beyond this it counts something else, such as
/// the several prompts of one request.
const SAME_PROMPT: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// A prompt's length in the unit of one KV index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measure {
    /// Tokens or bytes of the prompt.
    prompt: u64,
    /// Tokens or bytes in a block.
    block: u64,
    /// Tokens or bytes for one token.
    per_token: f64,
    is_text: bool,
}

impl Measure {
    /// `bytes_per_token` counts for text blocks only.
    pub(crate) fn new(unit: BlockUnit, prompt: &Prompt, bytes_per_token: f64) -> Self {
        let (length, per_token, is_text) = match unit {
            BlockUnit::Tokens(_) => (prompt.tokens, 1.0, false),
            BlockUnit::Bytes(_) => (prompt.text_bytes, bytes_per_token, true),
        };
        Self { prompt: u64::from(length), block: u64::from(unit.size().max(1)), per_token, is_text }
    }

    /// Blocks that the prompt occupies, its partial tail included.
    pub(crate) fn prompt_blocks(&self) -> u32 {
        clamp(self.prompt.div_ceil(self.block))
    }

    /// Blocks beyond the prompt's that `generated` output tokens occupy.
    pub(crate) fn output_blocks(&self, generated: u32) -> u32 {
        let all = (self.prompt + self.units(generated)).div_ceil(self.block);
        clamp(all) - self.prompt_blocks()
    }

    /// Full blocks beyond the first `keyed` ones that stay cached when the request has ended.
    /// The last token sampled was never fed back, so its KV was never computed.
    pub(crate) fn cached_output_blocks(&self, generated: u32, keyed: u32) -> u32 {
        let computed = self.prompt + self.units(generated.saturating_sub(1));
        clamp(computed / self.block).saturating_sub(keyed)
    }

    /// Full blocks of the prompt.
    pub(crate) fn full_blocks(&self) -> u32 {
        clamp(self.prompt / self.block)
    }

    /// Full blocks in a leading share of the prompt: `part` of its `whole` tokens as another
    /// counted them.
    pub(crate) fn blocks_in(&self, part: u64, whole: u64) -> u32 {
        let units =
            u128::from(part.min(whole)) * u128::from(self.prompt) / u128::from(whole.max(1));
        u32::try_from(units / u128::from(self.block)).unwrap_or(u32::MAX)
    }

    /// Whether a count of the whole prompt's tokens can be of the same prompt. At text level our
    /// own is only an estimate.
    pub(crate) fn agrees_with(&self, tokens: u64) -> bool {
        let ours = (self.prompt as f64 / self.per_token).max(1.0);
        tokens > 0 && SAME_PROMPT.contains(&(tokens as f64 / ours))
    }

    /// How far a count of cached blocks may be off. The share of the text is not that of the
    /// tokens.
    pub(crate) fn slack(&self) -> u32 {
        if self.is_text { 2 + self.full_blocks() / 16 } else { 1 }
    }

    /// Tokens in `blocks` blocks.
    pub(crate) fn tokens(&self, blocks: u32) -> u32 {
        (f64::from(blocks) * self.block_tokens()) as u32
    }

    /// Tokens in a block.
    pub(crate) fn block_tokens(&self) -> f64 {
        self.block as f64 / self.per_token
    }

    fn units(&self, tokens: u32) -> u64 {
        (f64::from(tokens) * self.per_token) as u64
    }
}

/// Tokens of the prompt that the engine will find, when its leading `matched` index blocks are
/// resident. An engine always computes at least the last token itself and caches whole blocks of
/// its own, of `engine_block` tokens; at text level there is no finer measure than the share of
/// the text.
pub(crate) fn cached_tokens(
    unit: BlockUnit,
    prompt: &Prompt,
    matched: u32,
    engine_block: u32,
) -> u32 {
    let most = prompt.tokens.saturating_sub(1);
    let covered = u64::from(matched) * u64::from(unit.size());
    match unit {
        BlockUnit::Tokens(_) => {
            let block = engine_block.max(1);
            clamp(covered).min(most / block * block)
        }
        BlockUnit::Bytes(_) => {
            let text = u64::from(prompt.text_bytes).max(1);
            clamp(u64::from(prompt.tokens) * covered.min(text) / text).min(most)
        }
    }
}

fn clamp(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(tokens: u32, text_bytes: u32) -> Prompt {
        Prompt { tokens, text_bytes, keys: Vec::new() }
    }

    const SIXTEEN: BlockUnit = BlockUnit::Tokens(16);

    #[test]
    fn a_full_hit_leaves_the_last_block_to_compute() {
        assert_eq!(cached_tokens(SIXTEEN, &prompt(1024, 0), 64, 16), 1008);
        assert_eq!(cached_tokens(SIXTEEN, &prompt(1025, 0), 64, 16), 1024);
        assert_eq!(cached_tokens(SIXTEEN, &prompt(1025, 0), 3, 16), 48);
        assert_eq!(cached_tokens(SIXTEEN, &prompt(0, 0), 0, 16), 0);
    }

    #[test]
    fn a_text_match_stands_for_its_share_of_the_tokens() {
        let text = BlockUnit::TEXT;
        assert_eq!(cached_tokens(text, &prompt(100, 640), 5, 0), 50);
        assert_eq!(cached_tokens(text, &prompt(100, 640), 10, 0), 99);
        assert_eq!(cached_tokens(text, &prompt(100, 0), 10, 0), 99);
    }

    #[test]
    fn output_fills_the_partial_tail_first() {
        let m = Measure::new(SIXTEEN, &prompt(40, 0), 4.0);
        assert_eq!(m.prompt_blocks(), 3);
        assert_eq!(m.output_blocks(8), 0);
        assert_eq!(m.output_blocks(9), 1);
        // 40 + 24 tokens make four blocks, but the last token's KV is not there.
        assert_eq!(m.cached_output_blocks(24, 2), 1);
        assert_eq!(m.cached_output_blocks(25, 2), 2);
        assert_eq!(m.cached_output_blocks(0, 2), 0);
    }

    #[test]
    fn text_blocks_count_output_by_its_bytes() {
        let m = Measure::new(BlockUnit::TEXT, &prompt(10, 100), 4.0);
        assert_eq!(m.prompt_blocks(), 2);
        assert_eq!(m.output_blocks(7), 0);
        assert_eq!(m.output_blocks(8), 1);
        assert_eq!(m.tokens(2), 32);
    }
}
