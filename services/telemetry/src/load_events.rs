//! Readings of the engines' load, told over the bus for whoever listens: at most one a second for
//! each backend, with the state that it is in.
//!
//! Backends are looked through ten times a second, and each is told of when it has a new reading
//! and its second is over. So what a thousand engines say goes out evenly, as it was read, and how
//! often metrics are read does not matter.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bus::Bus;
use config_store::Timestamp;
use domain::{Backend, BackendId, Fleet, Moment, RankState};
use events::{LoadEvent, RankLoad, Region, encode};
use lifecycle::Drain;
use prometheus::{IntCounter, Registry};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::Error;

/// How often the backends are looked through.
const TICK: Duration = Duration::from_millis(100);

/// Between two samples of one backend, however often it is read.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Longest silence about a backend that gives no new readings: its state is told all the same.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);

/// Tells of every backend's load.
pub struct LoadEvents {
    bus: Arc<dyn Bus>,
    region: Region,
    fleet: watch::Receiver<Arc<Fleet>>,
    published: IntCounter,
    told: HashMap<BackendId, LastEvent>,
}

/// What was told last of a backend, and when.
struct LastEvent {
    at: Moment,
    backend: Arc<Backend>,
}

impl LoadEvents {
    /// Tells over this bus. Nothing is told before [`LoadEvents::run`].
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
            "warmpath_telemetry_load_events_total",
            "Samples of backends' load that were handed to the bus.",
        )?;
        registry.register(Box::new(published.clone()))?;
        Ok(Self { bus, region, fleet, published, told: HashMap::new() })
    }

    /// Tells until the drain, or until there is no fleet any more.
    pub async fn run(mut self, drain: Drain) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let status = self.bus.status();
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                _ = ticks.tick() => {}
            }
            if self.fleet.has_changed().is_err() {
                return;
            }
            if status.borrow().connected {
                self.tell(lifecycle::monotonic(), Timestamp::now());
            }
        }
    }

    fn tell(&mut self, now: Moment, at: Timestamp) {
        let fleet = self.fleet.borrow_and_update().clone();
        for backend in &fleet.backends {
            if !is_due(self.told.get(&backend.id), backend, now) {
                continue;
            }
            let event = self.event(backend, now, at);
            // What the bus does not take is lost, and counted there.
            if self.bus.publish(&self.region.load(&event.backend), encode(&event)).is_ok() {
                self.published.inc();
            }
            let told = LastEvent { at: now, backend: backend.clone() };
            self.told.insert(backend.id.clone(), told);
        }
        if self.told.len() > fleet.backends.len() {
            self.told.retain(|id, _| fleet.backend(id).is_some());
        }
    }

    fn event(&self, backend: &Backend, now: Moment, at: Timestamp) -> LoadEvent {
        LoadEvent {
            at_ms: at.0,
            region: self.region.name().to_owned(),
            backend: backend.id.to_string(),
            incarnation: backend.incarnation.0,
            state: backend.state.as_str().to_owned(),
            ranks: backend.ranks.iter().filter_map(|rank| load(rank, now)).collect(),
        }
    }
}

fn is_due(told: Option<&LastEvent>, backend: &Arc<Backend>, now: Moment) -> bool {
    let Some(told) = told else { return true };
    let silent = now - told.at;
    silent >= AT_LEAST_EVERY
        || (silent >= AT_MOST_EVERY
            && !Arc::ptr_eq(&told.backend, backend)
            && says_more(&told.backend, backend))
}

/// Whether there is a new reading, or another state or life.
fn says_more(before: &Backend, backend: &Backend) -> bool {
    let read = |rank: &RankState| rank.load.map(|load| load.at);
    (before.state, before.incarnation) != (backend.state, backend.incarnation)
        || !before.ranks.iter().map(read).eq(backend.ranks.iter().map(read))
}

/// A rank's newest reading, if it has one.
fn load(rank: &RankState, now: Moment) -> Option<RankLoad> {
    let load = rank.load?;
    Some(RankLoad {
        rank: rank.rank,
        age_ms: u64::try_from(now.since(load.at).as_millis()).unwrap_or(u64::MAX),
        running: load.running,
        waiting: load.waiting,
        // JSON has no number that is none.
        kv_usage: load.kv_usage.filter(|usage| usage.is_finite()),
        preemptions: load.preemptions,
        prefix_queries: load.prefix_cache.map(|(queries, _)| queries),
        prefix_hits: load.prefix_cache.map(|(_, hits)| hits),
    })
}

