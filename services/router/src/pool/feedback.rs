//! What engines found in their caches, and what that makes of the mirrors.

use domain::{EvidenceLevel, Usage};
use kv_index::Slot;
use kv_index::feedback::{Correction, Heard, MirrorTrust};

use super::measure::Measure;
use super::rank::RankKey;
use super::{Mirror, State};
use crate::metrics::Purge;

/// What a usage says of the cache, of a prompt whose first `keyed` blocks have keys.
pub(super) fn heard(measure: &Measure, keyed: u32, usage: Option<Usage>) -> Heard {
    let Some(usage) = usage else { return Heard::Nothing };
    // Several prompts in one request are counted together; what has no keys is not compared.
    if keyed == 0 || keyed < measure.full_blocks() || !measure.agrees_with(usage.prompt_tokens) {
        return Heard::Nothing;
    }
    match usage.cached_tokens {
        None => Heard::Silence,
        Some(cached) => Heard::Found {
            blocks: measure.blocks_in(cached, usage.prompt_tokens),
            slack: measure.slack(),
        },
    }
}

impl Mirror {
    /// The level at which the content of a slot's rank is known; `best` is what its profile allows
    /// for.
    pub(super) fn level(&self, slot: Slot, best: EvidenceLevel) -> EvidenceLevel {
        if best == EvidenceLevel::Text {
            return best;
        }
        match self.feedback.mirror_trust(slot) {
            MirrorTrust::Unreported => best,
            MirrorTrust::Confirmed => EvidenceLevel::Feedback,
            MirrorTrust::Distrusted => EvidenceLevel::Text,
        }
    }
}

impl State {
    /// Tells of what a report changed.
    pub(super) fn corrected(&mut self, key: RankKey, number: usize, correction: &Correction) {
        let Some(at) = self.ranks.position(key) else { return };
        let rank = &self.ranks[at];
        let Some(slot) = rank.slot(number) else { return };
        let feedback = &self.mirrors[number].feedback;
        if correction.compared.is_some() {
            rank.metrics.belief_gap.set(feedback.gap(slot));
        }
        if correction.purged_blocks > 0 {
            rank.metrics.purged(Purge::Prefix);
        }
        if correction.purged_rank {
            rank.metrics.purged(Purge::Rank);
            tracing::warn!(
                model = %self.model, backend.id = %rank.id.backend, rank = rank.id.rank,
                "the engine finds nothing of what its cache should hold: taken to be empty",
            );
        }
        if let Some(blocks) = correction.capacity {
            rank.metrics.capacity_corrections.inc();
            tracing::info!(
                model = %self.model, backend.id = %rank.id.backend, rank = rank.id.rank,
                told_blocks = feedback.told_blocks(slot), blocks,
                "the modelled capacity follows what the engine finds",
            );
        }
        self.relevel(at);
    }
}

#[cfg(test)]
mod tests {
    use domain::{BlockUnit, Prompt};

    use super::*;

    fn usage(prompt_tokens: u64, cached_tokens: Option<u64>) -> Option<Usage> {
        Some(Usage { prompt_tokens, completion_tokens: 1, cached_tokens })
    }

    fn measure(unit: BlockUnit, tokens: u32, text_bytes: u32) -> Measure {
        Measure::new(unit, &Prompt { tokens, text_bytes, keys: Vec::new() }, 4.0)
    }

    #[test]
    fn cached_tokens_are_compared_in_whole_blocks() {
        let prompt = measure(BlockUnit::Tokens(16), 200, 0);
        let found = |blocks| Heard::Found { blocks, slack: 1 };
        assert_eq!(heard(&prompt, 12, usage(200, Some(192))), found(12));
        assert_eq!(heard(&prompt, 12, usage(200, Some(100))), found(6));
        assert_eq!(heard(&prompt, 12, usage(200, Some(0))), found(0));
        assert_eq!(heard(&prompt, 12, usage(200, None)), Heard::Silence);
        assert_eq!(heard(&prompt, 12, None), Heard::Nothing);
    }

    #[test]
    fn text_is_compared_by_its_share_of_the_prompt() {
        let prompt = measure(BlockUnit::TEXT, 150, 640);
        let found = Heard::Found { blocks: 5, slack: 2 };
        assert_eq!(heard(&prompt, 10, usage(120, Some(60))), found);
    }

    #[test]
    fn what_counts_more_than_the_keyed_prompt_is_not_compared() {
        let prompt = measure(BlockUnit::Tokens(16), 200, 0);
        assert_eq!(heard(&prompt, 5, usage(200, Some(80))), Heard::Nothing);
        assert_eq!(heard(&prompt, 12, usage(900, Some(80))), Heard::Nothing);
        assert_eq!(heard(&measure(BlockUnit::TEXT, 2, 8), 0, usage(2, None)), Heard::Nothing);
    }
}
