//! The observed state of all backends as one value, published when something changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{Backend, BackendId, Fleet};
use lifecycle::Drain;
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::{Notify, watch};

/// Changes within so long of a publication go out together. A thousand backends whose load is
/// read every second would otherwise make a thousand fleets of a thousand.
const GATHER: Duration = Duration::from_millis(50);

/// Where the probers of all backends leave what they saw.
pub(crate) struct Publisher {
    backends: Mutex<BTreeMap<BackendId, Arc<Backend>>>,
    changed: Notify,
    fleet: watch::Sender<Arc<Fleet>>,
    revision: IntGauge,
}

impl Publisher {
    /// Begins with these, at revision 1.
    pub(crate) fn new(backends: Vec<Backend>, revision: IntGauge) -> Self {
        let publisher = Self {
            backends: Mutex::new(
                backends.into_iter().map(|b| (b.id.clone(), Arc::new(b))).collect(),
            ),
            changed: Notify::new(),
            fleet: watch::Sender::new(Arc::new(Fleet::default())),
            revision,
        };
        publisher.publish();
        publisher
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Fleet>> {
        self.fleet.subscribe()
    }

    /// What was seen of a backend last.
    pub(crate) fn last(&self, id: &BackendId) -> Option<Arc<Backend>> {
        self.backends.lock().get(id).cloned()
    }

    /// A backend as it is now. Nothing happens if that is as it was.
    pub(crate) fn update(&self, backend: Backend) {
        {
            let mut backends = self.backends.lock();
            if backends.get(&backend.id).is_some_and(|before| **before == backend) {
                return;
            }
            backends.insert(backend.id.clone(), Arc::new(backend));
        }
        self.changed.notify_one();
    }

    /// Publishes changes until the drain.
    pub(crate) async fn run(&self, drain: &Drain) {
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = self.changed.notified() => self.publish(),
            }
            tokio::select! {
                () = drain.signaled() => return,
                () = tokio::time::sleep(GATHER) => {}
            }
        }
    }

    fn publish(&self) {
        let backends: Vec<Arc<Backend>> = self.backends.lock().values().cloned().collect();
        self.fleet.send_modify(|fleet| {
            *fleet = Arc::new(Fleet { revision: fleet.revision + 1, backends });
            self.revision.set(i64::try_from(fleet.revision).unwrap_or(i64::MAX));
        });
    }
}

#[cfg(test)]
mod tests {
    use domain::{BackendState, EngineKind, Incarnation};
    use lifecycle::Lifecycle;

    use super::*;

    fn backend(id: &str, state: BackendState) -> Backend {
        Backend {
            id: id.into(),
            incarnation: Incarnation(1),
            url: "http://127.0.0.1:1".into(),
            engine: EngineKind::Other,
            state,
            models: Vec::new(),
            ranks: Vec::new(),
            network: Duration::ZERO,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_changes_are_published_and_those_of_a_moment_together() {
        let names = ["c", "a", "b"];
        let joining = names.map(|n| backend(n, BackendState::Joining));
        let revision = IntGauge::new("revision", "x").expect("a valid name");
        let publisher = Arc::new(Publisher::new(joining.to_vec(), revision.clone()));
        let mut fleet = publisher.subscribe();
        assert_eq!(fleet.borrow_and_update().revision, 1);
        let ids: Vec<String> = fleet.borrow().backends.iter().map(|b| b.id.to_string()).collect();
        assert_eq!(ids, ["a", "b", "c"]);

        let lifecycle = Lifecycle::new();
        let (shared, drain) = (publisher.clone(), lifecycle.drain());
        lifecycle.spawn("publisher", async move { shared.run(&drain).await });
        for same in joining {
            publisher.update(same);
        }
        let nothing = tokio::time::timeout(GATHER * 10, fleet.changed()).await;
        assert!(nothing.is_err(), "nothing changed");

        for name in names {
            publisher.update(backend(name, BackendState::Ready));
        }
        fleet.changed().await.expect("the publisher lives");
        let seen = fleet.borrow_and_update().clone();
        assert_eq!(seen.revision, 2);
        assert!(seen.backends.iter().all(|b| b.state == BackendState::Ready));
        assert_eq!(revision.get(), 2);
        lifecycle.shutdown(Duration::from_secs(1)).await;
    }
}
