//! What the next allocations of a rank would evict.
//!
//! A choice wants to know it of every rank, and most ranks have not changed since the last one.
//! So a rank keeps the sums over the front of its free order, and they are made anew only when
//! they are wanted and the order has changed in another way than by being eaten from the front.

use std::ops::Range;

use crate::asks::AskClock;
use crate::index::KvIndex;
use crate::node::{Place, Target};
use crate::rank::{ExtraKind, Rank};
use crate::types::Slot;

/// Runs at the front of a free order that are looked at, at most. They hold more than all but the longest
/// prompts need; beyond them, blocks are taken to be like these.
const RUNS: usize = STRETCH * STRETCHES;

/// Runs that are looked through at once.
const STRETCH: usize = 8;
const STRETCHES: usize = 4;

/// Sums over the front of one rank's free order. They lie in the rank itself, the ones of the
/// first runs together: a choice reads those of every rank.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Outlook {
    /// Blocks that were evicted since.
    eaten: u64,
    at: AskClock,
    /// Runs that were looked at.
    known_runs: u32,
    /// Whether they are all runs that there are.
    is_whole: bool,
    is_known: bool,
    stretches: [Stretch; STRETCHES],
}

/// Runs of the order, one after the other. A choice reads some of every rank: there is nothing to
/// divide by.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Stretch {
    /// Blocks up to each run's end; a rank has fewer than fit. After the last run that was looked
    /// at, more than any rank has.
    ends: [u32; STRETCH],
    /// How often each of a run's blocks was asked for.
    each: [f32; STRETCH],
    /// Asks of all blocks up to each run's end.
    asks: [f64; STRETCH],
}

impl Default for Stretch {
    fn default() -> Self {
        Self { ends: [u32::MAX; STRETCH], each: [0.0; STRETCH], asks: [0.0; STRETCH] }
    }
}

impl Stretch {
    /// How many of its runs end before so many blocks. It looks at all of them: that takes no
    /// jump, and where a prompt ends nothing foretells.
    #[inline]
    fn before(&self, blocks: u32) -> usize {
        self.ends.iter().map(|end| u32::from(*end < blocks)).sum::<u32>() as usize
    }
}

impl Outlook {
    /// The order changed, in a place that may be near the front.
    pub(crate) fn forget(&mut self) {
        self.is_known = false;
    }

    /// Something was added to the order's back.
    pub(crate) fn add_behind(&mut self) {
        self.is_known &= !self.is_whole;
    }

    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// So many blocks were evicted, and nothing else has changed since it `was_known`.
    pub(crate) fn eat(&mut self, blocks: u64, was_known: bool) {
        self.eaten += blocks;
        self.is_known = was_known && (self.is_whole || self.eaten <= self.reach() / 2);
    }

    /// Whether it tells of so many blocks as well as it ever can.
    #[inline]
    fn covers(&self, blocks: u64) -> bool {
        let is_complete = self.is_whole || self.known_runs as usize == RUNS;
        self.is_known && (is_complete || self.reach() >= blocks + self.eaten)
    }

    /// The blocks of all runs that were looked at, and their asks.
    #[inline]
    fn whole(&self) -> (u64, f64) {
        let Some(last) = (self.known_runs as usize).checked_sub(1) else { return (0, 0.0) };
        let stretch = &self.stretches[last / STRETCH];
        (u64::from(stretch.ends[last % STRETCH]), stretch.asks[last % STRETCH])
    }

    /// The blocks of all runs that were looked at.
    #[inline]
    fn reach(&self) -> u64 {
        self.whole().0
    }

    #[cfg(test)]
    pub(crate) fn reaches(&self, blocks: u64) -> bool {
        self.is_whole || self.reach() >= blocks + self.eaten
    }

    /// The asks of these blocks of the order in sum, as of when the outlook was made.
    #[inline]
    fn asks(&self, blocks: Range<u64>) -> f64 {
        self.up_to(blocks.end + self.eaten) - self.up_to(blocks.start + self.eaten)
    }

