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

/// One rank's fit and when it learned last; `None` for never, or when it started over.
pub type FitOfRank<'a> = (&'a mut PrefillFit, &'a mut Option<Moment>);

/// A rank that looks slow is not chosen, and what is not chosen is not measured: a few slow
/// requests after its start would condemn it for good. So a rank that has nothing to do
/// (`is_idle`), was not measured for a while, and looks slower than those that were, starts over
/// from what they know: soon if it was measured a few times only, else once in a while. If it is
/// slow indeed, the next prompt that tries it tells. What was measured before counts on, so that
/// a slow rank is known for one after its first few requests in all.
pub fn reconsider<'a>(ranks: impl IntoIterator<Item = (FitOfRank<'a>, bool)>, now: Moment) {
    let mut stale = Vec::new();
    let mut fresh = Vec::new();
    for ((fit, measured_at), is_idle) in ranks {
        let Some(age) = measured_at.map(|at| now.seconds_since(at)) else { continue };
        let is_known = fit.samples() >= KNOWN_SAMPLES;
        if age <= STALE_SECONDS {
            fresh.push(fit.coefficients());
        } else if is_idle && (!is_known || age > KNOWN_STALE_SECONDS) {
            stale.push((fit, measured_at));
        }
    }
    let Some(common) = Coefficients::median(&fresh) else { return };
    let typical = |c: &Coefficients| c.predict_seconds(TYPICAL_PROMPT_TOKENS, 0);
    for (fit, measured_at) in stale {
        if typical(&fit.coefficients()) > typical(&common) {
            fit.start_over(common);
            *measured_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SLOW: Coefficients = Coefficients { per_token_seconds: 1e-3, ..Coefficients::DEFAULT };

    fn after(first: Coefficients, measured: [Option<u64>; 2], is_idle: bool) -> Coefficients {
        let at = |seconds| Moment::ZERO + Duration::from_secs(seconds);
        let mut fits = [PrefillFit::new(first), PrefillFit::default()];
        let mut measured = measured.map(|seconds| seconds.map(at));
        let ranks = fits.iter_mut().zip(&mut measured).map(|rank| (rank, is_idle));
        reconsider(ranks, at(20));
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
            let (mut slow, mut fast) = (known.clone(), PrefillFit::default());
            let now = Moment::from_secs_f64(seconds);
            let mut measured = [Some(Moment::from_secs_f64(1.0)), Some(now)];
            let [first, second] = &mut measured;
            reconsider([((&mut slow, first), true), ((&mut fast, second), true)], now);
            assert_eq!(slow.coefficients() == Coefficients::DEFAULT, starts_over, "{seconds}");
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
