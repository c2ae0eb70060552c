//! What the benches of the index read: the thread's CPU time and the process's memory.

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

/// Memory of the process that is resident; 0 where the system does not tell.
pub(super) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
