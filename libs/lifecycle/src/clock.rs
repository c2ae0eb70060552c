//! The clock of the services.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use domain::Moment;

/// How long before the first reading the epoch lies. A test's paused clock stands at the moment
/// its runtime was built, which may be before the first reading; without this it would read zero.
/// It also lets code subtract an interval from an early moment and still get one.
const EPOCH_LEAD: Duration = Duration::from_secs(3600);

/// Now, in nanoseconds since an hour before the first call in this process. It is tokio's clock:
/// in a test with paused time it stands still and moves with `tokio::time::advance`.
pub fn monotonic() -> Moment {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let epoch = *EPOCH.get_or_init(epoch);
    let elapsed = tokio::time::Instant::now().into_std().saturating_duration_since(epoch);
    Moment::ZERO + elapsed
}

#[expect(
    clippy::disallowed_methods,
    reason = "the epoch is taken once and from the real clock: a paused one belongs to one test"
)]
fn epoch() -> Instant {
    let now = Instant::now();
    now.checked_sub(EPOCH_LEAD).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_stands_still_and_moves_with_paused_time() {
        let before = monotonic();
        assert_eq!(monotonic(), before);
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(monotonic() - before, Duration::from_millis(1500));
    }

    #[test]
    fn it_works_outside_a_runtime_and_never_goes_back() {
        let before = monotonic();
        assert!(monotonic() >= before);
        assert!(before.as_secs_f64() > 1.0, "an early moment is still well past the epoch");
    }
}
