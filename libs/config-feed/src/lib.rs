//! How desired and observed state get out of telemetry: to every edge and router, within a
//! second, and standing when telemetry is gone.
//!
//! [`ConfigFeed`] is the port: everything now, then every change, then heartbeats. Two adapters
//! pass one suite of tests: [`LocalFeed`] in one process, [`GrpcFeed`] over a channel.
//!
//! | who | has | does |
//! | --- | --- | --- |
//! | telemetry | [`Hub`] | is told of documents, fleet and time; tells watchers; grants member leases |
//! | edge, router | [`Client`] | watches for ever, holds the last state, renews the member lease |
//!
//! Over a channel every call carries a fingerprint of the region's secret, and telemetry lets in
//! who has its own; what a member says of itself is checked before it is listed ([`Refusal`]).
//!
//! Documents carry revisions of the store they are from. A client that comes back names the last
//! one it has whole and is sent what is later; where that is not known any more, everything
//! (`Restart`, documents, `Synced`), and what it has is replaced in one step. The fleet is sent
//! whole at first and by changed backends then; readings of load go together once a second.
//! Heartbeats every 250 ms tell what a client should have by now.

mod client;
mod documents;
mod error;
mod event;
mod grpc;
mod hub;
mod local;
mod metrics;
mod observed;
mod port;
mod refusal;
mod roll;
mod view;
mod wire;

pub use client::{Client, ClientDeps, Feed, Staleness};
pub use documents::Documents;
pub use error::FeedError;
pub use event::{Document, Event, FleetChange, Heartbeat, Loads, Position};
pub use grpc::GrpcFeed;
pub use grpc::server::{ControlService, Guard};
pub use hub::{HEARTBEAT_EVERY, Hub};
pub use local::LocalFeed;
pub use metrics::{Metrics, Refusals};
pub use port::ConfigFeed;
pub use refusal::Refusal;

/// The kinds of documents that are carried. Join tokens are telemetry's own business.
pub const CARRIED: [&str; 5] = ["backends", "models", "tenants", "limits", "keys"];
