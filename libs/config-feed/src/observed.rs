//! The fleet as watchers were told it, and what they have to be told next.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{Backend, BackendId, Fleet, LoadSample, RankState};

use crate::{FleetChange, Loads};

/// Roughly so many bytes of backends go into one message: far below what a peer takes.
const PART_BYTES: usize = 1 << 20;

/// What was told of the fleet.
#[derive(Debug)]
pub(crate) struct Observed {
    start: u64,
    told: Option<Published>,
}

#[derive(Debug)]
struct Published {
    fleet: Arc<Fleet>,
    /// The revision that changed something beside loads.
    revision: u64,
    /// Backends by id, with the loads that were told.
    backends: BTreeMap<BackendId, Arc<Backend>>,
}

impl Observed {
    pub(crate) fn new(start: u64) -> Self {
        Self { start, told: None }
    }

    /// Start and revision for heartbeats; zeros while nothing is told.
    pub(crate) fn standing(&self) -> (u64, u64) {
        self.told.as_ref().map_or((0, 0), |told| (self.start, told.revision))
    }

    /// The fleet is another. Returns what has to be told at once: everything but loads.
    pub(crate) fn update(&mut self, fleet: &Arc<Fleet>) -> Vec<FleetChange> {
        let Some(told) = &mut self.told else {
            let backends = fleet.backends.iter().map(|b| (b.id.clone(), b.clone())).collect();
            self.told =
                Some(Published { fleet: fleet.clone(), revision: fleet.revision, backends });
            return self.whole();
        };
        told.fleet = fleet.clone();
        let differs = |b: &&Arc<Backend>| match told.backends.get(&b.id) {
            Some(before) => !Arc::ptr_eq(before, b) && !same_but_loads(before, b),
            None => true,
        };
        let changed: Vec<Arc<Backend>> = fleet.backends.iter().filter(differs).cloned().collect();
        // Ordered by id, as the told ones are.
        let present = |id: &BackendId| fleet.backends.binary_search_by(|b| b.id.cmp(id)).is_ok();
        let gone: Vec<BackendId> =
            told.backends.keys().filter(|id| !present(id)).cloned().collect();
        if changed.is_empty() && gone.is_empty() {
            return Vec::new();
        }
        gone.iter().for_each(|id| drop(told.backends.remove(id)));
        told.backends.extend(changed.iter().map(|b| (b.id.clone(), b.clone())));
        told.revision = fleet.revision;
        parts(self.start, fleet.revision, false, &changed, gone)
    }

    /// The loads that are another than when they were told last.
    pub(crate) fn take_loads(&mut self) -> Option<Loads> {
        let told = self.told.as_mut()?;
        let mut backends = Vec::new();
        for backend in &told.fleet.backends {
            match told.backends.get_mut(&backend.id) {
                Some(before) if !Arc::ptr_eq(before, backend) => {
                    *before = backend.clone();
                    let loads = backend.ranks.iter().filter_map(|r| Some((r.rank, r.load?)));
                    backends.push((backend.id.clone(), loads.collect()));
                }
                _ => {}
            }
        }
        let revision = told.fleet.revision;
        (!backends.is_empty()).then_some(Loads { start: self.start, revision, backends })
    }

    /// Everything, for a watcher that begins.
    pub(crate) fn whole(&self) -> Vec<FleetChange> {
        let Some(told) = &self.told else { return Vec::new() };
        parts(self.start, told.fleet.revision, true, &told.fleet.backends, Vec::new())
    }
}

/// Whether two readings of one backend differ in nothing but load.
fn same_but_loads(a: &Backend, b: &Backend) -> bool {
    let Backend { id, incarnation, url, engine, state, models, ranks, network, credential } = a;
    let rank = |(a, b): (&RankState, &RankState)| {
        a.rank == b.rank && a.cache == b.cache && a.slots == b.slots
    };
    *state == b.state
        && *incarnation == b.incarnation
        && *engine == b.engine
        && *network == b.network
        && *credential == b.credential
        && *id == b.id
        && *url == b.url
        && *models == b.models
        && ranks.len() == b.ranks.len()
        && ranks.iter().zip(&b.ranks).all(rank)
}

/// One change as messages of a bounded size.
fn parts(
    start: u64,
    revision: u64,
    whole: bool,
    changed: &[Arc<Backend>],
    removed: Vec<BackendId>,
) -> Vec<FleetChange> {
    let empty = || FleetChange {
        start,
        revision,
        whole,
        changed: Vec::new(),
        removed: Vec::new(),
        more: false,
    };
    let mut parts = vec![FleetChange { removed, ..empty() }];
    let mut bytes = 0;
    for backend in changed {
        let size = size(backend);
        if bytes > 0 && bytes + size > PART_BYTES {
            parts.push(empty());
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.changed.push(backend.clone());
        }
    }
    let last = parts.len() - 1;
    parts[..last].iter_mut().for_each(|part| part.more = true);
    parts
}

/// About as much as it takes on the wire.
fn size(backend: &Backend) -> usize {
    let models = backend.models.iter().map(|m| 64 + m.id.as_str().len() + m.listing.len());
    128 + models.sum::<usize>() + 64 * backend.ranks.len()
}

/// A backend with other loads.
pub(crate) fn with_loads(backend: &Backend, loads: &[(u16, LoadSample)]) -> Backend {
    let mut backend = backend.clone();
    for rank in &mut backend.ranks {
        if let Some((_, load)) = loads.iter().find(|(number, _)| *number == rank.rank) {
            rank.load = Some(*load);
        }
    }
    backend
}

#[cfg(test)]
mod tests;
