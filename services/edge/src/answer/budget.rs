//! A share of one core, spent as it is used.

use domain::Moment;

/// Part of a core that keys of answers may take in the long run.
const SHARE: f64 = 0.2;
/// Seconds of it that are saved up for a burst.
const BURST_SECONDS: f64 = 0.2;

/// Seconds of work that may be begun.
#[derive(Debug)]
pub(super) struct Budget {
    /// Below zero after a piece of work that took longer than what was left.
    seconds: f64,
    at: Moment,
}

impl Budget {
    pub(super) fn new(now: Moment) -> Self {
        Self { seconds: BURST_SECONDS, at: now }
    }

    /// Whether work may begin.
    pub(super) fn is_open(&mut self, now: Moment) -> bool {
        let passed = now.seconds_since(self.at).max(0.0);
        self.at = self.at.max(now);
        self.seconds = (self.seconds + passed * SHARE).min(BURST_SECONDS);
        self.seconds > 0.0
    }

    /// Work has taken so long.
    pub(super) fn spend(&mut self, seconds: f64) {
        self.seconds -= seconds;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_followed_by_a_fifth_of_the_time() {
        let start = Moment::from_nanos(0);
        let mut budget = Budget::new(start);
        assert!(budget.is_open(start));
        budget.spend(BURST_SECONDS + 0.1);
        assert!(!budget.is_open(start));
        assert!(!budget.is_open(start + Duration::from_millis(490)));
        assert!(budget.is_open(start + Duration::from_millis(510)));
        assert!(budget.is_open(start + Duration::from_secs(3600)));
        budget.spend(BURST_SECONDS);
        assert!(!budget.is_open(start + Duration::from_secs(3600)), "no more is saved up");
    }
}
