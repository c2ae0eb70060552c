//! The CPU time of the thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread so far.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Runs `call` and returns its CPU time beside its result.
pub(super) fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let begin = cpu_time();
    let result = call();
    (result, cpu_time() - begin)
}
