//! How long a rank takes to the first token, learned while it works.
//!
//! ```text
//! first token     = λ + prefill + decode(s, n)
//! prefill(u, c)   = α + β·u + γ·u·(c + u/2)    u uncached tokens, c cached tokens before them
//! decode(s, n)    = s·(a + b·n)                s steps, each with n > 0 requests that decode
//! ```
//!
//! λ is a latency that every request has and that occupies nothing (HTTP, tokenising, hand-over
//! between processes): requests on their way at once have it at once. α is what a step costs that
//! prefills, β the part of a token that grows with the model (projections, feed-forward), γ the
//! attention of each new token over all tokens before it: `u·c` pairs with the cached ones and
//! about `u²/2` among themselves. Engines decode running requests in the very steps that prefill,
//! which makes these longer by a step's decoding, `a + b·n`; and a request that comes to an engine
//! that only decodes waits for the end of the step under way, half of one on average.
//!
//! What tells these apart: a lone request has λ and α once each, a stretch of several prefills has
//! λ at most once; `a` and `b` are there only while others run.
//!
//! The fit is recursive least squares on *relative* errors, so that a prompt of 50 tokens and
//! one of 50,000 count the same. It is meant to be useful after one sample and safe after a
//! million:
//!
//! - The prior's uncertainty is mostly common to all coefficients ("this engine is k times
//!   slower than thought"), so the first sample already scales the whole curve.
//! - Old samples are forgotten only in the direction that a new sample speaks about: hours of
//!   short prompts do not wash out what is known of long ones, and repeating one prompt does not
//!   blow up the covariance. Its inverse also has a floor, which bounds the covariance.
//! - Residuals are clipped at a few times their usual size, so one stalled request moves little.
//!   Misses that add up to one side are a change of speed instead: the fit then opens up again
//!   around what it knows.
//! - Coefficients are projected onto the non-negative ones in the metric of the fit, which is the
//!   exact constrained solution. Predictions are therefore never negative, and never fall when a
//!   prompt grows.

mod check;
mod coefficients;
mod fleet;
mod linear;
#[cfg(test)]
mod tests;

pub use check::{Counted, EngineCheck};
pub use coefficients::{Coefficients, STEP_TOKENS, Shape};
pub(crate) use coefficients::{HALF_STEP, pairs};
pub use fleet::{Anew, FitOfRank, reconsider};
use linear::{COUNT, Matrix, Vector, dot, nearest_non_negative};

/// Weight that an old sample keeps when a new one says something about the same direction:
/// a memory of 1 / (1 − 0.99) = 100 samples.
const MEMORY: f64 = 0.99;

/// Expected relative spread of a single sample.
const NOISE: f64 = 0.2;

/// Variances of the prior, relative to the coefficients: of the factor that all share (twice as
/// slow or fast is nothing unusual) and of each alone.
const COMMON_VARIANCE: f64 = 4.0;
const OWN_VARIANCE: f64 = 1.0;

/// Share of the prior's information that is never forgotten.
const INFORMATION_FLOOR: f64 = 0.01;

/// Residuals are clipped at this many times their mean size, within the bounds below.
const CLIP_FACTOR: f64 = 3.0;
/// Never clipped below: half of the prediction is within ordinary scatter.
const CLIP_MIN: f64 = 0.5;
/// Never allowed above: one sample at most quadruples the prediction for its own shape.
const CLIP_MAX: f64 = 3.0;
/// Weight of a new residual in their mean size.
const SCATTER_GAIN: f64 = 0.1;

/// A change of speed is looked for with a two-sided CUSUM over the logarithm of measured to
/// predicted time, in units of the usual scatter (held within these bounds, so that neither a
/// very quiet nor a very wrong fit decides alone) …
const CUSUM_SCATTER: (f64, f64) = (0.1, 0.5);
/// … where one sample counts at most so much, which keeps single outliers from deciding …
const CUSUM_STEP_MAX: f64 = 3.0;
/// … and so much is within the ordinary, on either side …
const CUSUM_SLACK: f64 = 1.0;
/// … and a sum above this is a change: four samples that miss far, eight that miss by two. By
/// chance alone it is reached once in about 100,000 samples that scatter by 15 %, and once in
/// 15,000 that scatter by 30 %.
const CUSUM_LIMIT: f64 = 7.0;

