//! Correcting mirrors by what engines say they found.
//!
//! Many engines count, for every answer, the prompt tokens that were in their cache. Held against
//! what the mirror found when it took the prefill to begin, that count says three things:
//! - *The size of the cache.* What was found or lost lies at some distance; the size that
//!   explains the most observations becomes the mirror's capacity. Ranks that were
//!   told the same size share what is seen.
//! - *That a prefix is gone.* What a prompt no longer has, no other prompt that continues it there
//!   has either: it is purged. After a run of requests that found nothing at all the rank is.
//! - *What beliefs are worth*: the [standing](MirrorTrust).
//!
//! Engines that tell nothing are not followed and cost nothing. There is no clock in this: only
//! observations count.

mod evidence;
mod record;
mod reuse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::RangeInclusive;

use domain::BlockKey;

use crate::booking::Booking;
use crate::index::KvIndex;
use crate::types::Slot;
use evidence::{Evidence, Step, believed, range, scaled, step_of};
use record::Record;
use reuse::{ReuseStack, Sighting};

pub use record::MirrorTrust;

/// Steps around the present size within which the mirror's own verdict counts, not the estimated
/// distance: a mirror that is right must stay as it is.
const NEAR: Step = 3;

/// The size of a cache as its engine tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldCapacity {
    /// Blocks that can hold content.
    pub blocks: u32,
    /// Whether the engine did not tell and this was assumed for it.
    pub is_assumed: bool,
    /// Ranks of the same group are expected to be off by the same factor.
    pub group: u64,
}

/// What an answer said about the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The request did not end well, or its counts cannot be compared with the mirror's.
    Nothing,
    /// The answer's counts leave out what was in the cache.
    Silence,
    /// Leading blocks of the prompt that were in the cache.
    Found {
        /// Their number.
        blocks: u32,
        /// How far it may be off by the way it was counted.
        slack: u32,
    },
}

/// A prompt's part in the feedback, from its booking to its end.
#[derive(Debug, Default)]
pub struct Sample {
    sightings: Vec<Sighting>,
    /// What the mirror found, once the prefill began.
    believed: Option<u32>,
    /// What was known of the engine's preemptions then.
    preemptions: Preemptions,
    stood_in_line: bool,
}

impl Sample {
    /// The prompt has a long line before it. When it will start is then a guess, and with it what
    /// others hold by then: what it finds says nothing of the cache's size.
    pub fn stands_in_line(&mut self) {
        self.stood_in_line = true;
    }
}

/// How a request that was started ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended<'a> {
    /// Blocks beyond the prompt's full ones that stay cached.
    pub output_cached_blocks: u32,
    /// The keys of those, as far as they are known.
    pub answer_keys: &'a [BlockKey],
    /// What the answer said about the cache.
    pub heard: Heard,
}

/// What an answer changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Correction {
    /// Blocks that the mirror had found, and those that the engine had, where it told.
    pub compared: Option<(u32, u32)>,
    /// The modelled capacity, if it changed.
    pub capacity: Option<u32>,
    /// Blocks purged, as they continued a prefix that was lost.
    pub purged_blocks: u32,
    /// Whether the rank's whole cache was purged.
    pub purged_rank: bool,
}

/// The feedback of the ranks of one index.
#[derive(Default)]
pub struct Feedback {
    /// By the numbers of their slots.
    ranks: Vec<Option<(Slot, Rank)>>,
    shared: HashMap<u64, Evidence>,
}

/// Requests that lost their blocks to others before they were done, as the engine counts them.
/// Such an engine has more room than its mirror, which goes on holding what they had: what it
/// finds says nothing of its size.
#[derive(Clone, Copy, Debug, Default)]
struct Preemptions {
    total: u64,
    /// Whether there were any between the last two readings.
    are_recent: bool,
}

impl Preemptions {
    fn happened_since(&self, then: &Preemptions) -> bool {
        then.are_recent || self.total != then.total
    }
}

struct Rank {
    told: ToldCapacity,
    preemptions: Preemptions,
    step: Step,
    record: Record,
    /// Only of a rank that reports.
    followed: Option<Box<Followed>>,
}

