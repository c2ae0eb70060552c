//! The wire between the services: one protobuf package for each conversation, with its version
//! in its name, and the conversions between its messages and the types of `domain` and
//! `replication`. No logic.
//!
//! Code is made from the `.proto` files at build time. A field that is unknown is skipped, a
//! field that is absent has its default; what an older part would misread is a new version of
//! the package.

mod convert;

pub use convert::{Asked, Decided, MAX_NAME_BYTES, Reported, What, WireError};

/// What all packages share: ids, processes, epochs.
pub mod common {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("warmpath.common.v1");
    }
}

/// Edge and router: sessions.
pub mod routing {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("warmpath.routing.v1");
    }
}

/// Routers among each other: the states of pools.
pub mod replication {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, clippy::all)]
    pub mod v1 {
        tonic::include_proto!("warmpath.replication.v1");
    }
}

/// Telemetry and all others: members, desired and observed state.
pub mod control;
