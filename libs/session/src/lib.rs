//! The edge's end of sessions: the [`RoutingClient`](domain::RoutingClient) port over gRPC
//! streams to the routers of a region.
//!
//! A few streams go to each router of the member list, each over a connection of its own, and
//! connect again by themselves. A Route goes to the pool's owner; where that is another than was
//! thought, to the one that is named; and where nobody answers in time, the edge decides by what
//! it knows itself and tells a router later. [`replication::Holdings`] keeps what is held where:
//! what was lost on the way, or with a stream, is found by its audits.
//!
//! - [`RawConfig`], [`Config`]: the section `[routers]`
//! - [`Deps`], [`SessionClient`]: what it needs, what it gives
//! - `state`: leases, waiting Routes, own decisions: everything under one lock
//! - `ask`: one Route, from router to router
//! - `alone`: deciding without one
//! - `links`, `stream`: connections, and one stream from Hello to its end
//! - `heard`: what routers say
//! - `outbox`: what waits to be written, reports before Routes

mod alone;
mod ask;
mod client;
mod config;
mod heard;
mod links;
mod metrics;
mod outbox;
mod state;
mod stream;

pub use client::{Deps, SessionClient};
pub use config::{Config, RawConfig};
pub use metrics::Metrics;
