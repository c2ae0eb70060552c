//! How much longer a line takes than was booked.
//!
//! Prompts of a line are booked with what they are thought to find in the cache. Where that is
//! wrong, hundreds of them look as if they were done in a moment; where the engine is slowed down
//! by something else, too. What shows in both cases is that first tokens come more slowly than
//! booked, for as long as there is always another prompt waiting.

/// Busy time after which a measurement counts for 1/e, in seconds …
const MEMORY_SECONDS: f64 = 2.0;
/// … and that there must be before anything follows from it.
const LEAST_SECONDS: f64 = 0.5;
/// Predictions are off by less than this without any fault.
const USUAL: f64 = 2.0;
/// What finds nothing takes a hundred times as long as what finds all but its end.
const MOST: f64 = 100.0;

/// The times of the prefills that finished lately, measured and as booked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    measured: f64,
    booked: f64,
}

impl Pace {
    /// Prefills of `booked` seconds took `measured` ones.
    pub(super) fn add(&mut self, measured: f64, booked: f64) {
        let keep = (-measured / MEMORY_SECONDS).exp();
        self.measured = self.measured * keep + measured;
        self.booked = self.booked * keep + booked;
    }

    /// The factor for prefills that are booked now, 1 to [`MOST`].
    pub(super) fn stretch(&self) -> f64 {
        if self.measured < LEAST_SECONDS {
            return 1.0;
        }
        let ratio = self.measured / self.booked.max(1e-9);
        if ratio < USUAL { 1.0 } else { ratio.min(MOST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_takes_far_longer_than_booked_stretches_what_is_booked_next() {
        let mut pace = Pace::default();
        (0..40).for_each(|_| pace.add(0.010, 0.001));
        assert_eq!(pace.stretch(), 1.0, "not for long enough");
        (0..400).for_each(|_| pace.add(0.010, 0.001));
        assert!((pace.stretch() - 10.0).abs() < 1e-6, "{}", pace.stretch());
        (0..2_000).for_each(|_| pace.add(0.010, 0.008));
        assert_eq!(pace.stretch(), 1.0, "it is as booked again");
        pace.add(10.0, 0.0);
        assert!(pace.stretch() > 1.0 && pace.stretch() <= MOST);
    }
}
