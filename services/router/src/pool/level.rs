//! At which level it is known what a rank's cache holds.

use domain::{BlockUnit, EvidenceLevel, Prompt};

use super::State;

/// Prompts by which those of one kind must outnumber the other before the pool is said to get them:
/// one that could not be rendered says nothing of the others.
const MAJORITY: u8 = 64;

/// Whether prompts of a pool come with tokens. They do not where no edge has the model's folder.
#[derive(Debug, Default)]
pub(super) struct Rendering {
    /// Prompts with tokens over those without, within bounds; the first prompt tells at once.
    balance: Option<u8>,
    is_text: bool,
}

impl Rendering {
    /// Takes note of a prompt. Whether that changes what is said of the pool.
    fn note(&mut self, has_tokens: bool) -> bool {
        let balance = match self.balance {
            None if has_tokens => MAJORITY,
            None => 0,
            Some(balance) if has_tokens => (balance + 1).min(MAJORITY),
            Some(balance) => balance.saturating_sub(1),
        };
        let is_text = match balance {
            0 => true,
            MAJORITY => false,
            _ => self.is_text,
        };
        self.balance = Some(balance);
        std::mem::replace(&mut self.is_text, is_text) != is_text
    }
}

impl State {
    /// Takes note of whether a prompt came with tokens, and of what that means for all ranks.
    pub(super) fn note_rendering(&mut self, prompt: &Prompt) {
        if prompt.keys.is_empty() {
            return;
        }
        let has_tokens = prompt.keys.iter().any(|list| matches!(list.unit, BlockUnit::Tokens(_)));
        if self.rendering.note(has_tokens) {
            (0..self.ranks.len()).for_each(|at| self.relevel(at));
        }
    }

    /// Shows the level that decisions about a rank have.
    pub(super) fn relevel(&mut self, at: usize) {
        let profile = self.ranks[at].profile;
        let home = self.home_of(at).and_then(|mirror| Some((mirror, self.ranks.slot(at, mirror)?)));
        let level = match home {
            _ if profile.caches && self.rendering.is_text => EvidenceLevel::Text,
            Some((mirror, slot)) => self.mirrors[mirror].level(slot, profile.level()),
            None => profile.level(),
        };
        self.set_level(at, level);
    }

    /// A change of level is told once, both ways.
    fn set_level(&mut self, at: usize, level: EvidenceLevel) {
        if self.ranks[at].level == level {
            return;
        }
        let rank = &mut self.ranks[at];
        tracing::info!(
            model = %self.model, backend.id = %rank.id.backend, rank = rank.id.rank,
            from = rank.level.as_str(), to = level.as_str(), "evidence level changes",
        );
        rank.level = level;
        rank.metrics.evidence(level);
        self.metrics.evidence_changed(level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_prompt_tells_and_later_ones_by_their_majority() {
        let mut rendering = Rendering::default();
        assert!(rendering.note(false) && rendering.is_text);
        for _ in 0..10 {
            assert!(!rendering.note(true), "some prompts are given as tokens");
            assert!(!rendering.note(false));
        }
        let changes = (0..MAJORITY).filter(|_| rendering.note(true)).count();
        assert_eq!((changes, rendering.is_text), (1, false));
        assert!(!rendering.note(false), "one could not be rendered");
        let mut known = Rendering::default();
        assert!(!known.note(true) && !known.is_text);
    }
}
