//! What a client makes of events: pure, and the same for both adapters.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{Backend, BackendId, Fleet};
use replication::MemberList;

use crate::observed::with_loads;
use crate::{Documents, Event, FleetChange, Heartbeat, Loads, Position};

/// The state as it was told.
#[derive(Debug, Default)]
pub(crate) struct View {
    documents: Documents,
    /// What a restart has sent so far.
    anew: Option<Documents>,
    backends: BTreeMap<BackendId, Arc<Backend>>,
    /// Parts of a change that is not complete.
    parts: Vec<Arc<FleetChange>>,
    /// Start and revision of telemetry that `backends` are of.
    standing: (u64, u64),
    /// Our own count: it grows over restarts of telemetry.
    revision: u64,
}

/// What an event has changed.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Changed {
    pub(crate) documents: bool,
    pub(crate) fleet: bool,
    pub(crate) members: Option<MemberList>,
    /// Documents that could not be read.
    pub(crate) undecoded: u64,
    /// Telemetry has more than we were sent: it has to be asked again.
    pub(crate) behind: bool,
}

impl Changed {
    /// Both, one after the other.
    pub(crate) fn and(&mut self, later: Changed) {
        self.documents |= later.documents;
        self.fleet |= later.fleet;
        self.members = later.members.or(self.members.take());
        self.undecoded += later.undecoded;
        self.behind = later.behind;
    }
}

impl View {
    /// What we have of the desired state, for the next watch.
    pub(crate) fn position(&self) -> Position {
        self.documents.position.clone()
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.documents
    }

    /// The fleet as it is now.
    pub(crate) fn fleet(&self) -> Fleet {
        Fleet { revision: self.revision, backends: self.backends.values().cloned().collect() }
    }

    /// A new watch begins: what an earlier one has not finished is void.
    pub(crate) fn begin(&mut self) {
        self.anew = None;
        self.parts.clear();
    }

    /// Takes over an event.
    pub(crate) fn apply(&mut self, event: Event) -> Changed {
        let mut changed = Changed::default();
        match event {
            Event::Restart => self.anew = Some(Documents::default()),
            Event::Document(document) => {
                let into = self.anew.as_mut().unwrap_or(&mut self.documents);
                if into.apply(&document).is_err() {
                    changed.undecoded = 1;
                    tracing::warn!(
                        document.kind = &*document.kind,
                        document.id = &*document.id,
                        "a document cannot be read and counts as deleted",
                    );
                }
                changed.documents = self.anew.is_none();
            }
            Event::Synced(position) => {
                if let Some(anew) = self.anew.take() {
                    self.documents = anew;
                }
                self.documents.position = position;
                changed.documents = true;
            }
            Event::Fleet(change) => changed.fleet = self.fleet_change(change),
            Event::Loads(loads) => changed.fleet = self.loads(&loads),
            Event::Members(list) => changed.members = Some(list),
            Event::Heartbeat(heartbeat) => changed.behind = self.is_behind(&heartbeat),
        }
        changed
    }

    fn fleet_change(&mut self, change: Arc<FleetChange>) -> bool {
        let of_another = self.parts.first().is_some_and(|first| {
            (first.start, first.revision) != (change.start, change.revision) || change.whole
        });
        if of_another {
            self.parts.clear();
        }
        let more = change.more;
        self.parts.push(change);
        if more {
            return false;
        }
        let parts = std::mem::take(&mut self.parts);
        let Some(first) = parts.first() else { return false };
        // A change to a state that we do not have: the next heartbeat will show that.
        if !first.whole && first.start != self.standing.0 {
            return false;
        }
        let before = if first.whole { std::mem::take(&mut self.backends) } else { BTreeMap::new() };
        for part in &parts {
            self.backends.extend(part.changed.iter().map(|b| (b.id.clone(), b.clone())));
            part.removed.iter().for_each(|id| drop(self.backends.remove(id)));
        }
        self.standing = (first.start, first.revision);
        let same = first.whole && self.revision > 0 && self.backends == before;
        self.revision += u64::from(!same);
        !same
    }

    fn loads(&mut self, loads: &Loads) -> bool {
        if loads.start != self.standing.0 {
            return false;
        }
        for (id, ranks) in &loads.backends {
            if let Some(backend) = self.backends.get_mut(id) {
                *backend = Arc::new(with_loads(backend, ranks));
            }
        }
        self.revision += 1;
        true
    }

    fn is_behind(&self, heartbeat: &Heartbeat) -> bool {
        let Heartbeat { position, start, fleet_revision, .. } = heartbeat;
        let ours = &self.documents.position;
        let documents = !position.store.is_empty()
            && (ours.store != position.store || ours.revision < position.revision);
        let fleet = *start > 0 && (self.standing.0 != *start || self.standing.1 < *fleet_revision);
        documents || fleet
    }
}

#[cfg(test)]
mod tests;