/// Differences below a millisecond are the noise of sockets and schedulers; shorter predictions
/// are measured as if they were one.
const BASE_FLOOR_SECONDS: f64 = 1e-3;

/// Anything longer was not a prefill.
const MAX_SAMPLE_SECONDS: f64 = 3_600.0;

/// Nothing that is counted in a sample can be more: token pairs of the longest prompt there is.
const MAX_COUNT: f64 = 1e20;

/// A coefficient's scale is at least this share of what the default prior has at the same speed,
/// so that one which is zero now can still grow.
const SCALE_FLOOR: f64 = 0.1;

/// An online fit of one rank's prefill time. See the [module's page](self).
#[derive(Clone, Debug)]
pub struct PrefillFit {
    /// `scale × weights`, kept ready for predictions.
    coefficients: Coefficients,
    /// What a weight of 1 means for each coefficient. With it all regressors are shares of a
    /// predicted time, whatever the engine's speed, which keeps the matrix well conditioned.
    scale: Vector,
    /// The estimate, in units of `scale`.
    weights: Vector,
    /// Inverse of the estimate's covariance.
    information: Matrix,
    /// Mean size of the clipped relative residuals.
    scatter: f64,
    /// Evidence that the rank has become slower, and faster.
    slower: f64,
    faster: f64,
    samples: u64,
}

impl AsRef<Coefficients> for PrefillFit {
    fn as_ref(&self) -> &Coefficients {
        &self.coefficients
    }
}

impl Default for PrefillFit {
    fn default() -> Self {
        Self::new(Coefficients::DEFAULT)
    }
}

impl PrefillFit {
    /// A fit that starts from `prior`. Values that make no sense (negative, not finite, above an
    /// hour) are replaced by the [default's](Coefficients::DEFAULT).
    pub fn new(prior: Coefficients) -> Self {
        let start = prior.sensible();
        let default = Coefficients::DEFAULT.to_vector();
        let speed = (0..COUNT).map(|i| start[i] / default[i]).fold(0.0, f64::max);
        // All zero is a prior, if a strange one: its scale is the default's.
        let speed = if speed > 0.0 { speed } else { 1.0 };
        let mut scale = start;
        let mut weights = [1.0; COUNT];
        for i in 0..COUNT {
            scale[i] = start[i].max(SCALE_FLOOR * speed * default[i]);
            weights[i] = start[i] / scale[i];
        }
        Self {
            coefficients: Coefficients::from_vector(start),
            scale,
            weights,
            information: prior_information(),
            scatter: CLIP_MAX / CLIP_FACTOR,
            slower: 0.0,
            faster: 0.0,
            samples: 0,
        }
    }

    /// A fit that goes on from what another one had learned from so many samples.
    pub fn resumed(learned: Coefficients, samples: u64) -> Self {
        Self { samples, ..Self::new(learned) }
    }

    /// Seconds to prefill `uncached` tokens after `cached` ones. Finite, ≥ 0, and never less for
    /// a longer prompt.
    pub fn predict_seconds(&self, uncached: u32, cached: u32) -> f64 {
        self.coefficients.predict_seconds(uncached, cached)
    }

    /// What the fit stands at.
    pub fn coefficients(&self) -> Coefficients {
        self.coefficients
    }

    /// Samples taken so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Forgets what was learned and begins with `prior` again. The samples count on.
    pub fn start_over(&mut self, prior: Coefficients) {
        *self = Self { samples: self.samples, ..Self::new(prior) };
    }

