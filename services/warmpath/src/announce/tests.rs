//! An engine's life as it announces it, with telemetry's side on the same bus.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Delivery, MemoryBus, Pattern, Room, Status, Subject, Subscription};
use bytes::Bytes;
use config_store::typed::{self, Signature};
use config_store::{ConfigStore, Limits, MemoryStore, Timestamp};
use credentials::{JoinKey, MintedToken};
use domain::desired::{Backend, JoinToken};
use domain::{BoxFuture, Fleet};
use events::{Answer, Region, Verdict, decode};
use futures_util::StreamExt;
use lifecycle::Lifecycle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::announcer::{Announcer, Farewell, Spec};
use crate::double::{Double, DoubleHandle};

/// What is waited at most for something that normally takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_engine_joins_and_its_farewell_ends_when_it_is_out_of_the_fleet() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let double = Double::builder().spawn(listener).unwrap();
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(bus::Metrics::default()));
    let store = Arc::new(MemoryStore::new(Limits::default()).unwrap());
    let region = Region::new("default").unwrap();
    let minted = MintedToken::generate("rack-1").unwrap();
    let token = JoinToken {
        id: "rack-1".to_owned(),
        public_key: minted.public_key_hex().to_owned(),
        model: None,
        addresses: Vec::new(),
        expires_at_ms: Timestamp::now().0 + 600_000,
        unknown: Default::default(),
    };
    let by = Signature { author: "test".into(), at: Timestamp(1) };
    store.commit(typed::create(&token, by).unwrap()).await.unwrap();
    let fleet = watch::Sender::new(Arc::new(Fleet::default()));
    let deps = telemetry::announce::Deps {
        registry: instrumentation::Registry::new(),
        bus: bus.clone(),
        region: region.clone(),
        store: store.clone(),
        fleet: fleet.subscribe(),
        file: telemetry::FileBackends::default(),
    };
    let (telemetry, engine) = (Lifecycle::new(), Lifecycle::new());
    telemetry.spawn("announcements", deps.build().unwrap().run(telemetry.drain()));
    let all = Pattern::new("warmpath.v1.default.answers.>").unwrap();
    let mut answers = bus.subscribe(all, Room::default()).await;

    let url = double.url().trim_end_matches('/').to_owned();
    let key = JoinKey::parse(minted.secret_text()).unwrap();
    let spec =
        Spec { backend: "gpu-0".to_owned(), url: url.clone(), engine: None, credential: None };
    let announcer = Announcer::new(bus.clone(), region, key, spec, url.clone()).unwrap();
    let (told, mut farewell) = oneshot::channel();
    let drain = engine.drain();
    engine.spawn("announcer", async move {
        let _ = told.send(announcer.run(drain, PATIENCE).await);
    });

    let stored = typed::key::<Backend>("gpu-0").unwrap();
    let mut seen = Vec::new();
    let outcome = tokio::time::timeout(PATIENCE, async {
        loop {
            tokio::select! {
                outcome = &mut farewell => return outcome.unwrap(),
                delivery = answers.next() => {
                    let Some(Delivery::Message(message)) = delivery else { continue };
                    let answer: Answer = decode(&message.payload).unwrap();
                    seen.push(answer.verdict);
                    if answer.verdict == Verdict::Joined {
                        let entry = store.get(&stored).await.unwrap().unwrap();
                        let backend = typed::read::<Backend>(&entry).unwrap().unwrap().document;
                        assert_eq!(backend.url, url);
                        // From here on nothing waits for a socket.
                        tokio::time::pause();
                        engine.begin_drain();
                    }
                }
            }
        }
    });
    assert_eq!(outcome.await.expect("it ends"), Farewell::Out);
    assert!(store.get(&stored).await.unwrap().is_none(), "it is out of the fleet");
    assert!(seen.contains(&Verdict::Joined) && seen.contains(&Verdict::Leaving), "{seen:?}");
    telemetry.begin_drain();
}

/// A bus that is not connected until it is said to be.
struct LateBus {
    bus: MemoryBus,
    status: watch::Sender<Status>,
    /// How often something was said, heard or not.
    said: watch::Sender<u32>,
}

impl LateBus {
    fn new() -> Arc<Self> {
        let bus = MemoryBus::new(bus::Metrics::default());
        Arc::new(Self { bus, status: watch::Sender::default(), said: watch::Sender::default() })
    }

    async fn first_word(&self) {
        let _ = self.said.subscribe().wait_for(|said| *said > 0).await;
    }
}

impl Bus for LateBus {
    fn publish(&self, subject: &Subject, payload: Bytes) -> Result<(), BusError> {
        self.said.send_modify(|said| *said += 1);
        if !self.status.borrow().connected {
            return Err(BusError::Away);
        }
        self.bus.publish(subject, payload)
    }

    fn subscribe(&self, pattern: Pattern, room: Room) -> BoxFuture<'_, Subscription> {
        self.bus.subscribe(pattern, room)
    }

    fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }
}

fn announcer_on(bus: Arc<dyn Bus>, engine: &DoubleHandle) -> Announcer {
    let url = engine.url().trim_end_matches('/').to_owned();
    let key = JoinKey::parse(MintedToken::generate("rack-1").unwrap().secret_text()).unwrap();
    let spec =
        Spec { backend: "gpu-0".to_owned(), url: url.clone(), engine: None, credential: None };
    Announcer::new(bus, Region::new("default").unwrap(), key, spec, url).unwrap()
}

async fn double() -> DoubleHandle {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    Double::builder().spawn(listener).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_first_word_is_said_when_the_bus_is_there_but_waits_no_more_than_a_minute() {
    for (comes_after, said_after) in [(Some(0), 0), (Some(7), 7), (Some(80), 60), (None, 60)] {
        let (bus, engine, lifecycle) = (LateBus::new(), double().await, Lifecycle::new());
        let announcer = announcer_on(bus.clone(), &engine);
        let started = Instant::now();
        if comes_after == Some(0) {
            bus.status.send_modify(|status| status.connected = true);
        }
        let drain = lifecycle.drain();
        lifecycle.spawn("announcer", async move {
            announcer.run(drain, Duration::ZERO).await;
        });
        if let Some(seconds) = comes_after.filter(|seconds| *seconds > 0) {
            let bus = bus.clone();
            lifecycle.spawn("bus", async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                bus.status.send_modify(|status| status.connected = true);
            });
        }
        bus.first_word().await;
        assert_eq!(started.elapsed().as_secs(), said_after, "{comes_after:?}");
        lifecycle.begin_drain();
    }
}

#[tokio::test(start_paused = true)]
async fn a_farewell_does_not_wait_for_the_bus() {
    let (bus, engine, lifecycle) = (LateBus::new(), double().await, Lifecycle::new());
    let announcer = announcer_on(bus.clone(), &engine);
    let started = Instant::now();
    lifecycle.begin_drain();
    let farewell = announcer.run(lifecycle.drain(), Duration::from_secs(10)).await;
    assert_eq!((farewell, started.elapsed().as_secs()), (Farewell::Unheard, 10));
    assert!(*bus.said.borrow() > 5, "it is said all the same");
}
