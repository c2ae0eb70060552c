//! Behaviours of telemetry before scripted engines on loopback.

pub(crate) mod kit;
mod learning;
mod registry;
mod reload;
mod states;
