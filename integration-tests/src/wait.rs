//! Waiting for what other tasks are about to do: always for a condition, never for longer than a
//! limit.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// What the tests wait at most for something that normally takes milliseconds, on a machine that
/// is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `holds`, and returns how long that took.
///
/// # Panics
/// It does not hold within `limit`; `what` says what was waited for.
#[track_caller]
pub fn eventually<C, F>(
    limit: Duration,
    what: &'static str,
    mut holds: C,
) -> impl Future<Output = Duration>
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    let caller = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if holds().await {
                return started.elapsed();
            }
            assert!(started.elapsed() < limit, "not within {limit:?}: {what} ({caller})");
        }
    }
}
