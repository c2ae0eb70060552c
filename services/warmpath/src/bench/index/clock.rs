//! The CPU time of the thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Memory that is touched before anything is measured, in MiB: more than any part needs.
const TOUCHED_MIB: usize = 2_048;

/// Touches memory and gives it back. On a virtual machine the host finds a page when it is touched
/// for the first time, and the time that takes counts as the thread's: up to six milliseconds for
/// one of two megabytes. What is touched here the kernel has at hand for later.
pub(super) fn touch_memory() {
    let touched: Vec<Vec<u8>> = (0..TOUCHED_MIB).map(|_| vec![1; 1 << 20]).collect();
    std::hint::black_box(&touched);
}

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