#[cfg(test)]
mod tests {
    use bus::{Delivery, MemoryBus, Pattern, Room, Subscription};
    use domain::{BackendState, EngineKind, Incarnation, LoadSample};
    use events::decode;
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    fn backend(id: &str, state: BackendState, read: Option<Moment>) -> Arc<Backend> {
        let load = read.map(|at| LoadSample {
            at,
            running: 3,
            waiting: 1,
            kv_usage: Some(0.25),
            preemptions: None,
            prefix_cache: Some((100, 80)),
            prefills: None,
        });
        Arc::new(Backend {
            id: id.into(),
            incarnation: Incarnation(7),
            url: "http://127.0.0.1:1".into(),
            engine: EngineKind::Vllm,
            state,
            models: Vec::new(),
            ranks: vec![RankState { rank: 0, cache: None, slots: None, load }],
            network: Duration::ZERO,
            credential: None,
        })
    }

    struct Bed {
        seen: watch::Sender<Arc<Fleet>>,
        events: LoadEvents,
        heard: Subscription,
    }

    impl Bed {
        async fn new() -> Self {
            let bus = Arc::new(MemoryBus::new(bus::Metrics::default()));
            let pattern = Pattern::new("warmpath.v1.eu.loads.*").unwrap();
            let heard = bus.subscribe(pattern, Room::default()).await;
            let seen = watch::Sender::new(Arc::new(Fleet::default()));
            let region = Region::new("eu").unwrap();
            let events = LoadEvents::new(&Registry::new(), bus, region, seen.subscribe()).unwrap();
            Self { seen, events, heard }
        }

        /// What is told at a moment of the backends as they are then.
        fn told(&mut self, now: Moment, backends: Vec<Arc<Backend>>) -> Vec<LoadEvent> {
            self.seen.send_replace(Arc::new(Fleet { revision: 1, backends }));
            self.events.tell(now, Timestamp(5));
            let mut told = Vec::new();
            while let Some(Some(Delivery::Message(message))) = self.heard.next().now_or_never() {
                let event: LoadEvent = decode(&message.payload).unwrap();
                let subject = format!("warmpath.v1.eu.loads.{}", event.backend);
                assert_eq!(message.subject.as_str(), subject);
                told.push(event);
            }
            told
        }
    }

    fn at(seconds: f64) -> Moment {
        Moment::ZERO + Duration::from_secs_f64(seconds)
    }

    #[tokio::test]
    async fn a_new_reading_is_told_once_and_at_most_once_a_second() {
        let mut bed = Bed::new().await;
        let ready = |seconds| vec![backend("a", BackendState::Ready, Some(at(seconds)))];
        let told = bed.told(at(1.5), ready(1.25));
        let expected = LoadEvent {
            at_ms: 5,
            region: "eu".to_owned(),
            backend: "a".to_owned(),
            incarnation: 7,
            state: "ready".to_owned(),
            ranks: vec![RankLoad {
                rank: 0,
                age_ms: 250,
                running: 3,
                waiting: 1,
                kv_usage: Some(0.25),
                preemptions: None,
                prefix_queries: Some(100),
                prefix_hits: Some(80),
            }],
        };
        assert_eq!(told, [expected]);
        // Read ten times a second, told once.
        for tenth in 1..10 {
            let now = 1.5 + f64::from(tenth) / 10.0;
            assert_eq!(bed.told(at(now), ready(now)), []);
        }
        assert_eq!(bed.told(at(2.5), ready(2.5)).len(), 1);
        // Nothing new to say.
        assert_eq!(bed.told(at(4.0), ready(2.5)), []);
    }

    #[tokio::test]
    async fn a_state_is_told_without_a_reading_and_a_backend_that_is_gone_is_forgotten() {
        let mut bed = Bed::new().await;
        let of = |state| vec![backend("a", state, None), backend("b", state, Some(at(0.0)))];
        assert_eq!(bed.told(at(1.0), of(BackendState::Joining)).len(), 2);
        let told = bed.told(at(2.0), of(BackendState::Down));
        assert_eq!(told.iter().map(|e| e.state.as_str()).collect::<Vec<_>>(), ["down", "down"]);
        assert_eq!((told[0].ranks.len(), told[1].ranks.len()), (0, 1));
        assert_eq!(bed.told(at(11.0), of(BackendState::Down)), []);
        assert_eq!(bed.told(at(12.0), of(BackendState::Down)).len(), 2, "it is still so");
        assert_eq!(bed.told(at(12.1), Vec::new()), []);
        assert!(bed.events.told.is_empty());
        assert_eq!(bed.told(at(12.2), of(BackendState::Down)).len(), 2, "they are new");
    }
}
