//! Requests at an engine that are not ours, or not as far as we thought, from its own counts.

use std::collections::VecDeque;
use std::time::Duration;

use domain::{LoadSample, Moment};

/// Changes within this time share one entry of the history.
const CELL: Duration = Duration::from_millis(10);
/// Entries kept: five seconds of uninterrupted change, more than a scrape may take.
const HISTORY: usize = 512;
/// A request is at the engine a little later than it is in the book, at both ends; the reading is
/// compared with the most that were booked within this time around it.
const SLACK: Duration = Duration::from_millis(20);
/// Weight of a new reading in the mean.
const GAIN: f64 = 0.3;
/// Differences up to this are requests on their way.
const TOLERANCE: f64 = 1.0;
/// A reading older than this says nothing of now.
const STALE: Duration = Duration::from_secs(10);

/// Our own counts from `at` until the next entry.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    in_flight: u32,
    prefilling: u32,
}

impl Counts {
    fn max(self, other: Counts) -> Counts {
        Counts {
            in_flight: self.in_flight.max(other.in_flight),
            prefilling: self.prefilling.max(other.prefilling),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    at: Moment,
    most: Counts,
    last: Counts,
}

/// What the engine counted beyond our own, smoothed. Negative while requests are on their way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Excess {
    at: Moment,
    requests: f64,
    waiting: f64,
}

impl Excess {
    /// Foreign requests, running or waiting.
    pub(super) fn requests(&self, now: Moment) -> f64 {
        if self.is_stale(now) { 0.0 } else { beyond_tolerance(self.requests) }
    }

    /// Requests that have not begun beyond those of ours that are thought to wait: foreign ones,
    /// and ours that were taken to be further than they are. Without the latter a rank whose
    /// prompts find less than was foretold would look idle with hundreds in line.
    pub(super) fn waiting(&self, now: Moment) -> f64 {
        if self.is_stale(now) { 0.0 } else { beyond_tolerance(self.waiting) }
    }

    /// Until when it says anything.
    pub(super) fn until(&self) -> Moment {
        self.at + STALE
    }

    fn is_stale(&self, now: Moment) -> bool {
        now > self.until()
    }
}

/// The estimate for one rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Foreign {
    history: VecDeque<Cell>,
    /// Something older than the history existed.
    truncated: bool,
    excess: Option<Excess>,
}

impl Foreign {
    /// Notes our own counts from `now` on.
    pub(super) fn record(&mut self, now: Moment, in_flight: u32, prefilling: u32) {
        let counts = Counts { in_flight, prefilling };
        if let Some(cell) = self.history.back_mut()
            && now < cell.at + CELL
        {
            cell.most = cell.most.max(counts);
            cell.last = counts;
            return;
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
            self.truncated = true;
        }
        self.history.push_back(Cell { at: now, most: counts, last: counts });
    }

    /// Compares a reading with our own counts at its time.
    pub(super) fn observe(&mut self, sample: &LoadSample) {
        let previous = self.excess;
        if previous.is_some_and(|e| e.at >= sample.at) {
            return;
        }
        let Some(ours) = self.most_around(sample.at) else { return };
        let seen = f64::from(sample.running) + f64::from(sample.waiting);
        let requests = seen - f64::from(ours.in_flight);
        let waiting = f64::from(sample.waiting) - f64::from(ours.prefilling);
        let mix = |old: f64, new: f64| old + GAIN * (new - old);
        self.excess = Some(match previous {
            Some(old) if sample.at - old.at <= STALE => Excess {
                at: sample.at,
                requests: mix(old.requests, requests),
                waiting: mix(old.waiting, waiting),
            },
            _ => Excess { at: sample.at, requests, waiting },
        });
    }

    /// What was found at the last reading, if it is more than requests on their way.
    pub(super) fn excess(&self) -> Option<Excess> {
        self.excess.filter(|excess| excess.requests.max(excess.waiting) > TOLERANCE)
    }

    /// The most we had within [`SLACK`] of `at`; `None` if that is forgotten.
    fn most_around(&self, at: Moment) -> Option<Counts> {
        let mut most = Counts::default();
        for cell in self.history.iter().rev() {
            // Later than the window: no matter.
            if cell.at > at + SLACK {
                continue;
            }
            // The first entry before the window holds at its beginning.
            if cell.at + CELL + SLACK <= at {
                return Some(most.max(cell.last));
            }
            most = most.max(cell.most);
        }
        (!self.truncated).then_some(most)
    }
}

fn beyond_tolerance(excess: f64) -> f64 {
    if excess > TOLERANCE { excess } else { 0.0 }
}
