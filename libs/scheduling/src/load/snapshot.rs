//! What a choice reads of a book.

use domain::Moment;

use crate::SATURATED_SECONDS;

/// The part of a [`LoadBook`](super::LoadBook) that its answers about any later moment are made
/// of: small, and right until the book changes. Who asks a thousand ranks at once keeps these side
/// by side instead of going through a thousand books.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadSnapshot {
    pub(super) first_step_ends: Moment,
    /// Predicted prefill beyond the first step, in nanoseconds.
    pub(super) rest_nanos: u64,
    pub(super) latency_nanos: u64,
    /// The prefill of foreign requests that wait, and all foreign requests …
    pub(super) foreign_seconds: f64,
    pub(super) foreign_in_flight: u32,
    /// … up to this moment.
    pub(super) foreign_until: Moment,
    pub(super) in_flight: u32,
    pub(super) running: u32,
    /// Requests that run at once at most, as far as that is known.
    pub(super) ceiling: u32,
}

impl LoadSnapshot {
    /// Seconds until a request sent now would begin its prefill: [`Self::booked_seconds`] and
    /// the prefill of foreign requests that wait. Finite and ≥ 0.
    pub fn queue_delay_seconds(&self, now: Moment) -> f64 {
        self.booked_seconds(now) + self.foreign_seconds(now)
    }

    /// The prefill of foreign requests that wait. Finite and ≥ 0.
    #[inline]
    pub fn foreign_seconds(&self, now: Moment) -> f64 {
        if now > self.foreign_until { 0.0 } else { self.foreign_seconds }
    }

    /// Our own part of the queue delay: predicted prefill that is not finished, less the time
    /// already spent on it. Finite and ≥ 0.
    #[inline]
    pub fn booked_seconds(&self, now: Moment) -> f64 {
        let later = |from: Moment, nanos| Moment::from_nanos(from.as_nanos().saturating_add(nanos));
        let free = later(self.first_step_ends.max(now), self.rest_nanos);
        free.seconds_since(later(now, self.latency_nanos))
    }

    /// Requests booked and not ended.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Requests booked and not ended, and foreign ones.
    #[inline]
    pub fn all_in_flight(&self, now: Moment) -> u32 {
        let foreign = if now > self.foreign_until { 0 } else { self.foreign_in_flight };
        self.in_flight + foreign
    }

    /// Whether a request sent now would wait long, or has to wait until another ends: the queue is
    /// longer than [`SATURATED_SECONDS`], or as many requests are there as the engine runs at once.
    pub fn is_saturated(&self, now: Moment) -> bool {
        self.saturated(self.queue_delay_seconds(now), self.all_in_flight(now))
    }

    /// [`Self::is_saturated`] for who has asked for both already.
    #[inline]
    pub fn saturated(&self, queue_delay_seconds: f64, all_in_flight: u32) -> bool {
        queue_delay_seconds > SATURATED_SECONDS || all_in_flight >= self.ceiling
    }

    /// Requests past their prefill and not ended, as of the last change of the book.
    #[inline]
    pub fn running(&self) -> u32 {
        self.running
    }
}
