//! What holds new requests back from a rank that serves, while others can take them.
//!
//! An engine that is full says so, and may say for how long. One that is back after it was gone has
//! empty queues and caches and looks better than all others, at the very moment at which it can bear
//! least; so it gets a few requests at first, and one more for each that it answers. Neither is a
//! matter of health: the [breaker](crate::breaker) is.

use std::time::Duration;

use domain::Moment;

/// How long an engine is left alone that is full and does not say for how long: what one says that
/// has no idea itself.
const FULL_FOR: Duration = Duration::from_secs(1);

/// The longest that it is left alone for one word: as long as a broken one is. Edges bound it
/// likewise, but not only this version's.
const FULL_FOR_LONGEST: Duration = Duration::from_secs(60);

/// Answers after which a rank that is back is like any other. By then it gets so many more at once
/// that no limit is left to speak of.
const ANSWERS: u32 = 64;

/// Why a rank gets nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Its engine said that it is full, until then.
    Full {
        /// When it may be asked again.
        until: Moment,
    },
    /// It is back, and has as much as it gets for now.
    Returning,
}

impl Hold {
    /// The names in metrics and answers.
    pub(crate) const NAMES: [&str; 2] = ["full", "returning"];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Hold::Full { .. } => Self::NAMES[0],
            Hold::Returning => Self::NAMES[1],
        }
    }
}

/// The state of one rank.
#[derive(Debug)]
pub(crate) struct Pacing {
    /// Requests in flight that it gets at first when it is back; 0 for no limit.
    first: u32,
    full_until: Option<Moment>,
    /// Answers since it is back, until there were enough.
    answers: Option<u32>,
}

impl Pacing {
    pub(crate) fn new(first: u32) -> Self {
        Self { first, full_until: None, answers: None }
    }

    /// What stands against a request now, with so many in flight.
    pub(crate) fn hold(&self, in_flight: u32, now: Moment) -> Option<Hold> {
        if let Some(until) = self.full_until.filter(|until| now < *until) {
            return Some(Hold::Full { until });
        }
        let is_enough = |answers: u32| in_flight >= self.first.saturating_add(answers);
        self.answers.is_some_and(is_enough).then_some(Hold::Returning)
    }

    /// Whether nothing stands against any request, now and until something is heard of the rank.
    pub(crate) fn is_free(&self) -> bool {
        self.full_until.is_none() && self.answers.is_none()
    }

    /// When [`pass`](Self::pass) has something to do.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        self.full_until
    }

    /// Time has passed.
    pub(crate) fn pass(&mut self, now: Moment) {
        self.full_until = self.full_until.filter(|until| now < *until);
    }

    /// The engine says that it is full, and for how long if it knows.
    pub(crate) fn full(&mut self, retry_after: Option<Duration>, now: Moment) {
        let until = now + retry_after.unwrap_or(FULL_FOR).min(FULL_FOR_LONGEST);
        self.full_until = self.full_until.max(Some(until)).filter(|until| now < *until);
    }

    /// The rank is back.
    pub(crate) fn returned(&mut self) {
        self.answers = (self.first > 0).then_some(0);
    }

    /// It answers another request.
    pub(crate) fn answered(&mut self) {
        self.answers = self.answers.map(|answers| answers + 1).filter(|answers| *answers < ANSWERS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::from_secs_f64(seconds)
    }

    #[test]
    fn a_full_engine_is_left_alone_for_as_long_as_it_says_within_bounds() {
        let lasts = |retry_after: Option<u64>| {
            let mut pacing = Pacing::new(4);
            pacing.full(retry_after.map(Duration::from_secs), at(0.0));
            (0..100).take_while(|s| pacing.hold(0, at(f64::from(*s))).is_some()).count()
        };
        assert_eq!(lasts(Some(7)), 7);
        assert_eq!(lasts(Some(3600)), 60);
        assert_eq!(lasts(None), 1);
        assert_eq!(lasts(Some(0)), 0);
    }

    #[test]
    fn the_longest_of_several_words_counts_until_it_has_passed() {
        let mut pacing = Pacing::new(4);
        pacing.full(Some(Duration::from_secs(5)), at(0.0));
        pacing.full(Some(Duration::from_secs(1)), at(1.0));
        assert_eq!(pacing.hold(0, at(4.9)), Some(Hold::Full { until: at(5.0) }));
        assert_eq!(pacing.next_due(), Some(at(5.0)));
        pacing.pass(at(4.9));
        assert!(!pacing.is_free());
        pacing.pass(at(5.0));
        assert!(pacing.is_free());
    }

    #[test]
    fn a_rank_that_is_back_gets_one_more_for_each_answer() {
        let mut pacing = Pacing::new(4);
        assert_eq!(pacing.hold(1000, at(0.0)), None, "it was never away");
        pacing.returned();
        for answers in 0..ANSWERS {
            assert_eq!(pacing.hold(3 + answers, at(0.0)), None);
            assert_eq!(pacing.hold(4 + answers, at(0.0)), Some(Hold::Returning));
            pacing.answered();
        }
        assert!(pacing.is_free());
    }

    #[test]
    fn without_a_first_number_there_is_no_limit() {
        let mut pacing = Pacing::new(0);
        pacing.returned();
        assert!(pacing.is_free());
    }
}
