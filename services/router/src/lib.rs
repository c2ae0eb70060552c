//! The router: which backend rank a request goes to.
//!
//! One pool per model, each under one short lock: an index of who holds which prefix, a book of
//! what each rank still has to do, a fit of how fast it does it, a breaker that takes it out when
//! live requests fail there. A Route is answered at once; the booking it makes lives until its
//! closing report.
//!
//! - [`Config`], [`RawConfig`]: the `[router]` section
//! - [`Deps`], [`RegionDeps`], [`Service`]: what it needs, what it gives
//! - [`Router`]: pools by model; the in-process adapter of [`domain::RoutingClient`]
//! - `pool`: reconcile, decide, report
//! - `sessions`: what edges in other processes connect to
//! - `replica`: this router among others, which keep copies of its pools
//! - `breaker`: passive ejection, half-open trials
//! - `explain`: traces of recent decisions
//! - [`api`]: what the admin port shows
//! - `metrics`: all metric families

pub mod api;
mod breaker;
mod config;
mod error;
mod explain;
mod metrics;
mod pacing;
mod pool;
pub mod process;
mod replica;
mod router;
mod service;
mod sessions;
#[cfg(test)]
mod tests;

pub use config::{Config, RawConfig};
pub use error::Error;
pub use replica::RegionBus;
pub use router::Router;
pub use service::{Deps, RegionDeps, Service};
