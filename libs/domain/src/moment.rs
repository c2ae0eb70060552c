//! Monotonic time as a value.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an epoch of the process's (or the simulator's) choosing. Only differences
/// mean anything, and only between moments of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Moment(u64);

impl Moment {
    /// The epoch itself.
    pub const ZERO: Moment = Moment(0);

    /// A moment `nanos` after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A moment `seconds` after the epoch; negative and non-finite values give the epoch.
    pub fn from_secs_f64(seconds: f64) -> Self {
        // `as` saturates and maps NaN to 0, which is the documented behaviour here.
        Self((seconds * 1e9) as u64)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the epoch.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time since `earlier`, zero if `earlier` is later.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Seconds since `earlier`, zero if `earlier` is later.
    pub fn seconds_since(self, earlier: Moment) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 / 1e9
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, d: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Moment {
    type Output = Duration;

    /// As [`Moment::since`].
    fn sub(self, earlier: Moment) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_never_goes_below_zero() {
        let (a, b) = (Moment::from_nanos(5), Moment::from_nanos(9));
        assert_eq!(a - b, Duration::ZERO);
        assert_eq!(b - a, Duration::from_nanos(4));
        assert_eq!(a.seconds_since(b), 0.0);
    }

    #[test]
    fn seconds_that_make_no_sense_are_the_epoch() {
        assert_eq!(Moment::from_secs_f64(-1.0), Moment::ZERO);
        assert_eq!(Moment::from_secs_f64(f64::NAN), Moment::ZERO);
    }
}