struct Followed {
    reuse: ReuseStack,
    evidence: Evidence,
    /// What requests said that found nothing at all: misses if the next one finds something, no
    /// sign of the cache's size if it was emptied.
    held_back: Vec<(bool, Step)>,
}

impl std::fmt::Debug for Feedback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feedback").field("ranks", &self.present().count()).finish_non_exhaustive()
    }
}

impl Feedback {
    /// Takes note of what the engine tells of its cache, at first or anew. Returns the capacity to
    /// model it with: what was learned of the rank, or of others of its group, is kept.
    pub fn set_told_capacity(&mut self, slot: Slot, told: ToldCapacity) -> u32 {
        let shared = self.shared.get(&told.group);
        let step = shared.map_or(0, |shared| believed(&Evidence::own(), shared, 0, told.range()));
        if self.ranks.len() <= slot.number() {
            self.ranks.resize_with(slot.number() + 1, || None);
        }
        let entry = &mut self.ranks[slot.number()];
        let (_, rank) = match entry {
            Some(known) if known.0 == slot => known,
            _ => entry.insert((slot, Rank::new(told, step))),
        };
        if rank.told.group != told.group {
            rank.step = step;
            rank.followed = None;
        }
        rank.told = told;
        let capacity = scaled(told.blocks, rank.step);
        if let Some(followed) = &mut rank.followed {
            followed.reuse.set_capacity(capacity);
        }
        capacity
    }

    /// Goes on from a capacity that was learned elsewhere, of a rank that is known.
    pub fn follow_capacity(&mut self, slot: Slot, blocks: u32) {
        if let Some(rank) = rank_mut(&mut self.ranks, slot) {
            let range = rank.told.range();
            // The step is the largest below; sizes that were made of a step are rounded.
            let step = step_of(blocks.saturating_add(1), rank.told.blocks);
            rank.step = step.clamp(*range.start(), *range.end());
        }
    }

    /// Forgets a rank that was removed.
    pub fn remove(&mut self, slot: Slot) {
        let entry = self.ranks.get_mut(slot.number());
        let Some((_, rank)) = entry.and_then(|e| e.take_if(|known| known.0 == slot)) else {
            return;
        };
        let group = rank.told.group;
        if self.present().all(|rank| rank.told.group != group) {
            self.shared.remove(&group);
        }
    }

    fn present(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().flatten().map(|(_, rank)| rank)
    }

    fn rank(&self, slot: Slot) -> Option<&Rank> {
        let (known, rank) = self.ranks.get(slot.number())?.as_ref()?;
        (*known == slot).then_some(rank)
    }

    /// What reports have shown of a rank.
    pub fn mirror_trust(&self, slot: Slot) -> MirrorTrust {
        self.rank(slot).map_or(MirrorTrust::Unreported, |rank| rank.record.mirror_trust())
    }

    /// The part of what the mirror believes of a rank that is to be counted on: 1, or less while
    /// the rank is [distrusted](MirrorTrust::Distrusted).
    pub fn trust(&self, slot: Slot) -> f64 {
        self.rank(slot).map_or(1.0, |rank| rank.record.trust())
    }

    /// What was believed of a rank less what it had, as a share of the prompts, averaged over the
    /// last reports.
    pub fn gap(&self, slot: Slot) -> f64 {
        self.rank(slot).map_or(0.0, |rank| rank.record.gap())
    }

    /// Blocks that the engine told, or that were assumed for it.
    pub fn told_blocks(&self, slot: Slot) -> Option<u32> {
        self.rank(slot).map(|rank| rank.told.blocks)
    }

    /// The engine has counted so many preemptions in all. While there are any, what it finds is
    /// not held against the size of its mirror; what others of its group find is.
    pub fn preempted(&mut self, slot: Slot, total: u64) {
        if let Some(rank) = rank_mut(&mut self.ranks, slot) {
            let are_recent = total != rank.preemptions.total;
            rank.preemptions = Preemptions { total, are_recent };
        }
    }

