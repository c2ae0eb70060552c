//! The circuit breaker of one rank: passive ejection with half-open probing.
//!
//! Only what live requests say counts here. Probes of a control plane see an HTTP server that
//! answers, not an engine that generates, so they never close an open breaker; a new life of the
//! backend starts with a new, closed one.

use std::time::Duration;

use domain::{FailureClass, Moment};

/// Weight at which the breaker opens. Three faults in a row reach it; refused or broken
/// connections, which say most about an engine that is gone, weigh so much that two do.
const OPEN_AT: u32 = 6;
const FAULT_WEIGHT: u32 = 2;
const CONNECTION_WEIGHT: u32 = 3;

/// How long it stays open the first time: about the time a process manager needs to restart a
/// small engine, and short enough to be no harm after a glitch.
const FIRST_BACKOFF: Duration = Duration::from_secs(2);

/// Where the doubling ends. One trial a minute costs next to nothing and finds a healed engine
/// soon enough.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// What the breaker says of the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Requests flow.
    Closed,
    /// One request may try.
    HalfOpen,
    /// None may, or a trial is already under way.
    Open,
}

impl Gate {
    pub(crate) const ALL: [Gate; 3] = [Gate::Closed, Gate::HalfOpen, Gate::Open];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Gate::Closed => "closed",
            Gate::HalfOpen => "half_open",
            Gate::Open => "open",
        }
    }
}

/// The state of one rank's breaker.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    weight: u32,
    last_failure: Option<Moment>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    until: Moment,
    backoff: Duration,
    trials: u32,
}

impl Breaker {
    /// Whether a request may go to the rank now.
    pub(crate) fn gate(&self, now: Moment) -> Gate {
        match &self.open {
            None => Gate::Closed,
            Some(open) if now >= open.until && open.trials == 0 => Gate::HalfOpen,
            Some(_) => Gate::Open,
        }
    }

    /// Whether it lets everything pass, now and until the next fault.
    pub(crate) fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    /// When a fault was last counted; among broken ranks the one that failed longest ago is the
    /// best guess.
    pub(crate) fn last_failure(&self) -> Option<Moment> {
        self.last_failure
    }

    /// A request is sent. Returns whether it is a trial, which must be told how it ended by one
    /// of [`succeeded`](Self::succeeded), [`failed`](Self::failed) and
    /// [`released`](Self::released).
    pub(crate) fn dispatched(&mut self) -> bool {
        match &mut self.open {
            None => false,
            Some(open) => {
                open.trials += 1;
                true
            }
        }
    }

    /// The engine answered as it should. Only a trial closes an open breaker: an answer to a
    /// request from before the faults says nothing of now.
    pub(crate) fn succeeded(&mut self, trial: bool) {
        if self.open.is_none() {
            self.weight = 0;
        } else if trial {
            self.open = None;
            self.weight = 0;
        }
    }

    /// A request failed. Returns whether the breaker opened by it.
    pub(crate) fn failed(&mut self, class: FailureClass, trial: bool, now: Moment) -> bool {
        if !class.counts_against_backend() {
            if trial {
                self.released();
            }
            return false;
        }
        self.last_failure = Some(now);
        match &mut self.open {
            Some(open) => {
                if trial {
                    open.trials = open.trials.saturating_sub(1);
                    open.backoff = (open.backoff * 2).min(LONGEST_BACKOFF);
                    open.until = now + open.backoff;
                }
                false
            }
            None => {
                self.weight += match class {
                    FailureClass::Connection => CONNECTION_WEIGHT,
                    _ => FAULT_WEIGHT,
                };
                if self.weight < OPEN_AT {
                    return false;
                }
                self.open =
                    Some(Open { until: now + FIRST_BACKOFF, backoff: FIRST_BACKOFF, trials: 0 });
                true
            }
        }
    }

    /// A trial ended without a verdict (the client left, the engine was full).
    pub(crate) fn released(&mut self) {
        if let Some(open) = &mut self.open {
            open.trials = open.trials.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::from_secs_f64(seconds)
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        assert!(!breaker.failed(FailureClass::Connection, false, at(0.0)));
        assert!(breaker.failed(FailureClass::Connection, false, at(0.0)));
        breaker
    }

    #[test]
    fn three_faults_in_a_row_open_it_and_a_success_between_starts_over() {
        let mut breaker = Breaker::default();
        breaker.failed(FailureClass::ServerError, false, at(0.0));
        breaker.failed(FailureClass::Timeout, false, at(0.1));
        breaker.succeeded(false);
        breaker.failed(FailureClass::Interrupted, false, at(0.2));
        breaker.failed(FailureClass::ServerError, false, at(0.3));
        assert_eq!(breaker.gate(at(0.3)), Gate::Closed);
        assert!(breaker.failed(FailureClass::ServerError, false, at(0.4)));
        assert_eq!(breaker.gate(at(0.4)), Gate::Open);
    }

    #[test]
    fn two_connection_faults_open_it() {
        assert_eq!(opened().gate(at(1.9)), Gate::Open);
    }

    #[test]
    fn client_errors_and_back_pressure_never_count() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.failed(FailureClass::ClientError, false, at(0.0)));
            assert!(!breaker.failed(FailureClass::BackPressure, false, at(0.0)));
        }
        assert_eq!(breaker.gate(at(0.0)), Gate::Closed);
        assert_eq!(breaker.last_failure(), None);
    }

    #[test]
    fn after_the_backoff_one_trial_at_a_time_and_its_success_closes() {
        let mut breaker = opened();
        assert_eq!(breaker.gate(at(2.0)), Gate::HalfOpen);
        assert!(breaker.dispatched());
        assert_eq!(breaker.gate(at(2.1)), Gate::Open, "a trial is under way");
        breaker.succeeded(false);
        assert_eq!(breaker.gate(at(2.2)), Gate::Open, "an old request's success says nothing");
        breaker.succeeded(true);
        assert_eq!(breaker.gate(at(2.3)), Gate::Closed);
    }

    #[test]
    fn each_failed_trial_doubles_the_wait_up_to_a_minute() {
        let mut breaker = opened();
        let (mut now, mut waits) = (2.0, Vec::new());
        for _ in 0..7 {
            assert_eq!(breaker.gate(at(now)), Gate::HalfOpen);
            breaker.dispatched();
            breaker.failed(FailureClass::Timeout, true, at(now));
            let mut wait = 0.0;
            while breaker.gate(at(now + wait)) != Gate::HalfOpen {
                wait += 1.0;
            }
            waits.push(wait);
            now += wait;
        }
        assert_eq!(waits, [4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
    }

    #[test]
    fn a_trial_without_a_verdict_leaves_room_for_the_next() {
        let mut breaker = opened();
        breaker.dispatched();
        breaker.failed(FailureClass::BackPressure, true, at(2.5));
        assert_eq!(breaker.gate(at(2.6)), Gate::HalfOpen);
        breaker.dispatched();
        breaker.released();
        assert_eq!(breaker.gate(at(2.7)), Gate::HalfOpen);
    }
}