    /// Learns from a time of `seconds`, network excluded, that was spent on `shape`. Times that
    /// are not finite, not above zero or longer than an hour are ignored, and so is a time that
    /// was spent on nothing.
    pub fn observe(&mut self, shape: &Shape, seconds: f64) {
        if !(seconds > 0.0 && seconds <= MAX_SAMPLE_SECONDS) {
            return;
        }
        let regressors = shape.to_vector();
        if !regressors.iter().all(|r| (0.0..=MAX_COUNT).contains(r)) || regressors == [0.0; COUNT] {
            return;
        }
        self.samples += 1;
        let predicted = self.coefficients.seconds(shape);
        self.watch_for_change(predicted, seconds);

        // Errors are relative to the prediction, and clipped by it.
        let base = predicted.max(BASE_FLOOR_SECONDS);
        let clip = (CLIP_FACTOR * self.scatter).clamp(CLIP_MIN, CLIP_MAX) * base;
        let residual = (seconds - predicted).clamp(-clip, clip);
        self.scatter += SCATTER_GAIN * (residual.abs() / base - self.scatter);

        // What a sample weighs follows the prediction too; one that was far off, as the first
        // ones are, would make its own samples count for far too much or too little.
        let normaliser = (seconds / 2.0).clamp(base, base * 3.0);
        let mut direction = [0.0; COUNT];
        for i in 0..COUNT {
            direction[i] = self.scale[i] * regressors[i] / (normaliser * NOISE);
        }
        self.update(&direction, residual / (normaliser * NOISE));
    }

    /// One step of least squares along `direction`, with directional forgetting: information is
    /// given up only where the sample brings new.
    fn update(&mut self, direction: &Vector, residual: f64) {
        let known = self.information.times(direction);
        let strength = dot(direction, &known);
        if strength > f64::MIN_POSITIVE {
            let forgotten = Matrix::outer(&known);
            self.information = self.information.plus((MEMORY - 1.0) / strength, &forgotten);
        }
        self.information = self.information.plus(1.0, &Matrix::outer(direction));

        let metric = self.information.plus(INFORMATION_FLOOR, &prior_information());
        let Some(step) = metric.solve([true; COUNT], direction) else {
            // Only rounding can get here; the estimate stands, its certainty starts over.
            self.information = prior_information();
            return;
        };
        let mut moved = self.weights;
        for (weight, step) in moved.iter_mut().zip(step) {
            *weight += step * residual;
        }
        self.weights = nearest_non_negative(&metric, &moved);
        let mut values = self.scale;
        for (value, weight) in values.iter_mut().zip(self.weights) {
            *value *= weight;
        }
        self.coefficients = Coefficients::from_vector(values);
    }

    /// Sums up misses to one side; when there is enough of it, the fit opens up again.
    fn watch_for_change(&mut self, predicted: f64, seconds: f64) {
        let usual = self.scatter.clamp(CUSUM_SCATTER.0, CUSUM_SCATTER.1);
        let miss = (seconds / predicted.max(f64::MIN_POSITIVE)).ln() / usual;
        let miss = miss.clamp(-CUSUM_STEP_MAX, CUSUM_STEP_MAX);
        self.slower = (self.slower + miss - CUSUM_SLACK).max(0.0);
        self.faster = (self.faster - miss - CUSUM_SLACK).max(0.0);
        if self.slower.max(self.faster) > CUSUM_LIMIT {
            self.start_over(self.coefficients);
        }
    }
}

/// Inverse of the prior's covariance `OWN·I + COMMON·J` (J all ones), by Sherman and Morrison.
const fn prior_information() -> Matrix {
    let shared = COMMON_VARIANCE / (OWN_VARIANCE + COUNT as f64 * COMMON_VARIANCE);
    let (same, other) = ((1.0 - shared) / OWN_VARIANCE, -shared / OWN_VARIANCE);
    let mut cells = [[other; COUNT]; COUNT];
    let mut i = 0;
    while i < COUNT {
        cells[i][i] = same;
        i += 1;
    }
    Matrix(cells)
}
