//! Telemetry: what is known of the backends.
//!
//! One supervised task per backend probes it, reads its metrics and its model list, compares its
//! tokenizer with the model folder, and notices when its engine restarted. What all of them see
//! is published as one [`domain::Fleet`], replaced whole whenever something changed.
//!
//! - [`Config`], [`RawConfig`], [`RawBackend`]: `[telemetry]` and `[[backends]]`
//! - [`Deps`], [`Service`]: what it needs, what it gives
//! - `prober`: the task of one backend; `health`: its state machine; `life`: restarts
//! - `parity`: our tokens against the engine's
//! - `publish`: many probers, one fleet
//! - `http_client`, `network`: bounded requests, the round trip

mod config;
mod error;
mod health;
mod http_client;
mod life;
mod metrics;
mod network;
mod parity;
mod prober;
mod publish;
mod service;
#[cfg(test)]
mod tests;

pub use config::{Config, RawBackend, RawConfig};
pub use error::Error;
pub use service::{Deps, Service};
