//! What can go wrong at the start of a process.

use std::io;
use std::net::SocketAddr;

/// A process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// A port cannot be listened on.
    #[error("cannot listen on {address}: {hint}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What is in the way and what to do.
        hint: String,
        /// The system's own error.
        source: io::Error,
    },
    /// The handlers of SIGTERM and SIGINT cannot be installed.
    #[error("signals cannot be handled: {0}")]
    Signals(#[source] io::Error),
    /// A metric clashes with one that is registered already.
    #[error("a metric cannot be registered: {0}")]
    Metric(#[from] prometheus::Error),
}
