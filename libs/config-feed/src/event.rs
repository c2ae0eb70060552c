//! What watchers are told.

use std::sync::Arc;

use bytes::Bytes;
use domain::{Backend, BackendId, LoadSample};
use replication::{Epoch, MemberList};

/// How far a watcher has come in the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The store that the revision is of; empty for a watcher that has nothing.
    pub store: Arc<str>,
    /// The last revision that the watcher has whole.
    pub revision: u64,
}

/// One thing that a watcher is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The desired state follows from its beginning; what the watcher has is replaced by it at
    /// the next [`Event::Synced`].
    Restart,
    /// A document's newest state.
    Document(Arc<Document>),
    /// Everything up to here was sent.
    Synced(Position),
    /// The fleet, or what changed in it.
    Fleet(Arc<FleetChange>),
    /// Readings of load.
    Loads(Arc<Loads>),
    /// The services of the region.
    Members(MemberList),
    /// What the watcher should have by now.
    Heartbeat(Heartbeat),
}

/// A document of the desired state, or its deletion.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// `backends`, `tenants`, `keys`, …
    pub kind: Arc<str>,
    /// Its name.
    pub id: Arc<str>,
    /// Which change of the store it is.
    pub revision: u64,
    /// Major and minor number of its form.
    pub schema: (u16, u16),
    /// JSON; `None` for a deletion.
    pub json: Option<Bytes>,
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Documents hold hashes of keys: they do not print by the way.
        let deleted = if self.json.is_none() { " deleted" } else { "" };
        write!(f, "{}/{}@{}{deleted}", self.kind, self.id, self.revision)
    }
}

/// Backends that differ from what was told before.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetChange {
    /// Which start of telemetry, in milliseconds since 1970: revisions of different starts are
    /// not comparable.
    pub start: u64,
    /// The fleet's revision.
    pub revision: u64,
    /// Whether `changed` is all there is.
    pub whole: bool,
    /// Backends that are new or another.
    pub changed: Vec<Arc<Backend>>,
    /// Backends that are gone.
    pub removed: Vec<BackendId>,
    /// Further parts of the same revision follow, and only with the last one it counts.
    pub more: bool,
}

/// Backends of which nothing but the load is another.
#[derive(Clone, Debug, PartialEq)]
pub struct Loads {
    /// As in [`FleetChange`].
    pub start: u64,
    /// The fleet's revision.
    pub revision: u64,
    /// Readings of each rank, by rank number.
    pub backends: Vec<(BackendId, Vec<(u16, LoadSample)>)>,
}

/// What a watcher should have by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The desired state.
    pub position: Position,
    /// The start that the fleet is of; 0 while nothing is told of it.
    pub start: u64,
    /// The fleet's revision, loads apart.
    pub fleet_revision: u64,
    /// That of the member list.
    pub epoch: Epoch,
}
