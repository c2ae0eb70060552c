//! The port.

use domain::{BoxFuture, BoxStream};
use replication::{MemberList, Process, Renew};

use crate::{Event, FeedError, Position};

/// Telemetry as edges and routers see it. Both adapters pass one suite (`tests/conformance.rs`).
pub trait ConfigFeed: Send + Sync + 'static {
    /// What is later than `from`, then every change as it comes, and heartbeats. A reader that is
    /// too slow for the changes is sent the whole state again. The stream ends with an error, or
    /// when telemetry does; whoever wants to go on watches again from where it has come to.
    fn watch(&self, from: Position) -> BoxStream<'static, Result<Event, FeedError>>;

    /// Holds the caller's lease. The list, where the caller's is older.
    ///
    /// # Errors
    /// Telemetry is not in reach, or does not take the caller as a member.
    fn renew(&self, renew: Renew) -> BoxFuture<'_, Result<Option<MemberList>, FeedError>>;

    /// The caller stops, and says so.
    ///
    /// # Errors
    /// Telemetry is not in reach: the lease will end by itself.
    fn leave(&self, process: Process) -> BoxFuture<'_, Result<(), FeedError>>;
}
