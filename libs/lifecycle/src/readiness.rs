//! What a process still waits for before it should get traffic.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch::Receiver;

use crate::{Drain, TaskSpawner};

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

    /// Requires a condition that holds as long as `holds` says so of a watched value, from now on
    /// until nobody sends it any more.
    pub fn follow<T, F>(&self, spawner: &TaskSpawner, name: &'static str, of: Receiver<T>, holds: F)
    where
        T: Send + Sync + 'static,
        F: Fn(&T) -> bool + Send + 'static,
    {
        self.require(name);
        let (readiness, mut of) = (self.clone(), of);
        spawner.spawn("readiness", async move {
            loop {
                let is_held = holds(&of.borrow_and_update());
                readiness.set(name, is_held);
                if of.changed().await.is_err() {
                    return;
                }
            }
        });
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::watch;

    use super::*;
    use crate::Lifecycle;

    #[tokio::test]
    async fn a_condition_follows_a_watched_value_for_as_long_as_it_is_sent() {
        let lifecycle = Lifecycle::new();
        let readiness = Readiness::new(lifecycle.drain());
        let value = watch::Sender::new(0);
        readiness.follow(&lifecycle.spawner(), "large", value.subscribe(), |value| *value > 9);
        assert_eq!(readiness.missing(), ["large"], "from the beginning");
        for (next, is_ready) in [(10, true), (3, false), (12, true)] {
            value.send_replace(next);
            while readiness.is_ready() != is_ready {
                tokio::task::yield_now().await;
            }
        }
        drop(value);
        lifecycle.shutdown(Duration::from_secs(5)).await;
        assert_eq!(readiness.missing(), [""; 0], "what was said last stands");
    }
}
