//! What the ranks of one model learn from each other.

use domain::Moment;

use super::{Coefficients, PrefillFit};

/// A fit that learned nothing for so long, in seconds, while others did, is reconsidered …
const STALE_SECONDS: f64 = 3.0;
/// … and one that rests on [`KNOWN_SAMPLES`] only after so long: a slow engine among fast ones is
/// slow, and forgetting that every few seconds costs its callers.
const KNOWN_STALE_SECONDS: f64 = 300.0;

/// The first few requests of an engine are often slow (caches, compilation); these are no more.
const KNOWN_SAMPLES: u64 = 16;

/// Fits are compared by what they say of a prompt of this length.
const TYPICAL_PROMPT_TOKENS: u32 = 1_000;

/// What is known of one rank.
#[derive(Clone, Copy, Debug)]
pub struct FitOfRank<'a> {
    /// Its fit.
    pub fit: &'a PrefillFit,
    /// When that learned last; `None` for never, or when it started over.
    pub measured_at: Option<Moment>,
    /// Whether it has nothing to do.
    pub is_idle: bool,
}

/// Fits that start over.
#[derive(Clone, Debug)]
pub struct Anew {
    /// Places of their ranks among those that were given.
    pub ranks: Vec<usize>,
    /// What they start over from.
    pub common: Coefficients,
}

/// A rank that looks slow is not chosen, and what is not chosen is not measured: a few slow
/// requests after its start would condemn it for good. So a rank that has nothing to do
/// (`is_idle`), was not measured for a while, and looks slower than those that were, starts over
/// from what they know: soon if it was measured a few times only, else once in a while. If it is
/// slow indeed, the next prompt that tries it tells. What was measured before counts on, so that
/// a slow rank is known for one after its first few requests in all.
///
/// Returns which; `None` if nothing is known that they could start over from.
pub fn reconsider<'a>(ranks: impl IntoIterator<Item = FitOfRank<'a>>, now: Moment) -> Option<Anew> {
    let mut stale = Vec::new();
    let mut fresh = Vec::new();
    for (place, FitOfRank { fit, measured_at, is_idle }) in ranks.into_iter().enumerate() {
        let Some(age) = measured_at.map(|at| now.seconds_since(at)) else { continue };
        let is_known = fit.samples() >= KNOWN_SAMPLES;
        if age <= STALE_SECONDS {
            fresh.push(fit.coefficients());
        } else if is_idle && (!is_known || age > KNOWN_STALE_SECONDS) {
            stale.push((place, fit));
        }
    }
    let common = Coefficients::median(&fresh)?;
    let typical = |c: &Coefficients| c.predict_seconds(TYPICAL_PROMPT_TOKENS, 0);
    stale.retain(|(_, fit)| typical(&fit.coefficients()) > typical(&common));
    Some(Anew { ranks: stale.into_iter().map(|(place, _)| place).collect(), common })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SLOW: Coefficients = Coefficients { per_token_seconds: 1e-3, ..Coefficients::DEFAULT };

    fn after(first: Coefficients, measured: [Option<u64>; 2], is_idle: bool) -> Coefficients {
        let at = |seconds| Moment::ZERO + Duration::from_secs(seconds);
        let mut fits = [PrefillFit::new(first), PrefillFit::default()];
        let measured = measured.map(|seconds| seconds.map(at));
        let known = fits.iter().zip(measured);
        let known = known.map(|(fit, measured_at)| FitOfRank { fit, measured_at, is_idle });
        if let Some(anew) = reconsider(known, at(20)) {
            anew.ranks.iter().for_each(|place| fits[*place].start_over(anew.common));
        }
        fits[0].coefficients()
    }

    #[test]
    fn a_slow_rank_that_nobody_tries_starts_over_from_what_the_others_know() {
        assert_eq!(after(SLOW, [Some(10), Some(19)], true), Coefficients::DEFAULT);
    }

    #[test]
    fn a_rank_that_is_measured_or_busy_keeps_what_it_knows() {
        assert_eq!(after(SLOW, [Some(18), Some(19)], true), SLOW);
        assert_eq!(after(SLOW, [Some(10), Some(19)], false), SLOW, "its sample is on the way");
        assert_eq!(after(SLOW, [None, Some(19)], true), SLOW, "it follows the prior anyway");
    }

    #[test]
    fn a_rank_that_is_known_to_be_slow_is_not_forgotten_every_few_seconds() {
        let mut known = PrefillFit::new(SLOW);
        let shape = crate::Shape::prefill(1_000, 0);
        (0..KNOWN_SAMPLES).for_each(|_| known.observe(&shape, SLOW.seconds(&shape)));
        for (seconds, starts_over) in [(60.0, false), (KNOWN_STALE_SECONDS + 2.0, true)] {
            let now = Moment::from_secs_f64(seconds);
            let (slow, fast) = (known.clone(), PrefillFit::default());
            let ranks = [(&slow, 1.0), (&fast, seconds)].map(|(fit, at)| {
                let measured_at = Some(Moment::from_secs_f64(at));
                FitOfRank { fit, measured_at, is_idle: true }
            });
            let anew = reconsider(ranks, now).expect("one was measured just now");
            assert_eq!(anew.ranks == [0], starts_over, "{seconds}");
            assert_eq!(anew.common, Coefficients::DEFAULT);
        }
    }

    #[test]
    fn without_others_that_were_measured_lately_nothing_is_reconsidered() {
        assert_eq!(after(SLOW, [Some(10), Some(12)], true), SLOW);
    }

    #[test]
    fn a_fast_rank_that_nobody_needs_stays_fast() {
        let fast = Coefficients { per_token_seconds: 1e-6, ..Coefficients::DEFAULT };
        assert_eq!(after(fast, [Some(10), Some(19)], true), fast);
    }
}
