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
        let mut holders = copies::holders(found.iter().map(|found| found.matched_blocks));
        let [first, _, ..] = holders[..] else { return None };
        let (reading, _) = found[first].cache?;
        let is_read_alike = |place: &usize| found[*place].is_read_by(reading);
        holders.retain(is_read_alike);
        if holders.len() < 2 {
            return None;
        }
        let blocks = found[first].matched_blocks;
        let prefix = asked.key_at(reading, blocks)?;
        let count = u32::try_from(holders.len()).unwrap_or(u32::MAX);
        let named = holders.into_iter().map(|place| (place, state.ranks[eligible[place]].name));
        let keeper = copies::keeper(prefix.0, named)?;
        let mirror = asked.mirror_of(&state.mirrors, reading);
        let asks = mirror.index.asks_of(&mirror.matches);
        Some(Self { copies: Copies { blocks, asks, holders: count }, reading, keeper })
    }

    fn is_held(&self, found: &Found) -> bool {
        found.matched_blocks == self.copies.blocks && found.is_read_by(self.reading)
    }

    /// What there is, where what was found at this place is a further copy.
    #[inline]
    pub(super) fn further(&self, place: usize, found: &Found) -> Option<Copies> {
        (place != self.keeper && self.is_held(found)).then_some(self.copies)
    }
}
