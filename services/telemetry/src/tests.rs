//! Behaviours of telemetry before scripted engines on loopback.

mod kit;
mod learning;
mod states;
