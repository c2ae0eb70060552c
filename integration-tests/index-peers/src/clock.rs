//! CPU time of threads.

use std::os::unix::thread::JoinHandleExt as _;
use std::thread::JoinHandle;
use std::time::Duration;

/// Reads the clock of one thread.
#[derive(Clone, Copy)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The calling thread's.
    pub fn own() -> Self {
        Self(libc::CLOCK_THREAD_CPUTIME_ID)
    }

    /// Another thread's.
    pub fn of<T>(thread: &JoinHandle<T>) -> Self {
        let mut id = 0;
        // SAFETY: the handle is alive, so the thread was not joined, and `id` is writable.
        let failed = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut id) };
        assert_eq!(failed, 0, "a running thread has a CPU clock");
        Self(id)
    }

    /// CPU time used so far.
    pub fn now(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable and the clock exists.
        let failed = unsafe { libc::clock_gettime(self.0, &mut time) };
        assert_eq!(failed, 0, "the clock of a running thread can be read");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// The cores this process may run on, as the kernel writes them.
pub fn allowed_cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.map_or_else(|| "unknown".to_owned(), |cores| cores.trim().to_owned())
}
