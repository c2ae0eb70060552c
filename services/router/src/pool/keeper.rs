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
        let holders = holders(found);
        let [first, _, ..] = holders[..] else { return None };
        let (reading, _) = found[first].cache?;
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
        let is_read_alike = found.cache.is_some_and(|(reading, _)| reading == self.reading);
        found.matched_blocks == self.copies.blocks && is_read_alike
    }

    /// What there is, where what was found at this place is a further copy.
    #[inline]
    pub(super) fn further(&self, place: usize, found: &Found) -> Option<Copies> {
        (place != self.keeper && self.is_held(found)).then_some(self.copies)
    }
}

/// Places of those with the longest match, read as the first of them is. One round over all, most
/// of which hold nothing.
fn holders(found: &[Found]) -> Vec<usize> {
    let (mut holders, mut longest, mut reading) = (Vec::new(), 1, 0);
    for (place, found) in found.iter().enumerate() {
        if found.matched_blocks < longest {
            continue;
        }
        let Some((of, _)) = found.cache else { continue };
        if found.matched_blocks > longest || holders.is_empty() {
            (longest, reading) = (found.matched_blocks, of);
            holders.clear();
        }
        if of == reading {
            holders.push(place);
        }
    }
    holders
}
