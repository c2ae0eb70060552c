//! Telemetry: what is known of the backends.
//!
//! Which backends there are, the config file and the store say; they come, are drained and go
//! while it runs. One supervised task per backend probes it, reads its metrics and its
//! model list, compares its tokenizer with the model folder, and notices when its engine
//! restarted. What all of them see is published as one [`domain::Fleet`], replaced whole whenever
//! something changed.
//!
//! - [`Config`], [`RawConfig`], [`RawBackend`]: `[telemetry]` and `[[backends]]`
//! - [`Deps`], [`Service`]: what it needs, what it gives
//! - [`FileBackends`]: names and addresses that no document can have
//! - `registry`: what should be there; `supervisor`: a prober for each, and no other
//! - `prober`: the task of one backend; `health`: its state machine; `life`: restarts
//! - `parity`: our tokens against the engine's
//! - [`admin`]: what operators want of the fleet, as an API of its own
//! - [`announce`]: engines that announce themselves over the bus
//! - [`backend_events`], [`load_events`]: what is seen of the backends, told over the bus
//! - `publish`: many probers, one fleet; `feed`: what edges and routers are told
//! - `http_client`, `network`: bounded requests, the round trip

pub mod admin;
pub mod announce;
pub mod backend_events;
mod claims;
mod config;
mod error;
mod feed;
mod health;
mod http_client;
mod life;
pub mod load_events;
mod metrics;
mod network;
mod parity;
mod prober;
pub mod process;
mod publish;
mod registry;
mod service;
mod supervisor;
#[cfg(test)]
mod tests;

pub use claims::FileBackends;
pub use config::{Config, RawBackend, RawConfig};
pub use error::Error;
pub use service::{Deps, Reload, Service};