    /// What is to be remembered of a prompt that was booked on the rank.
    pub fn sample(&self, slot: Slot, keys: &[BlockKey]) -> Sample {
        let followed = self.rank(slot).and_then(|rank| rank.followed.as_ref());
        let sightings = followed.map_or_else(Vec::new, |followed| followed.reuse.sample(keys));
        Sample { sightings, ..Sample::default() }
    }

    /// The predicted start of a prefill: [`KvIndex::start`].
    pub fn start(&mut self, index: &mut KvIndex, booking: &mut Booking, sample: &mut Sample) {
        if booking.is_started() {
            return;
        }
        let cached = index.start(booking).cached_blocks;
        sample.believed = Some(cached);
        let Some(rank) = rank_mut(&mut self.ranks, booking.slot()) else { return };
        sample.preemptions = rank.preemptions;
        if let Some(followed) = &mut rank.followed {
            let allocated = (booking.blocks() - cached).saturating_add(booking.extra());
            followed.reuse.begin(&mut sample.sightings, cached, allocated);
        }
    }

    /// The request's end: [`KvIndex::finish_with_answer`], and the corrections that follow from
    /// what the answer said.
    pub fn finish(
        &mut self,
        index: &mut KvIndex,
        mut booking: Booking,
        mut sample: Sample,
        ended: Ended<'_>,
    ) -> Correction {
        let Ended { output_cached_blocks, answer_keys, heard } = ended;
        self.start(index, &mut booking, &mut sample);
        let (slot, extra) = (booking.slot(), booking.extra());
        let keyless = extra.saturating_add(booking.generated_blocks());
        let Some(rank) = rank_mut(&mut self.ranks, slot) else {
            index.finish_with_answer(booking, output_cached_blocks, answer_keys);
            return Correction::default();
        };
        // A request that found no slot free in the mirror was served all the same.
        let started = index.started(&booking);
        sample.believed = started.map(|started| started.cached_blocks);
        let heard = if started.is_some() { heard } else { Heard::Nothing };
        let mut correction = rank.hear(&mut self.shared, index, &booking, &sample, heard);
        index.finish_with_answer(booking, output_cached_blocks, answer_keys);
        correction.purged_rank = rank.record.take_emptied();
        if correction.purged_rank {
            index.purge_rank(slot);
            if let Some(followed) = &mut rank.followed {
                followed.reuse.clear();
                followed.held_back.clear();
            }
        }
        let held = index.rank_stats(slot).map_or(0, |stats| stats.pinned_blocks);
        // No more than it held: of a lease without keys only the output is known.
        rank.freed(&sample, output_cached_blocks.min(keyless), extra, held);
        if let Some(capacity) = correction.capacity {
            index.set_capacity(slot, capacity);
        }
        correction
    }
}

fn rank_mut(ranks: &mut [Option<(Slot, Rank)>], slot: Slot) -> Option<&mut Rank> {
    let (known, rank) = ranks.get_mut(slot.number())?.as_mut()?;
    (*known == slot).then_some(rank)
}

impl ToldCapacity {
    fn range(&self) -> RangeInclusive<Step> {
        range(self.is_assumed)
    }
}

/// Whether it is age that decides what the rank evicts, and so the number of blocks what it has.
/// Of an engine that keeps whole sequences in slots distances say nothing.
fn evicts_by_age(index: &KvIndex, slot: Slot) -> bool {
    index.live(slot).is_some_and(|number| index.ranks[number as usize].slots().is_none())
}

impl Rank {
    fn new(told: ToldCapacity, step: Step) -> Self {
        let preemptions = Preemptions::default();
        Self { told, preemptions, step, record: Record::default(), followed: None }
    }

    /// Takes what an answer said, while its request still holds its blocks.
    fn hear(
        &mut self,
        shared: &mut HashMap<u64, Evidence>,
        index: &mut KvIndex,
        booking: &Booking,
        sample: &Sample,
        heard: Heard,
    ) -> Correction {
        let mut correction = Correction::default();
        let believed = sample.believed.unwrap_or(0);
        match heard {
            Heard::Found { blocks, slack } => {
                let found = blocks.min(booking.blocks());
                correction.compared = Some((believed, found));
                self.record.told(believed, found, booking.blocks());
                if believed > found.saturating_add(slack) {
                    correction.purged_blocks = index.purge_booked(booking, found);
                }
                if evicts_by_age(index, booking.slot()) {
                    self.follow(booking.slot());
                }
                let shared = shared.entry(self.told.group).or_insert_with(Evidence::shared);
                correction.capacity = self.learn(shared, sample, found, slack);
            }
            Heard::Silence => {
                if self.record.kept_silent(believed) {
                    self.followed = None;
                }
            }
            Heard::Nothing => {}
        }
        correction
    }

