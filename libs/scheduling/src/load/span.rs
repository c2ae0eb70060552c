//! Measured prefill times: what the fit learns from.

use domain::Moment;

use super::STEP_TOKENS;

/// Uncached tokens after which a span in a busy period becomes a sample: two full steps, so that
/// the step that is cut at either end is no large part of it.
pub const SPAN_TOKENS: u64 = 2 * STEP_TOKENS as u64;

/// Prefills after which it does so at the latest: prompts found in the cache have few tokens to
/// count, and a busy rank that serves nothing else must give samples, too.
pub const SPAN_PREFILLS: u32 = 32;

/// A measured prefill, or the mean of several that cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Uncached tokens.
    pub uncached: u32,
    /// Cached tokens before them. In a mean of several: chosen so that the mean number of token
    /// pairs is kept.
    pub cached: u32,
    /// Time it took, as seen from the gateway.
    pub seconds: f64,
    /// How many round trips to the engine are part of `seconds`: 1 for a single request into an
    /// idle rank, less in a mean, 0 between two first tokens.
    pub round_trips: f64,
}

impl Sample {
    /// The time without the network, whose round trip takes `network_seconds`.
    pub fn engine_seconds(&self, network_seconds: f64) -> f64 {
        self.seconds - self.round_trips * network_seconds
    }
}

/// A stretch of time that was spent on nothing but the prefills counted in it.
#[derive(Clone, Debug)]
pub(super) struct Span {
    from: Moment,
    round_trips: u32,
    prefills: u32,
    tokens: u64,
    /// Σ u·(c + u/2).
    pairs: f64,
}

impl Span {
    pub(super) fn new(from: Moment, round_trips: u32) -> Self {
        Self { from, round_trips, prefills: 0, tokens: 0, pairs: 0.0 }
    }

    pub(super) fn add(&mut self, uncached: u32, cached: u32) {
        let tokens = f64::from(uncached);
        self.prefills += 1;
        self.tokens += u64::from(uncached);
        self.pairs += tokens * (f64::from(cached) + tokens / 2.0);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.tokens >= SPAN_TOKENS || self.prefills >= SPAN_PREFILLS
    }

    /// The mean prefill of the span. `as` saturates, which is what a mean of `u32`s needs.
    pub(super) fn sample(&self, until: Moment) -> Option<Sample> {
        let prefills = f64::from(self.prefills);
        let seconds = until.seconds_since(self.from) / prefills;
        let tokens = self.tokens as f64 / prefills;
        let cached = if tokens > 0.0 { self.pairs / prefills / tokens - tokens / 2.0 } else { 0.0 };
        (seconds > 0.0 && seconds.is_finite()).then(|| Sample {
            uncached: tokens.round() as u32,
            cached: cached.round() as u32,
            seconds,
            round_trips: f64::from(self.round_trips) / prefills,
        })
    }
}
