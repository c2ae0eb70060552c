//! How often something happens at a rank, lately.

use domain::Moment;

/// Time over which arrivals are averaged, in seconds. Long enough to see a few requests of
/// minutes-long conversations, short enough to follow a change of traffic.
const ARRIVALS_WINDOW_SECONDS: f64 = 10.0;

/// The shortest time that a rate is taken over, in seconds: the first request after a start says
/// nothing yet of how many will follow.
const FIRST_SECONDS: f64 = 0.25;

/// A rate with exponential forgetting, unbiased from the first second on.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    window_seconds: f64,
    /// What was recorded, each weighted by e^(-age / window), as of `at`.
    weight: f64,
    at: Moment,
    /// The first record: before it, nothing was there to be counted.
    first: Option<Moment>,
}

impl Rate {
    /// A rate of nothing yet, averaged over so many seconds.
    pub(super) fn over(window_seconds: f64) -> Self {
        Self { window_seconds, weight: 0.0, at: Moment::ZERO, first: None }
    }

    pub(super) fn record(&mut self, amount: f64, now: Moment) {
        self.weight = self.weight_at(now) + amount;
        self.at = self.at.max(now);
        self.first.get_or_insert(now);
    }

    /// Amount per second. An exponentially weighted sum over the time that was watched, as
    /// weighted: `n / (w · (1 - e^(-t/w)))`.
    pub(super) fn per_second(&self, now: Moment) -> f64 {
        let Some(first) = self.first else { return 0.0 };
        let watched = now.seconds_since(first).max(FIRST_SECONDS) / self.window_seconds;
        self.weight_at(now) / (self.window_seconds * -(-watched).exp_m1())
    }

    fn weight_at(&self, now: Moment) -> f64 {
        self.weight * (-now.seconds_since(self.at) / self.window_seconds).exp()
    }
}

/// Requests that come to a rank.
#[derive(Clone, Debug)]
pub(super) struct Arrivals(Rate);

impl Default for Arrivals {
    fn default() -> Self {
        Self(Rate::over(ARRIVALS_WINDOW_SECONDS))
    }
}

impl Arrivals {
    pub(super) fn record(&mut self, now: Moment) {
        self.0.record(1.0, now);
    }

    /// Arrivals per second.
    pub(super) fn per_second(&self, now: Moment) -> f64 {
        self.0.per_second(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let seen = arrivals.per_second(now);
            assert!((seen / rate - 1.0).abs() < 0.1, "{rate}/s seen as {seen}/s after {seconds} s");
        }
    }

    #[test]
    fn a_rank_that_is_no_longer_chosen_is_forgotten() {
        let (arrivals, now) = steady(100.0, 10.0);
        let later = now + std::time::Duration::from_secs(60);
        assert!(arrivals.per_second(later) < 1.0);
        assert_eq!(Arrivals::default().per_second(now), 0.0);
    }
}
