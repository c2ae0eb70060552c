//! What a first token's time is made of, and how often each part is in a measured one.

use super::MAX_SAMPLE_SECONDS;
use super::linear::{Vector, dot};

/// Tokens that an engine may take into one step: vLLM's default `max_num_batched_tokens` for
/// online serving on large GPUs.
pub const STEP_TOKENS: u32 = 8_192;

/// What a request that comes to an engine that only decodes sees of the step under way.
pub(crate) const HALF_STEP: f64 = 0.5;

/// The coefficients of a first token's time. All are finite and ≥ 0 in a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// λ: seconds that every request takes beside all others.
    pub latency_seconds: f64,
    /// α: seconds that every step with a prefill costs.
    pub fixed_seconds: f64,
    /// β: seconds per uncached token.
    pub per_token_seconds: f64,
    /// γ: seconds per pair of an uncached token and a token before it.
    pub per_pair_seconds: f64,
    /// a: seconds by which a step is longer in which any request decodes.
    pub decode_step_seconds: f64,
    /// b: further seconds for each request that decodes in it.
    pub decode_running_seconds: f64,
}

impl Coefficients {
    /// The prior for a rank of which nothing is known: 20,000 tokens per second, which a model of
    /// about 8 billion weights reaches on one data-centre GPU; 8 ms for the way in and 2 ms for a
    /// step; attention that costs as much as the rest at 100,000 tokens of new prompt; and 3 ms more
    /// for a step in which others decode, and a little for each of them. An engine ten times slower or faster is
    /// learned within a few samples.
    pub const DEFAULT: Coefficients = Coefficients {
        latency_seconds: 8e-3,
        fixed_seconds: 2e-3,
        per_token_seconds: 5e-5,
        per_pair_seconds: 1e-9,
        decode_step_seconds: 3e-3,
        decode_running_seconds: 1e-4,
    };

    /// Nothing takes any time.
    pub const ZERO: Coefficients = Coefficients {
        latency_seconds: 0.0,
        fixed_seconds: 0.0,
        per_token_seconds: 0.0,
        per_pair_seconds: 0.0,
        decode_step_seconds: 0.0,
        decode_running_seconds: 0.0,
    };

    /// Seconds to prefill `uncached` tokens after `cached` ones on an engine that does nothing
    /// else.
    #[inline]
    pub fn predict_seconds(&self, uncached: u32, cached: u32) -> f64 {
        self.fixed_seconds + self.token_seconds(uncached, cached)
    }

    /// The part of [`Self::predict_seconds`] that comes from tokens: what these tokens add to a
    /// prefill that happens anyway.
    #[inline]
    pub fn token_seconds(&self, uncached: u32, cached: u32) -> f64 {
        let tokens = f64::from(uncached);
        self.per_token_seconds * tokens + self.per_pair_seconds * pairs(uncached, cached)
    }

    /// Seconds that the prefill takes in steps in which `running` requests decode, too.
    #[inline]
    pub fn prefill_seconds(&self, uncached: u32, cached: u32, running: u32) -> f64 {
        let steps = 1.0 + f64::from(uncached / STEP_TOKENS);
        self.predict_seconds(uncached, cached) + self.decode_seconds(steps, running)
    }

    /// The wait, on average, for the end of a step that only decodes.
    #[inline]
    pub fn step_wait_seconds(&self, running: u32) -> f64 {
        self.decode_seconds(HALF_STEP, running)
    }

    /// By how much `steps` steps are longer because `running` requests decode in them.
    #[inline]
    pub fn decode_seconds(&self, steps: f64, running: u32) -> f64 {
        if running == 0 {
            return 0.0;
        }
        steps * (self.decode_step_seconds + self.decode_running_seconds * f64::from(running))
    }

    /// Seconds that a time which depends on them linearly would take.
    pub fn seconds(&self, shape: &Shape) -> f64 {
        dot(&self.to_vector(), &shape.to_vector())
    }

    /// The median of each coefficient: where the fit of a rank without samples begins, among
    /// ranks that have some. One odd machine cannot pull it away. `None` of nothing.
    pub fn median(of: &[Coefficients]) -> Option<Coefficients> {
        let median = |pick: fn(&Coefficients) -> f64| {
            let mut values: Vec<f64> = of.iter().map(pick).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Some(Coefficients {
            latency_seconds: median(|c| c.latency_seconds)?,
            fixed_seconds: median(|c| c.fixed_seconds)?,
            per_token_seconds: median(|c| c.per_token_seconds)?,
            per_pair_seconds: median(|c| c.per_pair_seconds)?,
            decode_step_seconds: median(|c| c.decode_step_seconds)?,
            decode_running_seconds: median(|c| c.decode_running_seconds)?,
        })
    }

    /// With every value that makes no sense (negative, not finite, more than a whole prefill may
    /// take) replaced by the default's.
    pub(super) fn sensible(self) -> Vector {
        let mut values = self.to_vector();
        for (value, default) in values.iter_mut().zip(Self::DEFAULT.to_vector()) {
            if !(0.0..=MAX_SAMPLE_SECONDS).contains(value) {
                *value = default;
            }
        }
        values
    }

    pub(super) const fn to_vector(self) -> Vector {
        [
            self.latency_seconds,
            self.fixed_seconds,
            self.per_token_seconds,
            self.per_pair_seconds,
            self.decode_step_seconds,
            self.decode_running_seconds,
        ]
    }

    pub(super) const fn from_vector(values: Vector) -> Self {
        let [latency, fixed, token, pair, decode_step, decode_running] = values;
        Self {
            latency_seconds: latency,
            fixed_seconds: fixed,
            per_token_seconds: token,
            per_pair_seconds: pair,
            decode_step_seconds: decode_step,
            decode_running_seconds: decode_running,
        }
    }
}

/// What a measured time was spent on: how often each coefficient is in it. For the mean of
/// several prefills these are means, too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// Latencies of a request on its way.
    pub latencies: f64,
    /// Steps that ended with a first token.
    pub steps: f64,
    /// Uncached tokens.
    pub tokens: f64,
    /// Pairs of an uncached token and a token before it.
    pub pairs: f64,
    /// Steps in which others were decoding.
    pub decode_steps: f64,
    /// Σ over these of the requests that decoded.
    pub decode_running: f64,
}

impl Shape {
    /// A prefill on an engine that does nothing else, without the way there.
    pub fn prefill(uncached: u32, cached: u32) -> Self {
        let tokens = f64::from(uncached);
        Self { steps: 1.0, tokens, pairs: pairs(uncached, cached), ..Self::default() }
    }

    /// Every count taken `factor` times.
    pub fn times(&self, factor: f64) -> Self {
        Self {
            latencies: self.latencies * factor,
            steps: self.steps * factor,
            tokens: self.tokens * factor,
            pairs: self.pairs * factor,
            decode_steps: self.decode_steps * factor,
            decode_running: self.decode_running * factor,
        }
    }

    pub(super) const fn to_vector(self) -> Vector {
        [
            self.latencies,
            self.steps,
            self.tokens,
            self.pairs,
            self.decode_steps,
            self.decode_running,
        ]
    }
}

impl Default for Coefficients {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Pairs of an uncached token and a token before it.
#[inline]
pub(crate) fn pairs(uncached: u32, cached: u32) -> f64 {
    let tokens = f64::from(uncached);
    tokens * (f64::from(cached) + tokens / 2.0)
}
