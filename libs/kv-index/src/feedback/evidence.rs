//! What observations say about the size of a cache.
//!
//! Each is a hit or a miss at a [distance](super::reuse). A hit says that the cache is larger than
//! its distance, a miss that it is not. No size explains all of them: distances are estimates,
//! other clients fill the cache too, and now and then a request does not look into it. The size
//! that leaves the fewest unexplained is believed, and the present one is kept until another
//! explains clearly more.

use std::ops::RangeInclusive;

/// Sizes are powers of 2^(1/12) of what the engine told: steps of 6 %.
const STEPS_PER_OCTAVE: f64 = 12.0;

/// Distances are counted from 2^-5 to 2^5 times of what the engine told.
const BINS: usize = 120;
const ORIGIN: i32 = 60;

/// An engine that told its size: from a quarter of it to four times.
const KNOWN: RangeInclusive<i32> = -24..=24;

/// One that did not: from a sixteenth of what was assumed to sixteen times.
const ASSUMED: RangeInclusive<i32> = -48..=48;

/// Observations after which one counts for 1/e.
const OWN_MEMORY: f32 = 256.0;
const SHARED_MEMORY: f32 = 1024.0;

/// Observations that what other ranks saw weighs at most beside a rank's own.
const SHARED_WEIGHT: f32 = 128.0;

/// Observations that another size must explain better, so that a few odd ones move nothing …
const MOVE_AT: f32 = 4.0;

/// … and how much better, as noise in the distances leaves some unexplained by any.
const MOVE_RATIO: f32 = 1.25;

/// Part of the gain that is left for a smaller move.
const MOVE_SLACK: f32 = 0.25;

/// A size: so many steps above or below what the engine told.
pub(super) type Step = i32;

/// The steps that may be believed.
pub(super) fn range(is_assumed: bool) -> RangeInclusive<Step> {
    if is_assumed { ASSUMED } else { KNOWN }
}

/// `told` blocks, so many steps off.
pub(super) fn scaled(told: u32, step: Step) -> u32 {
    let scaled = f64::from(told) * (f64::from(step) / STEPS_PER_OCTAVE).exp2();
    (scaled.round() as u32).max(told.min(1))
}

/// The largest step whose size a block at `distance` would not have survived.
pub(super) fn step_of(distance: u32, told: u32) -> Step {
    let ratio = f64::from(distance.max(1)) / f64::from(told.max(1));
    (ratio.log2() * STEPS_PER_OCTAVE).floor() as Step
}

/// Observations by their distance, the older the less.
#[derive(Clone)]
pub(super) struct Evidence {
    hits: [f32; BINS],
    misses: [f32; BINS],
    memory: f32,
}

impl Evidence {
    /// Of one rank.
    pub(super) fn own() -> Self {
        Self { hits: [0.0; BINS], misses: [0.0; BINS], memory: OWN_MEMORY }
    }

    /// Of all ranks that were told the same.
    pub(super) fn shared() -> Self {
        Self { memory: SHARED_MEMORY, ..Self::own() }
    }

    /// Takes one observation: every size up to `step` contradicts a hit, every one above it a
    /// miss.
    pub(super) fn observe(&mut self, is_hit: bool, step: Step) {
        let keep = 1.0 - 1.0 / self.memory;
        self.hits.iter_mut().chain(&mut self.misses).for_each(|count| *count *= keep);
        let bin = (step + ORIGIN).clamp(0, BINS as i32 - 1) as usize;
        let side = if is_hit { &mut self.hits } else { &mut self.misses };
        side[bin] += 1.0;
    }

    fn total(&self) -> f32 {
        self.hits.iter().chain(&self.misses).sum()
    }

    /// Unexplained observations for each size, from the smallest.
    fn unexplained(&self) -> [f32; BINS] {
        let mut left: f32 = self.hits.iter().sum();
        let steps = self.misses.iter().zip(&self.hits).map(|(miss, hit)| miss - hit);
        let mut costs = [0.0; BINS];
        for (cost, step) in costs.iter_mut().zip(steps) {
            *cost = left;
            left += step;
        }
        costs
    }
}

/// The size to believe from now on.
pub(super) fn believed(
    own: &Evidence,
    shared: &Evidence,
    present: Step,
    range: RangeInclusive<Step>,
) -> Step {
    let weight = (SHARED_WEIGHT / shared.total().max(1.0)).min(1.0);
    let (own, shared) = (own.unexplained(), shared.unexplained());
    let cost = |step: Step| {
        let bin = (step + ORIGIN) as usize;
        own[bin] + weight * shared[bin]
    };
    let now = cost(present);
    let least = range.clone().map(cost).fold(f32::INFINITY, f32::min);
    if now - least < MOVE_AT || now < least * MOVE_RATIO {
        return present;
    }
    let enough = least + MOVE_SLACK * (now - least);
    let good = range.filter(|step| cost(*step) <= enough);
    good.min_by_key(|step| (step - present).abs()).unwrap_or(present)
}
