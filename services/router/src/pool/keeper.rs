//! Which of several ranks that hold a prompt's prefix keeps it, and what the others' copies cost.

use scheduling::copies;

use super::State;
use super::prospect::{Asked, Found};

/// Of a prompt that several eligible ranks hold equally much of.
pub(super) struct Copies {
    /// The longest match, and by which reading of the prompt.
    blocks: u32,
    reading: u32,
    /// Place of the rank that keeps it, among the eligible ones.
    keeper: usize,
    /// How often it was asked for lately.
    asks: f64,
}

impl Copies {
    /// `None` where at most one rank has the longest match.
    pub(super) fn of(
        state: &State,
        asked: &Asked<'_>,
        (eligible, found): (&[usize], &[Found]),
    ) -> Option<Self> {
        let longest = found.iter().max_by_key(|found| found.matched_blocks)?;
        let (reading, _) = longest.cache?;
        let mut copies = Self { blocks: longest.matched_blocks, reading, keeper: 0, asks: 0.0 };
        let prefix = asked.key_at(reading, copies.blocks)?;
        let holders = || (0..found.len()).filter(|place| copies.is_one(&found[*place]));
        holders().nth(1)?;
        let named = holders().map(|place| (place, state.ranks[eligible[place]].name));
        copies.keeper = copies::keeper(prefix.0, named)?;
        let mirror = asked.mirror_of(&state.mirrors, reading);
        copies.asks = mirror.index.asks_of(&mirror.matches);
        Some(copies)
    }

    fn is_one(&self, found: &Found) -> bool {
        let is_read_alike = found.cache.is_some_and(|(reading, _)| reading == self.reading);
        found.matched_blocks == self.blocks && is_read_alike
    }

    /// Whether what was found at this place is a further copy: its blocks, and how often they
    /// were asked for.
    #[inline]
    pub(super) fn further(&self, place: usize, found: &Found) -> Option<(u32, f64)> {
        (place != self.keeper && self.is_one(found)).then_some((self.blocks, self.asks))
    }
}
