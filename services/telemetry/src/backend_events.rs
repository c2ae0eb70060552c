//! What is seen of the backends, told over the bus: one event for each that comes, goes, or
//! changes its state, its incarnation or its URL.

use std::collections::BTreeMap;
use std::sync::Arc;

use bus::Bus;
use config_store::Timestamp;
use domain::{Backend, BackendId, Fleet};
use events::{BackendEvent, Region, encode};
use lifecycle::Drain;
use prometheus::{IntCounter, Registry};
use tokio::sync::watch;

use crate::Error;

/// The state that is told of a backend that is no longer there.
const REMOVED: &str = "removed";

/// Tells of every change of the fleet.
pub struct BackendEvents {
    bus: Arc<dyn Bus>,
    region: Region,
    fleet: watch::Receiver<Arc<Fleet>>,
    published: IntCounter,
    told: BTreeMap<BackendId, Arc<Backend>>,
}

impl BackendEvents {
    /// Tells over this bus. Nothing is told before [`BackendEvents::run`]; then all that is there
    /// is told of for the first time.
    ///
    /// # Errors
    /// The registry already holds its metric.
    pub fn new(
        registry: &Registry,
        bus: Arc<dyn Bus>,
        region: Region,
        fleet: watch::Receiver<Arc<Fleet>>,
    ) -> Result<Self, Error> {
        let published = IntCounter::new(
            "warmpath_telemetry_backend_events_total",
            "Events of backends that were handed to the bus.",
        )?;
        registry.register(Box::new(published.clone()))?;
        Ok(Self { bus, region, fleet, published, told: BTreeMap::new() })
    }

    /// Tells until the drain, or until there is no fleet any more.
    pub async fn run(mut self, drain: Drain) {
        loop {
            let fleet = self.fleet.borrow_and_update().clone();
            for event in self.changes(&fleet, Timestamp::now()) {
                let subject = self.region.backend(&event.backend);
                // What the bus does not take is lost, and counted there.
                if self.bus.publish(&subject, encode(&event)).is_ok() {
                    self.published.inc();
                }
            }
            tokio::select! {
                () = drain.signaled() => return,
                changed = self.fleet.changed() => if changed.is_err() { return },
            }
        }
    }

    /// What differs from what was told before.
    fn changes(&mut self, fleet: &Fleet, at: Timestamp) -> Vec<BackendEvent> {
        let now: BTreeMap<_, _> =
            fleet.backends.iter().map(|b| (b.id.clone(), b.clone())).collect();
        let before = std::mem::take(&mut self.told);
        let differs = |a: &Backend, b: &Backend| {
            (a.state, a.incarnation, &a.url) != (b.state, b.incarnation, &b.url)
        };
        let mut events = Vec::new();
        for (id, backend) in &now {
            let was = before.get(id);
            if was.is_none_or(|was| differs(was, backend)) {
                let was = was.map(|was| was.state.as_str().to_owned());
                events.push(self.event(backend, backend.state.as_str(), was, at));
            }
        }
        for gone in before.values().filter(|backend| !now.contains_key(&backend.id)) {
            events.push(self.event(gone, REMOVED, Some(gone.state.as_str().to_owned()), at));
        }
        self.told = now;
        events
    }

    fn event(
        &self,
        backend: &Backend,
        state: &str,
        before: Option<String>,
        at: Timestamp,
    ) -> BackendEvent {
        BackendEvent {
            at_ms: at.0,
            region: self.region.name().to_owned(),
            backend: backend.id.to_string(),
            incarnation: backend.incarnation.0,
            url: backend.url.to_string(),
            engine: backend.engine.as_str().to_owned(),
            state: state.to_owned(),
            before,
            models: backend.models.iter().map(|model| model.id.to_string()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bus::{Delivery, MemoryBus, Pattern, Room, Subscription};
    use domain::{BackendState, EngineKind, Incarnation};
    use events::decode;
    use futures_util::StreamExt;
    use lifecycle::Lifecycle;

    use super::*;

    fn backend(id: &str, state: BackendState, incarnation: u64) -> Arc<Backend> {
        Arc::new(Backend {
            id: id.into(),
            incarnation: Incarnation(incarnation),
            url: "http://127.0.0.1:1".into(),
            engine: EngineKind::Vllm,
            state,
            models: Vec::new(),
            ranks: Vec::new(),
            network: Duration::ZERO,
            credential: None,
        })
    }

    async fn next(heard: &mut Subscription) -> (String, String, Option<String>, u64) {
        let delivery = tokio::time::timeout(Duration::from_secs(20), heard.next()).await;
        let Some(Delivery::Message(message)) = delivery.expect("told at once") else {
            panic!("the bus lost a message")
        };
        let event: BackendEvent = decode(&message.payload).unwrap();
        assert_eq!(message.subject.as_str(), format!("warmpath.v1.eu.backends.{}", event.backend));
        (event.backend, event.state, event.before, event.incarnation)
    }

    #[tokio::test]
    async fn every_change_of_a_backend_is_told_once() {
        let bus = Arc::new(MemoryBus::new(bus::Metrics::default()));
        let pattern = Pattern::new("warmpath.v1.eu.backends.*").unwrap();
        let mut heard = bus.subscribe(pattern, Room::default()).await;
        let (joining, ready) = (BackendState::Joining, BackendState::Ready);
        let fleet = |backends: Vec<Arc<Backend>>| Arc::new(Fleet { revision: 1, backends });
        let seen = watch::Sender::new(fleet(vec![backend("a", joining, 1)]));
        let region = Region::new("eu").unwrap();
        let events = BackendEvents::new(&Registry::new(), bus, region, seen.subscribe()).unwrap();
        let lifecycle = Lifecycle::new();
        lifecycle.spawn("events", events.run(lifecycle.drain()));
        let told = |id: &str, state: &str, before: Option<&str>, incarnation| {
            (id.to_owned(), state.to_owned(), before.map(str::to_owned), incarnation)
        };
        assert_eq!(next(&mut heard).await, told("a", "joining", None, 1));
        seen.send_replace(fleet(vec![backend("a", ready, 1), backend("b", joining, 1)]));
        assert_eq!(next(&mut heard).await, told("a", "ready", Some("joining"), 1));
        assert_eq!(next(&mut heard).await, told("b", "joining", None, 1));
        seen.send_replace(fleet(vec![backend("a", ready, 2), backend("b", joining, 1)]));
        assert_eq!(next(&mut heard).await, told("a", "ready", Some("ready"), 2));
        seen.send_replace(fleet(vec![backend("a", ready, 2)]));
        assert_eq!(next(&mut heard).await, told("b", "removed", Some("joining"), 1));
        lifecycle.shutdown(Duration::from_secs(5)).await;
    }
}
