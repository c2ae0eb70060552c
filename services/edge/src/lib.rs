//! The edge: auth, limits, tokenising, streaming, failover.
//!
//! One request's way: route → tenant → limits → body → block keys → routing
//! decision → engine → the commit point → the client's body. The edge keeps no state that a
//! second one would need, and never chooses a backend by itself.
//!
//! - `server`, `stall`: client connections
//! - `api`, `endpoint`, `refusal`, `models`, `debug_headers`: requests and the gateway's answers
//! - `access`, `auth`, `tenant`, `limits`: who asks, and how much
//! - `rules`, `reload`: what the config file says of requests, and how that changes
//! - `prepare`, `keys`, `fleet`, `payload`: from a body to block keys, and what is sent
//! - `aliases`, `guard`, `terms`: other names for models, fields that are the operator's, limits of
//!   single routes and models
//! - `forward`, `lease`: attempts, each with its booking
//! - `owners`, `lookup`: responses that an engine keeps, and requests about them
//! - `upstream`: the HTTP client towards the engines
//! - `exchange`, `response`, `timer`: an engine's answer on its way to the client
//! - `answer`: the keys of the blocks that an answer filled
//! - `headers`: what passes between the two sides
//! - `metrics`, `record`: what is counted, and the one log line per request
//! - `trace`: the spans of a request

mod access;
mod aliases;
mod answer;
mod api;
mod auth;
mod config;
mod debug_headers;
mod endpoint;
mod engine_keys;
mod error;
mod exchange;
mod fleet;
mod forward;
mod gateway;
mod guard;
mod headers;
mod keys;
mod lease;
mod limits;
mod lookup;
mod memory;
mod metrics;
mod models;
mod owners;
mod payload;
mod prepare;
pub mod process;
mod record;
mod refusal;
mod reload;
mod response;
mod retries;
mod rules;
mod server;
mod service;
mod stall;
mod tenant;
mod terms;
mod timer;
mod trace;
mod upstream;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use config::{
    Config, Keys, OnStale, RawAlias, RawAuth, RawConfig, RawKey, RawTenant, RawTerms, RawTimeouts,
};
pub use error::Error;
pub use guard::{Policy, RawFields};
pub use reload::Reload;
pub use retries::RawRetryBudget;
pub use service::{Deps, Service};
pub use traces::RawConfig as RawTraces;
