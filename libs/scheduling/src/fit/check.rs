//! The fit against the engine's own account of its prefills.
//!
//! First tokens are what the fit learns from, and they say nothing where answers do not stream:
//! then nobody tells when a prefill was over but the engine. Its counters are a coarser measure.
//! They count a request when it has ended, and prompts that share a step have the whole step's
//! time each. So they check the fit, and teach it only where it has nothing better.

use std::time::Duration;

use domain::{LoadSample, Moment, PrefillCounters};

use super::{Coefficients, STEP_TOKENS, Shape, pairs};

/// Requests that a comparison rests on at least.
const REQUESTS: u64 = 4;

/// Two readings further apart than this are compared however few requests lie between.
const LONGEST: Duration = Duration::from_secs(60);

/// A fit that learned from first tokens within this time knows better.
const SILENCE: Duration = Duration::from_secs(60);

/// Weight of a comparison in their mean.
const GAIN: f64 = 0.2;

/// What an engine counted between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// The mean request of them.
    pub shape: Shape,
    /// How long its prefill took: above 0.
    pub seconds: f64,
}

/// The comparison for one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineCheck {
    last: Option<Reading>,
    /// Mean logarithm of counted to predicted.
    bias: Option<f64>,
    /// When the fit was taught last.
    taught_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Moment,
    prefills: PrefillCounters,
    prefix_cache: (u64, u64),
}

impl EngineCheck {
    /// Takes a reading. What the fit, which learned last at `measured_at`, should learn of it:
    /// nothing while first tokens teach it.
    pub fn observe(
        &mut self,
        sample: &LoadSample,
        fit: &Coefficients,
        measured_at: Option<Moment>,
    ) -> Option<Counted> {
        let counted = self.compare(sample, fit)?;
        let knows_better =
            measured_at.is_some_and(|at| Some(at) != self.taught_at && sample.at - at <= SILENCE);
        if knows_better {
            return None;
        }
        self.taught_at = Some(sample.at);
        Some(counted)
    }

    /// What was counted since the reading before, if that is enough to compare.
    fn compare(&mut self, sample: &LoadSample, fit: &Coefficients) -> Option<Counted> {
        let prefills = sample.prefills?;
        let prefix_cache = sample.prefix_cache.unwrap_or_default();
        let reading = Reading { at: sample.at, prefills, prefix_cache };
        let Some(last) = self.last else {
            self.last = Some(reading);
            return None;
        };
        let requests = prefills.requests.saturating_sub(last.prefills.requests);
        let restarted = prefills.requests < last.prefills.requests;
        if !restarted && requests < REQUESTS && sample.at - last.at < LONGEST {
            return None;
        }
        self.last = Some(reading);
        if restarted {
            self.bias = None;
            return None;
        }
        let counted = mean_request(&last, &reading, requests, sample.running)?;
        let predicted = fit.seconds(&counted.shape);
        if predicted > 0.0 {
            let miss = (counted.seconds / predicted).ln();
            let bias = self.bias.unwrap_or(miss);
            self.bias = Some(bias + GAIN * (miss - bias));
        }
        Some(counted)
    }

    /// How many times as long prefills take as the fit says, by the engine's counters: 1 where
    /// they agree; above it also where prompts share steps. `None` while there is no comparison.
    pub fn ratio(&self) -> Option<f64> {
        self.bias.map(f64::exp)
    }
}

