//! Where a backend stands, by its probes: a pure state machine.

use domain::BackendState;

/// Failed probes in a row that take a ready backend out. One lost packet is not a death.
const DOWN_AFTER: u32 = 3;

/// Good probes in a row that a backend needs to come back: a crash loop often answers once.
const BACK_AFTER: u32 = 2;

/// The state and what led to it.
#[derive(Debug)]
pub(crate) struct Health {
    state: BackendState,
    in_a_row: u32,
    doubtful: bool,
}

/// What a probe means for the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As before.
    Unchanged,
    /// It may become ready, once everything else about it is known.
    Ripe,
    /// It is down now.
    WentDown,
    /// It is joining, and so many probes failed that somebody should look.
    Unheard,
}

impl Health {
    /// Goes on from what was known. What operators want of it is not seen here.
    pub(crate) fn new(state: BackendState) -> Self {
        Self { state, in_a_row: 0, doubtful: false }
    }

    pub(crate) fn state(&self) -> BackendState {
        self.state
    }

    /// Whether its last health probe failed. A metrics page proves less than a health probe, as
    /// the process that serves it may have lost its engine: in doubt only health probes count.
    pub(crate) fn doubtful(&self) -> bool {
        self.doubtful
    }

    /// A health probe succeeded.
    pub(crate) fn succeeded(&mut self) -> Verdict {
        self.doubtful = false;
        match self.state {
            BackendState::Ready => {
                self.in_a_row = 0;
                Verdict::Unchanged
            }
            BackendState::Joining => {
                self.in_a_row = 0;
                Verdict::Ripe
            }
            BackendState::Down | BackendState::Draining | BackendState::Maintenance => {
                self.in_a_row += 1;
                if self.in_a_row >= BACK_AFTER { Verdict::Ripe } else { Verdict::Unchanged }
            }
        }
    }

    /// A health probe failed.
    pub(crate) fn failed(&mut self) -> Verdict {
        self.doubtful = true;
        match self.state {
            BackendState::Ready => {
                self.in_a_row += 1;
                if self.in_a_row < DOWN_AFTER {
                    return Verdict::Unchanged;
                }
                self.state = BackendState::Down;
                self.in_a_row = 0;
                Verdict::WentDown
            }
            BackendState::Joining => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                if self.in_a_row == DOWN_AFTER { Verdict::Unheard } else { Verdict::Unchanged }
            }
            BackendState::Down | BackendState::Draining | BackendState::Maintenance => {
                self.in_a_row = 0;
                Verdict::Unchanged
            }
        }
    }

    /// Everything about it is known.
    pub(crate) fn promote(&mut self) {
        self.state = BackendState::Ready;
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_ripens_with_the_first_success_and_failures_keep_it_there() {
        let mut health = Health::new(BackendState::Joining);
        let told: Vec<_> = (0..10).map(|_| health.failed()).collect();
        assert_eq!(told[DOWN_AFTER as usize - 1], Verdict::Unheard, "and once alone");
        assert_eq!(told.iter().filter(|told| **told == Verdict::Unchanged).count(), 9);
        assert_eq!(health.state(), BackendState::Joining);
        assert_eq!(health.succeeded(), Verdict::Ripe);
        assert_eq!(health.state(), BackendState::Joining, "until everything is known");
        health.promote();
        assert_eq!(health.state(), BackendState::Ready);
    }

    #[test]
    fn three_failures_in_a_row_take_it_out() {
        let mut health = Health::new(BackendState::Ready);
        health.failed();
        health.failed();
        health.succeeded();
        health.failed();
        assert!(health.doubtful());
        assert_eq!(health.failed(), Verdict::Unchanged);
        assert_eq!(health.failed(), Verdict::WentDown);
        assert_eq!(health.state(), BackendState::Down);
    }

    #[test]
    fn two_successes_in_a_row_bring_it_back() {
        let mut health = Health::new(BackendState::Down);
        assert_eq!(health.succeeded(), Verdict::Unchanged);
        health.failed();
        assert_eq!(health.succeeded(), Verdict::Unchanged);
        assert_eq!(health.succeeded(), Verdict::Ripe);
        assert_eq!(health.succeeded(), Verdict::Ripe, "it stays ripe until promoted");
    }
}
