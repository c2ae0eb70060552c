//! Which of several ranks that hold a prompt's prefix keeps it, and what the others' copies cost.

use scheduling::copies::{self, Copies};

use super::State;
use super::prospect::{Asked, Found};

/// The prefix of a prompt that several eligible ranks hold, as far as any does.
pub(super) struct Kept {
    copies: Copies,
    /// By which reading of the prompt.
    reading: u32,
    /// Place of the rank that keeps it, among the eligible ones.
    keeper: usize,
}

impl Kept {
    /// `None` where at most one rank has the longest match.
    pub(super) fn of(
        state: &State,
        asked: &Asked<'_>,
        (eligible, found): (&[usize], &[Found]),
    ) -> Option<Self> {
        let longest = found.iter().max_by_key(|found| found.matched_blocks)?;
        let (reading, _) = longest.cache?;
        let copies = Copies { blocks: longest.matched_blocks, asks: 0.0, holders: 0 };
        let mut kept = Self { copies, reading, keeper: 0 };
        let prefix = asked.key_at(reading, copies.blocks)?;
        let holders = || (0..found.len()).filter(|place| kept.is_held(&found[*place]));
        holders().nth(1)?;
        let holders: Vec<usize> = holders().collect();
        kept.copies.holders = u32::try_from(holders.len()).unwrap_or(u32::MAX);
        let named = holders.into_iter().map(|place| (place, state.ranks[eligible[place]].name));
        kept.keeper = copies::keeper(prefix.0, named)?;
        let mirror = asked.mirror_of(&state.mirrors, reading);
        kept.copies.asks = mirror.index.asks_of(&mirror.matches);
        Some(kept)
    }

    fn is_held(&self, found: &Found) -> bool {
        let is_read_alike = found.cache.is_some_and(|(reading, _)| reading == self.reading);
        found.matched_blocks == self.copies.blocks && is_read_alike
    }

    /// What there is, where what was found at this place is a further copy.
    #[inline]
    pub(super) fn further(&self, place: usize, found: &Found) -> Option<Copies> {
        (place != self.keeper && self.is_held(found)).then_some(self.copies)
    }
}
