//! Log lines that others can cause, a few at a time.
//!
//! What a peer or an engine sends must not be able to fill a disk with lines. Everything that is
//! throttled is counted by a metric too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::Moment;

use crate::monotonic;

/// One more line may be written after so long.
const EVERY: Duration = Duration::from_secs(10);

/// Lines that may follow each other at once: faults that differ are seen.
const BURST: u32 = 10;

/// Lets lines of one kind through: ten at once, six a minute after that.
#[derive(Debug, Default)]
pub struct Throttle {
    /// When the lines that were let through would have been due, one every [`EVERY`], in
    /// nanoseconds (the generic cell rate algorithm).
    due: AtomicU64,
    held_back: AtomicU64,
}

impl Throttle {
    /// Whether a line may be written now; if so, how many were held back since the last one.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(monotonic())
    }

    fn pass_at(&self, now: Moment) -> Option<u64> {
        let slack = EVERY.saturating_mul(BURST - 1);
        let next = |due: u64| {
            let due = Moment::from_nanos(due).max(now);
            (due.since(now) <= slack).then(|| (due + EVERY).as_nanos())
        };
        if self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_err() {
            self.held_back.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.held_back.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_line_at_a_time_that_tells_how_many_were_held_back() {
        let (throttle, start) = (Throttle::default(), Moment::ZERO + EVERY);
        let passed = |now| (0..1000).filter_map(|_| throttle.pass_at(now)).collect::<Vec<_>>();
        assert_eq!(passed(start), vec![0; 10]);
        assert_eq!(passed(start + EVERY / 2), Vec::<u64>::new());
        assert_eq!(passed(start + EVERY), vec![1990]);
        assert_eq!(
            passed(start + EVERY * 1000).len(),
            10,
            "a long rest allows no more than at first"
        );
    }
}
