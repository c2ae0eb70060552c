//! What a choice reads of a book.

use domain::Moment;

use super::arrivals::{Arrivals, Fading};
use super::foreign::Excess;

/// The part of a [`LoadBook`](super::LoadBook) that its answers about any later moment are made
/// of: small, and right until the book changes. Who asks a thousand ranks at once keeps these side
/// by side instead of going through a thousand books.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadSnapshot {
    pub(super) first_step_ends: Moment,
    /// Predicted prefill beyond the first step, in nanoseconds.
    pub(super) rest_nanos: u64,
    pub(super) latency_nanos: u64,
    pub(super) mean_prefill_seconds: f64,
    pub(super) arrivals: Arrivals,
    pub(super) foreign: Option<Excess>,
    pub(super) in_flight: u32,
    pub(super) running: u32,
}

impl LoadSnapshot {
    /// Seconds until a request sent now would begin its prefill: [`Self::booked_seconds`] and
    /// the prefill of foreign requests that wait. Finite and ≥ 0.
    pub fn queue_delay_seconds(&self, now: Moment) -> f64 {
        self.booked_seconds(now) + self.foreign_seconds(now)
    }

    /// The prefill of foreign requests that wait. Finite and ≥ 0.
    pub fn foreign_seconds(&self, now: Moment) -> f64 {
        self.foreign.map_or(0.0, |foreign| foreign.waiting(now) * self.mean_prefill_seconds)
    }

    /// Our own part of the queue delay: predicted prefill that is not finished, less the time
    /// already spent on it. Finite and ≥ 0.
    pub fn booked_seconds(&self, now: Moment) -> f64 {
        let later = |from: Moment, nanos| Moment::from_nanos(from.as_nanos().saturating_add(nanos));
        let free = later(self.first_step_ends.max(now), self.rest_nanos);
        free.seconds_since(later(now, self.latency_nanos))
    }

    /// Requests booked per second, averaged over the last ten or so. Finite and ≥ 0.
    pub fn arrivals_per_second(&self, fading: &mut Fading) -> f64 {
        self.arrivals.per_second(fading)
    }

    /// Requests at the engine that are not ours, smoothed; 0 if there is at most one, or if the
    /// last reading is older than ten seconds.
    pub fn foreign_requests(&self, now: Moment) -> f64 {
        self.foreign.map_or(0.0, |foreign| foreign.requests(now))
    }

    /// Requests booked and not ended.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Requests booked and not ended, and foreign ones.
    pub fn all_in_flight(&self, now: Moment) -> u32 {
        let foreign = self.foreign.map_or(0, |foreign| foreign.requests(now).round() as u32);
        self.in_flight + foreign
    }

    /// Requests past their prefill and not ended, as of the last change of the book.
    pub fn running(&self) -> u32 {
        self.running
    }
}
