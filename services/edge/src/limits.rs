//! A tenant's limits: requests per minute and open requests.
//!
//! The rate is a GCRA: one atomic word holds the theoretical arrival time, check and
//! consumption are one compare-and-swap, and a refused request consumes nothing. A whole
//! minute's requests may come at once; from then on they come back one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use domain::Moment;

/// The span that the rate is counted over.
const MINUTE_NANOS: u64 = 60_000_000_000;

/// Requests per minute.
#[derive(Debug)]
pub(crate) struct RequestRate {
    limit: u32,
    /// Nanoseconds that one request costs.
    interval: u64,
    /// When the bucket will be full again, in nanoseconds of [`Moment`]; the past means full.
    full_at: AtomicU64,
}

/// Where a rate stands after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateState {
    /// Requests per minute.
    pub(crate) limit: u32,
    /// Requests that could be sent at once now.
    pub(crate) remaining: u32,
    /// Time until all of `limit` could be sent at once.
    pub(crate) reset: Duration,
}

/// A request over the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateExceeded {
    /// Where the rate stands.
    pub(crate) state: RateState,
    /// When the next request will be taken.
    pub(crate) retry_after: Duration,
}

impl RequestRate {
    /// `limit` must be at least 1.
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        Self { limit, interval: MINUTE_NANOS / u64::from(limit), full_at: AtomicU64::new(0) }
    }

    /// The same rate with another limit: requests that count against it now count on.
    pub(crate) fn with_limit(&self, limit: u32, now: Moment) -> Self {
        let changed = Self::new(limit);
        let owed = self.full_at.load(Ordering::Acquire).saturating_sub(now.as_nanos());
        let used = owed.div_ceil(self.interval).min(u64::from(changed.limit));
        let full_at = now.as_nanos() + used * changed.interval;
        changed.full_at.store(full_at, Ordering::Release);
        changed
    }

    /// Takes one request, or says when to come back.
    pub(crate) fn take(&self, now: Moment) -> Result<RateState, RateExceeded> {
        let now = now.as_nanos();
        let capacity = self.interval * u64::from(self.limit);
        let taken = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |full_at| {
            let next = full_at.max(now) + self.interval;
            (next - now <= capacity).then_some(next)
        });
        match taken {
            Ok(before) => Ok(self.state(before.max(now) + self.interval - now)),
            Err(full_at) => {
                let owed = full_at.saturating_sub(now);
                let wait = (owed + self.interval).saturating_sub(capacity);
                Err(RateExceeded {
                    state: self.state(owed),
                    retry_after: Duration::from_nanos(wait),
                })
            }
        }
    }

    fn state(&self, owed_nanos: u64) -> RateState {
        let used = owed_nanos.div_ceil(self.interval);
        let remaining = u64::from(self.limit).saturating_sub(used);
        RateState {
            limit: self.limit,
            remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
            reset: Duration::from_nanos(owed_nanos),
        }
    }
}

/// Open requests of one tenant. Nothing waits here: a request is taken or refused at once.
#[derive(Debug, Default)]
pub(crate) struct Concurrency {
    open: AtomicU32,
}

impl Concurrency {
    /// Opens one request, if fewer than `limit` are open; it closes when the permit is dropped,
    /// on whatever path.
    pub(crate) fn try_open(self: &Arc<Self>, limit: Option<u32>) -> Option<Permit> {
        let limit = limit.unwrap_or(u32::MAX);
        self.open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                (open < limit).then(|| open + 1)
            })
            .ok()
            .map(|_| Permit(Arc::clone(self)))
    }

    /// Requests open now.
    #[cfg(test)]
    pub(crate) fn open(&self) -> u32 {
        self.open.load(Ordering::Acquire)
    }
}

/// One open request.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Concurrency>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::from_secs_f64(seconds + 1000.0)
    }

    #[test]
    fn a_minutes_requests_may_come_at_once_and_then_come_back_one_by_one() {
        let rate = RequestRate::new(60);
        for left in (0..60).rev() {
            assert_eq!(rate.take(at(0.0)).unwrap().remaining, left);
        }
        let refused = rate.take(at(0.0)).unwrap_err();
        assert_eq!(refused.retry_after, Duration::from_secs(1));
        assert_eq!(refused.state.reset, Duration::from_secs(60));
        assert!(rate.take(at(0.999)).is_err());
        assert!(rate.take(at(1.0)).is_ok());
        assert!(rate.take(at(1.0)).is_err());
    }

    #[test]
    fn a_refused_request_consumes_nothing() {
        let rate = RequestRate::new(1);
        rate.take(at(0.0)).unwrap();
        for _ in 0..100 {
            assert!(rate.take(at(30.0)).is_err());
        }
        assert!(rate.take(at(60.0)).is_ok());
    }

    #[test]
    fn a_limit_that_does_not_divide_a_minute_still_gives_its_whole_burst() {
        let rate = RequestRate::new(7);
        for left in (0..7).rev() {
            assert_eq!(rate.take(at(0.0)).unwrap().remaining, left);
        }
        assert!(rate.take(at(0.0)).is_err());
    }

    #[test]
    fn a_burst_from_many_threads_never_exceeds_the_limit() {
        let rate = RequestRate::new(100);
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..100).filter(|_| rate.take(at(0.0)).is_ok()).count()))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(taken, 100);
    }

    #[test]
    fn permits_come_back_when_dropped() {
        let gate = Arc::<Concurrency>::default();
        let first = gate.try_open(Some(2)).unwrap();
        let _second = gate.try_open(Some(2)).unwrap();
        assert!(gate.try_open(Some(2)).is_none());
        drop(first);
        assert!(gate.try_open(Some(2)).is_some());
        assert_eq!(gate.open(), 1);
    }

    #[test]
    fn with_another_limit_what_was_used_counts_on() {
        let rate = RequestRate::new(60);
        for _ in 0..60 {
            rate.take(at(0.0)).unwrap();
        }
        let more = rate.with_limit(100, at(0.0));
        assert_eq!(more.take(at(0.0)).unwrap().remaining, 39);
        let fewer = more.with_limit(10, at(0.0));
        let refused = fewer.take(at(0.0)).unwrap_err();
        assert_eq!((refused.state.remaining, refused.retry_after), (0, Duration::from_secs(6)));
        assert_eq!(fewer.with_limit(10, at(60.0)).take(at(60.0)).unwrap().remaining, 9);
    }
}
