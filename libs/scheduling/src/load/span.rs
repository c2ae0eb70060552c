//! Measured prefill times: what the fit learns from.

use std::time::Duration;

use domain::Moment;

use crate::fit::{HALF_STEP, STEP_TOKENS, Shape};

/// Uncached tokens after which a span in a busy period becomes a sample: two full steps, so that
/// the step that is cut at either end is no large part of it.
pub const SPAN_TOKENS: u64 = 2 * STEP_TOKENS as u64;

/// Prefills after which it does so at the latest: prompts found in the cache have few tokens to
/// count, and a busy rank that serves nothing else must give samples, too.
pub const SPAN_PREFILLS: u32 = 32;

/// First tokens that come within this time of each other ended one step. Engines send them in one
/// burst; the next step takes longer than this on any of them.
const ONE_STEP: Duration = Duration::from_millis(1);

/// A measured prefill, or the mean of several that cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What the time was spent on.
    pub shape: Shape,
    /// Time it took, as seen from the gateway.
    pub seconds: f64,
}

impl Sample {
    /// The time without the network, whose round trip takes `network_seconds`: it is in the time
    /// as often as the latency is.
    pub fn engine_seconds(&self, network_seconds: f64) -> f64 {
        self.seconds - self.shape.latencies * network_seconds
    }
}

/// A stretch of time that was spent on nothing but the prefills counted in it.
#[derive(Clone, Debug)]
pub(super) struct Span {
    from: Moment,
    prefills: u32,
    tokens: u64,
    last_step: Option<Moment>,
    /// Sums so far.
    shape: Shape,
}

impl Span {
    /// From a dispatch into an idle rank.
    pub(super) fn from_dispatch(at: Moment) -> Self {
        let shape = Shape { latencies: 1.0, ..Shape::default() };
        Self { from: at, prefills: 0, tokens: 0, last_step: None, shape }
    }

    /// From a first token, with others waiting behind it.
    pub(super) fn from_step(at: Moment) -> Self {
        let shape = Shape::default();
        Self { from: at, prefills: 0, tokens: 0, last_step: Some(at), shape }
    }

    /// A prefill finished, in a step that ended `at`, while `running` others were decoding.
    pub(super) fn add(&mut self, uncached: u32, cached: u32, running: u32, at: Moment) {
        let prefill = Shape::prefill(uncached, cached);
        self.prefills += 1;
        self.tokens += u64::from(uncached);
        self.shape.tokens += prefill.tokens;
        self.shape.pairs += prefill.pairs;
        let mut steps = f64::from(uncached / STEP_TOKENS);
        if self.last_step.is_none_or(|last| at > last + ONE_STEP) {
            self.shape.steps += 1.0;
            steps += 1.0;
            if self.last_step.is_none() {
                steps += HALF_STEP;
            }
            self.last_step = Some(at);
        }
        if running > 0 {
            self.shape.decode_steps += steps;
            self.shape.decode_running += steps * f64::from(running);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.tokens >= SPAN_TOKENS || self.prefills >= SPAN_PREFILLS
    }

    /// The mean prefill of the span.
    pub(super) fn sample(&self, until: Moment) -> Option<Sample> {
        let share = 1.0 / f64::from(self.prefills);
        let seconds = until.seconds_since(self.from) * share;
        (seconds > 0.0 && seconds.is_finite())
            .then(|| Sample { shape: self.shape.times(share), seconds })
    }
}
