//! When booked prefills are taken to start.

use domain::{LeaseId, Moment};

use super::LoadBook;
use crate::fit::STEP_TOKENS;

/// Why a prefill is taken to have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Its time has come, if there is room for it.
    Predicted,
    /// It has finished, or seems to have: see [the book](super).
    Finished,
}

impl LoadBook {
    /// From when on [`Self::start_due`] has something to do, if the book does not change until
    /// then; `None` for never. A call before that changes nothing.
    pub fn next_due(&self) -> Option<Moment> {
        if self.waits_for_room || !self.overdue_starts.is_empty() {
            return Some(Moment::ZERO);
        }
        let front = self.queue.front().filter(|front| !front.streaming);
        let closes = front.map(|front| self.since.max(front.arrives) + front.predicted);
        let (mut ends, mut ahead_tokens) = (self.since, 0_u32);
        let mut starts = None;
        for prefill in &self.queue {
            let begins = ends.max(prefill.arrives);
            if ahead_tokens >= STEP_TOKENS {
                break;
            }
            if !prefill.start_told {
                starts = Some(begins);
                break;
            }
            ends = begins + prefill.predicted;
            ahead_tokens = ahead_tokens.saturating_add(prefill.step_tokens);
        }
        closes.into_iter().chain(starts).chain(self.overtaken.until()).min()
    }

    /// Hands out the leases whose prefill should have started by `now` and were not handed out
    /// before, in order. `start` says whether the engine has room for it. If not, it and those
    /// behind it are tried again next time, and what is measured meanwhile is no sample. What is
    /// seen to have finished did start, whatever is answered. Every lease that is not ended first
    /// is started exactly once.
    pub fn start_due(&mut self, now: Moment, mut start: impl FnMut(LeaseId, Due) -> bool) {
        self.settle(now);
        for lease in std::mem::take(&mut self.overdue_starts) {
            start(lease, Due::Finished);
        }
        // What had no room until now begins now.
        let mut ends = if self.waits_for_room { now } else { self.since };
        let (mut ahead_tokens, mut no_room) = (0, false);
        for prefill in &mut self.queue {
            let begins = ends.max(prefill.arrives);
            if begins > now || ahead_tokens >= STEP_TOKENS {
                break;
            }
            if !prefill.start_told {
                if !start(prefill.lease, Due::Predicted) {
                    no_room = true;
                    break;
                }
                prefill.start_told = true;
            }
            ends = begins + prefill.predicted;
            ahead_tokens = ahead_tokens.saturating_add(prefill.step_tokens);
        }
        self.hold_back(no_room, now);
    }

    /// While the front of the queue waits for room, nothing is computed.
    fn hold_back(&mut self, no_room: bool, now: Moment) {
        if no_room {
            self.span = None;
            self.line_ends = self.queue.back().map(|last| last.lease);
        }
        let waits = no_room && self.queue.front().is_some_and(|front| !front.start_told);
        if waits || self.waits_for_room {
            self.since = self.since.max(now);
            self.plan_first_step();
        }
        self.waits_for_room = waits;
    }
}