    /// Asks of the leading blocks of the order as it was.
    #[inline(always)]
    fn up_to(&self, blocks: u64) -> f64 {
        let sought = u32::try_from(blocks).unwrap_or(u32::MAX);
        for stretch in &self.stretches {
            let at = stretch.before(sought);
            if at < STRETCH {
                let end = stretch.ends[at];
                if end == u32::MAX {
                    break;
                }
                let rest = f64::from(end - sought) * f64::from(stretch.each[at]);
                return stretch.asks[at] - rest;
            }
        }
        // Beyond what was looked at.
        match self.whole() {
            (reach, asks) if self.is_whole || reach == 0 => asks,
            (reach, asks) => asks * blocks as f64 / reach as f64,
        }
    }

    /// Adds a run. Returns the blocks of all so far.
    fn push(&mut self, blocks: u64, each: f32) -> u64 {
        let (reach, asks) = self.whole();
        let at = self.known_runs as usize;
        let stretch = &mut self.stretches[at / STRETCH];
        // The number that stands for nothing is taken.
        let end = u32::try_from(reach + blocks).unwrap_or(u32::MAX).min(u32::MAX - 1);
        stretch.ends[at % STRETCH] = end;
        stretch.each[at % STRETCH] = each;
        stretch.asks[at % STRETCH] = asks + blocks as f64 * f64::from(each);
        self.known_runs += 1;
        u64::from(end)
    }
}

impl KvIndex {
    /// What allocating `new_blocks` would evict, each block counted as often as its content was
    /// asked for lately; after what the bookings that have not started will take. Content that
    /// was never asked for counts nothing, such as cached output. Zero for a removed rank.
    ///
    /// The figure is exact for the front of the free order as of the rank's last change, and
    /// goes on evenly beyond it. What the order does not have goes from what requests hold or
    /// wait for, once they are through: that counts as what the last bookings asked for did. It
    /// costs a few divisions where the rank has not changed.
    #[inline]
    pub fn asks_evicted_by(&mut self, slot: Slot, new_blocks: u32) -> f64 {
        let Some(index) = self.live(slot) else { return 0.0 };
        let rank = &self.ranks[index as usize];
        if !self.slot_ranks.is_empty()
            && let Some(slots) = rank.slots()
        {
            // What such a rank holds is not in the tree, and nobody counts who asks for it.
            return slots.evicted_by(u64::from(new_blocks)) as f64;
        }
        let beyond = rank.asks_beyond(new_blocks);
        let blocks = rank.evicted_by(new_blocks);
        if blocks.is_empty() {
            return beyond;
        }
        if !rank.outlook.covers(blocks.end) {
            self.look_ahead(index, blocks.end);
        }
        let outlook = &self.ranks[index as usize].outlook;
        outlook.asks(blocks) * f64::from(self.clock.faded_since(outlook.at)) + beyond
    }

    /// Looks over as many blocks, and as many again, for the next ones that ask.
    fn look_ahead(&mut self, slot: u32, blocks: u64) {
        let mut outlook = Outlook { at: self.clock, is_known: true, ..Outlook::default() };
        let mut place = self.ranks[slot as usize].head;
        let mut reach = 0;
        while place != Place::NONE && reach < 2 * blocks && (outlook.known_runs as usize) < RUNS {
            let (blocks, each, next) = self.run_at(slot, place);
            reach = outlook.push(blocks, each);
            place = next;
        }
        outlook.is_whole = place == Place::NONE;
        self.ranks[slot as usize].outlook = outlook;
    }

    /// The blocks of an element of a free order, how often each was asked for, and what follows.
    pub(crate) fn run_at(&self, slot: u32, place: Place) -> (u64, f32, Place) {
        match place.target() {
            Target::Nothing => (0, 0.0, Place::NONE),
            Target::Node(id) => {
                let node = self.tree.node(id);
                let holder = node.holder(slot).expect("a queued node has the rank as a holder");
                (u64::from(holder.len), node.asks.lately(self.clock), holder.links.next)
            }
            Target::Extra(number) => {
                let extra = &self.ranks[slot as usize].extras[number as usize];
                let (blocks, asks) = match extra.kind {
                    ExtraKind::Output { blocks, .. } => (blocks, 0.0),
                    ExtraKind::Copy { .. } => (1, 0.0),
                };
                (blocks, asks, extra.links.next)
            }
        }
    }
}

