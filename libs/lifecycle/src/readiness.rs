//! What a process still waits for before it should get traffic.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Drain;

/// Named conditions, all of which must hold. A cheap handle; clones share the conditions.
#[derive(Clone, Debug)]
pub struct Readiness {
    conditions: Arc<Mutex<BTreeMap<&'static str, bool>>>,
    drain: Drain,
}

impl Readiness {
    /// No conditions yet: ready until `drain` is signalled.
    pub fn new(drain: Drain) -> Self {
        Self { conditions: Arc::default(), drain }
    }

    /// Adds a condition that does not hold yet. One that is known keeps its state.
    pub fn require(&self, name: &'static str) {
        self.conditions.lock().entry(name).or_insert(false);
    }

    /// Says whether a condition holds.
    pub fn set(&self, name: &'static str, holds: bool) {
        self.conditions.lock().insert(name, holds);
    }

    /// The conditions that do not hold, by name.
    pub fn missing(&self) -> Vec<&'static str> {
        let conditions = self.conditions.lock();
        conditions.iter().filter(|(_, holds)| !**holds).map(|(name, _)| *name).collect()
    }

    /// Whether the process is on its way out.
    pub fn is_draining(&self) -> bool {
        self.drain.is_draining()
    }

    /// Whether the process should get traffic.
    pub fn is_ready(&self) -> bool {
        !self.is_draining() && self.missing().is_empty()
    }
}
