//! How often something happens at a rank, lately.

use std::time::Duration;

use domain::Moment;

/// Time over which arrivals are averaged, in seconds. Long enough to see a few requests of
/// minutes-long conversations, short enough to follow a change of traffic.
const ARRIVALS_WINDOW_SECONDS: u32 = 10;

/// The shortest time that a rate is taken over, in seconds: the first request after a start says
/// nothing yet of how many will follow.
const FIRST_SECONDS: f64 = 0.25;

/// Weights are kept as of the last moment that is a multiple of this: moments that all rates
/// share, so that one exponential serves many of them.
const LANDMARK: Duration = Duration::from_secs(60);

/// What fading over one window leaves at one moment. Rates are asked a thousand at a time, and
/// nearly all of them have the same landmark.
#[derive(Clone, Copy, Debug)]
pub struct Fading {
    window_seconds: f64,
    now: Moment,
    since: Moment,
    left: f64,
    /// What is left at most of what was not watched.
    most_unwatched: f64,
}

impl Fading {
    fn new(window_seconds: f64, now: Moment) -> Self {
        let most_unwatched = (-FIRST_SECONDS / window_seconds).exp();
        Self { window_seconds, now, since: now, left: 1.0, most_unwatched }
    }

    /// The fading of arrivals.
    pub fn of_arrivals(now: Moment) -> Self {
        Self::new(f64::from(ARRIVALS_WINDOW_SECONDS), now)
    }

    /// The moment.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// What is left of something from then; a later moment than this one is taken for it.
    #[inline]
    fn left(&mut self, since: Moment) -> f64 {
        if since != self.since {
            self.left = (-self.now.seconds_since(since) / self.window_seconds).exp();
            self.since = since;
        }
        self.left
    }
}

/// A rate with exponential forgetting over so many seconds, unbiased from the first one on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate<const WINDOW_SECONDS: u32> {
    /// What was recorded, each weighted by e^((time - landmark) / window).
    weight: f64,
    /// e^((first - landmark) / window): when the first record came, before which nothing was
    /// there to be counted. Zero for long ago.
    first: f64,
    landmark: Moment,
    is_empty: bool,
}

impl<const WINDOW_SECONDS: u32> Rate<WINDOW_SECONDS> {
    const WINDOW: f64 = WINDOW_SECONDS as f64;

    /// A rate of nothing yet.
    pub(super) fn new() -> Self {
        Self { weight: 0.0, first: 0.0, landmark: Moment::ZERO, is_empty: true }
    }

    pub(super) fn record(&mut self, amount: f64, now: Moment) {
        let landmark = LANDMARK.as_nanos() as u64;
        let landmark = Moment::from_nanos(now.as_nanos() / landmark * landmark);
        if landmark > self.landmark {
            let left = Fading::new(Self::WINDOW, landmark).left(self.landmark);
            self.weight *= left;
            self.first *= left;
            self.landmark = landmark;
        }
        let here = (now.seconds_since(self.landmark) / Self::WINDOW).exp();
        self.weight += amount * here;
        if std::mem::take(&mut self.is_empty) {
            self.first = here;
        }
    }

    /// [`Self::at`] one moment.
    pub(super) fn per_second(&self, now: Moment) -> f64 {
        self.at(&mut Fading::new(Self::WINDOW, now))
    }

    /// Amount per second at the moment of `fading`, whose window must be this rate's. An
    /// exponentially weighted sum over the time that was watched, as weighted:
    /// `n / (w · (1 - e^(-t/w)))`.
    #[inline]
    fn at(&self, fading: &mut Fading) -> f64 {
        if self.is_empty {
            return 0.0;
        }
        let left = fading.left(self.landmark);
        let unwatched = self.first * left;
        let most = fading.most_unwatched;
        let unwatched = if unwatched < most { unwatched } else { most };
        self.weight * left / (Self::WINDOW * (1.0 - unwatched))
    }
}

/// Requests that come to a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals(Rate<ARRIVALS_WINDOW_SECONDS>);

impl Default for Arrivals {
    fn default() -> Self {
        Self(Rate::new())
    }
}

impl Arrivals {
    pub(super) fn record(&mut self, now: Moment) {
        self.0.record(1.0, now);
    }

    /// Arrivals per second at the moment of `fading`, which is that of [`Fading::of_arrivals`].
    /// Finite and ≥ 0.
    #[inline]
    pub fn per_second(&self, fading: &mut Fading) -> f64 {
        self.0.at(fading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(arrivals: &Arrivals, now: Moment) -> f64 {
        arrivals.per_second(&mut Fading::of_arrivals(now))
    }

    fn steady(per_second: f64, seconds: f64) -> (Arrivals, Moment) {
        let mut arrivals = Arrivals::default();
        let mut now = Moment::from_secs_f64(3_600.0);
        for _ in 0..(per_second * seconds) as usize {
            arrivals.record(now);
            now = now + std::time::Duration::from_secs_f64(1.0 / per_second);
        }
        (arrivals, now)
    }

    #[test]
    fn a_steady_rate_is_found_from_the_first_second_on() {
        for (rate, seconds) in [(100.0, 1.0), (100.0, 30.0), (0.5, 60.0)] {
            let (arrivals, now) = steady(rate, seconds);
            let seen = per_second(&arrivals, now);
            assert!((seen / rate - 1.0).abs() < 0.1, "{rate}/s seen as {seen}/s after {seconds} s");
        }
    }

    #[test]
    fn a_rank_that_is_no_longer_chosen_is_forgotten() {
        let (arrivals, now) = steady(100.0, 10.0);
        let later = now + std::time::Duration::from_secs(60);
        assert!(per_second(&arrivals, later) < 1.0);
        assert_eq!(per_second(&Arrivals::default(), now), 0.0);
    }
}