impl Rank {
    /// The blocks of the free order that allocating `new_blocks` would evict, by their place in
    /// it, after those that the bookings which have not started will take.
    #[inline]
    pub(crate) fn evicted_by(&self, new_blocks: u32) -> Range<u64> {
        let evicted = |blocks: u64| blocks.saturating_sub(self.blank()).min(self.queued);
        evicted(self.awaited)..evicted(self.awaited + u64::from(new_blocks))
    }

    /// The asks of what allocating `new_blocks` would evict beyond the free order, in the end:
    /// blocks that requests hold, or wait for. They are taken to be asked for as often as those
    /// of the last bookings.
    #[inline]
    pub(crate) fn asks_beyond(&self, new_blocks: u32) -> f64 {
        let room = self.blank() + self.queued;
        let new_blocks = u64::from(new_blocks);
        let beyond = (self.awaited + new_blocks).saturating_sub(room).min(new_blocks);
        // There is no more than that to go.
        beyond.min(self.pinned + self.awaited) as f64 * f64::from(self.asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks and asks of so many runs, no two neighbours alike. Asks are quarters, so that every
    /// sum is exact, in whatever order it is made.
    fn uneven(runs: usize) -> Vec<(u64, f32)> {
        let run = |n: usize| (1 + (n * n * 7 + 3) as u64 % 13, ((n * 5 + 2) % 7) as f32 / 4.0);
        (0..runs).map(run).collect()
    }

    /// The asks of the first blocks, added up one block after the other.
    fn plain_sum(runs: &[(u64, f32)], blocks: u64) -> f64 {
        let each = runs.iter().flat_map(|&(blocks, each)| (0..blocks).map(move |_| each));
        each.take(usize::try_from(blocks).unwrap()).map(f64::from).sum()
    }

    #[test]
    fn every_prefix_of_any_number_of_runs_has_the_asks_that_adding_up_gives() {
        for count in 0..=40 {
            let runs = uneven(count);
            // No more are looked at.
            let known = &runs[..count.min(RUNS)];
            let mut outlook = Outlook { is_whole: count <= RUNS, ..Outlook::default() };
            let mut reach = 0;
            for &(blocks, each) in known {
                reach += blocks;
                assert_eq!(outlook.push(blocks, each), reach, "{count} runs");
            }
            let all = plain_sum(known, reach);
            assert_eq!(outlook.whole(), (reach, all), "{count} runs");
            for blocks in 0..=reach {
                let told = outlook.up_to(blocks);
                assert_eq!(told, plain_sum(known, blocks), "{blocks} blocks of {count} runs");
            }
            for blocks in [reach + 1, 2 * reach + 3, u64::from(u32::MAX), u64::MAX] {
                // Nothing follows the last run; where more were not looked at, it goes on evenly.
                let expected = match outlook.is_whole {
                    true => all,
                    false => all * blocks as f64 / reach as f64,
                };
                assert_eq!(outlook.up_to(blocks), expected, "{blocks} blocks of {count} runs");
            }
        }
    }

    #[test]
    fn blocks_between_two_places_have_the_asks_of_what_is_left_of_the_order() {
        let runs = uneven(19);
        let mut outlook = Outlook { is_whole: true, ..Outlook::default() };
        let reach = runs.iter().fold(0, |_, &(blocks, each)| outlook.push(blocks, each));
        for eaten in 0..=reach {
            outlook.eaten = eaten;
            for to in 0..=reach - eaten {
                let from = to / 3;
                let expected = plain_sum(&runs, eaten + to) - plain_sum(&runs, eaten + from);
                assert_eq!(outlook.asks(from..to), expected, "{from}..{to} after {eaten}");
            }
        }
    }
}
