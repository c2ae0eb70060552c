//! How a process lives: it binds, runs supervised tasks, drains on a signal, and shows on an
//! admin port how it is.
//!
//! The order in a service's `main`: [`bind`] every port, build the services with a
//! [`TaskSpawner`], [`Lifecycle::run_until_signal`], [`Lifecycle::shutdown`] with a time limit.
//!
//! There are two kinds of task. Those of [`Lifecycle::spawner`] serve requests: a drain tells
//! them to finish and waits for them. Those of [`Lifecycle::background`] (the admin port) are
//! told only after that, since a process that drains must still be observable.

mod accept;
pub mod admin;
mod clock;
mod error;
mod http;
mod listen;
mod panics;
mod readiness;
mod shutdown;
mod tasks;
mod throttle;

pub use accept::{Acceptor, KEEPALIVE_INTERVAL, KEEPALIVE_RETRIES, KEEPALIVE_TIME};
/// Routes of a port for operators.
pub use axum::Router as AdminRoutes;
pub use clock::monotonic;
pub use error::LifecycleError;
pub use http::{ServeLimits, serve, serve_tls};
pub use listen::bind;
pub use panics::log_panics;
pub use readiness::Readiness;
pub use shutdown::{HangUps, Lifecycle, OnHangUp, ShutdownOutcome, Stop};
pub use tasks::{Drain, TaskHandle, TaskSpawner};
pub use throttle::Throttle;