fn mean_request(from: &Reading, to: &Reading, requests: u64, running: u32) -> Option<Counted> {
    let each = |from: u64, to: u64| to.checked_sub(from).map(|n| n as f64 / requests.max(1) as f64);
    let uncached = each(from.prefills.tokens, to.prefills.tokens)?;
    let cached = each(from.prefix_cache.1, to.prefix_cache.1)?;
    let seconds = (to.prefills.seconds - from.prefills.seconds) / requests.max(1) as f64;
    if requests == 0 || seconds.is_nan() || seconds <= 0.0 {
        return None;
    }
    // One of those that run is in its prefill.
    let others = f64::from(running.saturating_sub(1));
    let steps =
        if others > 0.0 { (uncached / f64::from(STEP_TOKENS)).ceil().max(1.0) } else { 0.0 };
    let shape = Shape {
        steps: 1.0,
        tokens: uncached,
        pairs: pairs(uncached as u32, cached as u32),
        decode_steps: steps,
        decode_running: steps * others,
        ..Shape::default()
    };
    Some(Counted { shape, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrefillFit;

    /// 1 ms a token and nothing else.
    const FIT: Coefficients = Coefficients {
        latency_seconds: 0.0,
        fixed_seconds: 0.0,
        per_token_seconds: 1e-3,
        per_pair_seconds: 0.0,
        decode_step_seconds: 0.0,
        decode_running_seconds: 0.0,
    };

    fn reading(at: u64, requests: u64, tokens: u64, seconds: f64) -> LoadSample {
        LoadSample {
            at: Moment::from_secs_f64(at as f64),
            running: 0,
            waiting: 0,
            kv_usage: None,
            preemptions: None,
            prefix_cache: Some((tokens * 2, tokens)),
            prefills: Some(PrefillCounters { requests, tokens, seconds }),
        }
    }

    #[test]
    fn an_engine_that_takes_twice_as_long_shows_as_two() {
        let mut check = EngineCheck::default();
        assert_eq!(check.observe(&reading(0, 10, 1_000, 5.0), &FIT, None), None);
        assert_eq!(check.ratio(), None);
        let counted =
            check.observe(&reading(1, 15, 6_000, 15.0), &FIT, None).expect("five requests");
        assert_eq!((counted.shape.tokens, counted.seconds), (1_000.0, 2.0));
        assert!((check.ratio().expect("compared") - 2.0).abs() < 1e-9);
    }

    #[test]
    fn few_requests_are_compared_when_a_minute_has_passed() {
        let mut check = EngineCheck::default();
        check.observe(&reading(0, 0, 0, 0.0), &FIT, None);
        assert_eq!(check.observe(&reading(1, 2, 2_000, 2.0), &FIT, None), None);
        assert!(check.observe(&reading(61, 3, 3_000, 3.0), &FIT, None).is_some());
        assert!((check.ratio().expect("compared") - 1.0).abs() < 1e-9);
        assert_eq!(
            check.observe(&reading(200, 3, 3_000, 3.0), &FIT, None),
            None,
            "nothing happened"
        );
    }

    #[test]
    fn counters_that_begin_anew_or_run_backwards_are_no_comparison() {
        let mut check = EngineCheck::default();
        check.observe(&reading(0, 100, 100_000, 100.0), &FIT, None);
        assert_eq!(check.observe(&reading(1, 5, 5_000, 5.0), &FIT, None), None);
        assert_eq!(check.ratio(), None);
        assert_eq!(check.observe(&reading(2, 10, 4_000, 10.0), &FIT, None), None);
        assert_eq!(check.observe(&reading(3, 20, 9_000, f64::NAN), &FIT, None), None);
        assert_eq!(check.ratio(), None);
    }

    #[test]
    fn first_tokens_teach_better_than_counters() {
        let mut check = EngineCheck::default();
        let second = |at: u64| Some(Moment::from_secs_f64(at as f64));
        let mut turn = |at: u64, measured_at| {
            let sample = reading(at, at * 10, at * 1_000, at as f64);
            check.observe(&sample, &FIT, measured_at).is_some()
        };
        assert!(!turn(1, None), "one reading is no comparison");
        assert!(!turn(2, second(1)), "a first token was seen");
        assert!(turn(90, second(1)), "long ago");
        // What the counters taught keeps nobody from learning more of them.
        assert!(turn(91, second(90)));
        assert!(!turn(93, second(92)));
    }

    #[test]
    fn a_fit_taught_by_the_counters_comes_to_agree_with_them() {
        let (mut check, mut fit) = (EngineCheck::default(), PrefillFit::default());
        for round in 0..50_u64 {
            let (requests, tokens) = (round * 5, round * 5 * (500 + 100 * (round % 7)));
            let sample = reading(round, requests, tokens.max(round * 5_000), tokens as f64 * 4e-4);
            if let Some(counted) = check.observe(&sample, &fit.coefficients(), None) {
                fit.observe(&counted.shape, counted.seconds);
            }
        }
        let ratio = check.ratio().expect("compared");
        assert!((0.5..2.0).contains(&ratio), "{ratio}");
    }
}