    /// Notes distances from now on.
    fn follow(&mut self, slot: Slot) {
        let capacity = scaled(self.told.blocks, self.step);
        self.followed.get_or_insert_with(|| {
            Box::new(Followed {
                reuse: ReuseStack::new(slot.index, capacity),
                evidence: Evidence::own(),
                held_back: Vec::new(),
            })
        });
    }

    /// Learns from a comparison. Returns the capacity if it changed.
    fn learn(
        &mut self,
        shared: &mut Evidence,
        sample: &Sample,
        found: u32,
        slack: u32,
    ) -> Option<u32> {
        let (told, followed, believed_blocks) =
            (self.told, self.followed.as_mut()?, sample.believed?);
        followed.reuse.correct(&sample.sightings, believed_blocks, found);
        let range = told.range();
        if !sample.stood_in_line && !self.preemptions.happened_since(&sample.preemptions) {
            let seen =
                Seen { told: told.blocks, present: self.step, slack, believed_blocks, found };
            let observations = seen.observations(&sample.sightings).into_iter().flatten();
            // What speaks against every size, or for every one, decides nothing.
            followed.held_back.extend(observations.filter(|(_, step)| range.contains(step)));
        }
        if found == 0 && believed_blocks > 0 {
            return None;
        }
        for (is_hit, step) in followed.held_back.drain(..) {
            followed.evidence.observe(is_hit, step);
            shared.observe(is_hit, step);
        }
        let step = believed(&followed.evidence, shared, self.step, range);
        if step == self.step {
            return None;
        }
        self.step = step;
        let capacity = scaled(told.blocks, step);
        followed.reuse.set_capacity(capacity);
        Some(capacity)
    }

    /// A request's blocks were freed; of those without keys `kept` stay cached.
    fn freed(&mut self, sample: &Sample, kept: u32, extra: u32, held: u32) {
        if let Some(followed) = &mut self.followed {
            followed.reuse.end(&sample.sightings, kept, extra, held);
        }
    }
}

/// One comparison.
struct Seen {
    told: u32,
    present: Step,
    slack: u32,
    believed_blocks: u32,
    found: u32,
}

impl Seen {
    /// The deepest block that the engine had and the first one that it had not, as observations:
    /// whether it was a hit, and the size that speaks against it.
    fn observations(&self, sightings: &[Sighting]) -> [Option<(bool, Step)>; 2] {
        let (believed, found) = (self.believed_blocks, self.found);
        let more = found > believed.saturating_add(self.slack);
        let less = believed > found.saturating_add(self.slack);
        // Of what the mirror had lost, or had alone, only the blocks in between tell.
        let above = if more { believed } else { 0 };
        let below = if less { believed } else { u32::MAX };
        let hit = sightings.iter().rev().find(|s| s.depth <= found && s.depth > above);
        let missed = found.saturating_add(self.slack).max(if less { 0 } else { believed });
        let miss = sightings.iter().find(|s| s.depth > missed && s.depth <= below);
        let step = |sighting: Option<&Sighting>| Some(step_of(sighting?.distance?, self.told));
        [
            step(hit).map(|step| (true, self.settled(step, more))),
            step(miss).map(|step| (false, self.settled(step, !less))),
        ]
    }

    /// Near the present size, what the mirror said decides on which side of it an observation
    /// falls: `above` it if the mirror had not had the block.
    fn settled(&self, step: Step, above: bool) -> Step {
        if (step - self.present).abs() > NEAR {
            step
        } else if above {
            step.max(self.present)
        } else {
            step.min(self.present - 1)
        }
    }
}
