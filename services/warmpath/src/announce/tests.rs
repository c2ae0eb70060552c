//! An engine's life as it announces it, with telemetry's side on the same bus.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Delivery, MemoryBus, Pattern, Room};
use config_store::typed::{self, Signature};
use config_store::{ConfigStore, Limits, MemoryStore, Timestamp};
use credentials::{JoinKey, MintedToken};
use domain::Fleet;
use domain::desired::{Backend, JoinToken};
use events::{Answer, Region, Verdict, decode};
use futures_util::StreamExt;
use lifecycle::Lifecycle;
use tokio::sync::{oneshot, watch};

use super::announcer::{Announcer, Farewell, Spec};
use crate::double::Double;

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
