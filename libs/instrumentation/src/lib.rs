//! What a service shows of itself: JSON logs and the metrics registry.
//!
//! Logs go to **standard error**, one JSON object per line, so that standard output stays free
//! for what a command prints as its result. They pass through a bounded buffer that a thread of
//! its own empties: a reader that stalls costs log lines, which are counted, never requests.
//!
//! Each service makes its own [`Registry`] and hands it down; there is no global one.

mod buffer;
mod logs;
mod metrics;

pub use logs::{
    InstrumentationError, LogConfig, LogFilter, LogFormat, LogGuard, LogLevel, init_logs,
};
pub use metrics::{CountedIn, LATENCY_SECONDS, OVERHEAD_SECONDS, encode, register_build_info};
pub use prometheus::Registry;
