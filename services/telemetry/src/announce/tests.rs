//! Announcements over a bus and a store in memory, with a scripted engine.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Delivery, MemoryBus, Pattern, Room, Subscription};
use config_store::typed::{self, Signature};
use config_store::{ConfigStore, Limits, MemoryStore, Timestamp};
use credentials::{JoinKey, MintedToken};
use domain::Fleet;
use domain::desired::{Backend, JoinToken, LifecycleWish};
use events::{Announcement, Answer, Envelope, Phase, Region, Verdict, decode, encode};
use futures_util::StreamExt;
use lifecycle::Lifecycle;
use prometheus::Registry;
use tokio::sync::watch;

use super::Deps;
use crate::tests::kit::{Engine, Script, listing};
use crate::{Config, FileBackends, RawBackend, RawConfig};

struct Kit {
    bus: Arc<MemoryBus>,
    store: Arc<MemoryStore>,
    region: Region,
    key: JoinKey,
    answers: Subscription,
    lifecycle: Lifecycle,
    engine: Engine,
    sent: u64,
    _fleet: watch::Sender<Arc<Fleet>>,
}

impl Kit {
    async fn new(model: Option<&str>) -> Self {
        Self::beside(model, |_| FileBackends::default()).await
    }

    /// One beside a config file, which may name the engine.
    async fn beside(model: Option<&str>, file: impl FnOnce(&Engine) -> FileBackends) -> Self {
        let engine = Engine::start(Script::default()).await;
        let bus = Arc::new(MemoryBus::new(bus::Metrics::default()));
        let store = Arc::new(MemoryStore::new(Limits::default()).unwrap());
        let region = Region::new("eu").unwrap();
        let minted = MintedToken::generate("rack-1").unwrap();
        let token = JoinToken {
            id: "rack-1".to_owned(),
            public_key: minted.public_key_hex().to_owned(),
            model: model.map(Into::into),
            addresses: vec!["127.0.0.0/8".parse().unwrap()],
            expires_at_ms: Timestamp::now().0 + 600_000,
            unknown: Default::default(),
        };
        let by = Signature { author: "test".into(), at: Timestamp(1) };
        store.commit(typed::create(&token, by).unwrap()).await.unwrap();
        let fleet = watch::Sender::new(Arc::new(Fleet::default()));
        let deps = Deps {
            registry: Registry::new(),
            bus: bus.clone(),
            region: region.clone(),
            store: store.clone(),
            fleet: fleet.subscribe(),
            file: file(&engine),
        };
        let pattern = Pattern::new("warmpath.v1.eu.answers.>").unwrap();
        let answers = bus.subscribe(pattern, Room::default()).await;
        let (lifecycle, registry) = (Lifecycle::new(), deps.registry.clone());
        lifecycle.spawn("announcements", deps.build().unwrap().run(lifecycle.drain()));
        // It listens once it has counted something.
        while instrumentation::encode(&registry).contains("verdict=\"invalid\"} 0") {
            bus.publish(&region.announce("rack-1"), "no announcement".into()).unwrap();
            tokio::task::yield_now().await;
        }
        let key = JoinKey::parse(minted.secret_text()).unwrap();
        Self { bus, store, region, key, answers, lifecycle, engine, sent: 0, _fleet: fleet }
    }

    fn said(&mut self, phase: Phase) -> Announcement {
        self.sent += 1;
        Announcement {
            region: "eu".to_owned(),
            backend: "gpu-0".to_owned(),
            url: format!("http://{}", self.engine.address),
            engine: None,
            credential: None,
            phase,
            at_ms: Timestamp::now().0 + self.sent,
            nonce: format!("{:032x}", self.sent),
        }
    }

    async fn send(&mut self, envelope: &Envelope) -> Answer {
        self.bus.publish(&self.region.announce("rack-1"), encode(envelope)).unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(20), self.answers.next()).await;
        let Some(Delivery::Message(message)) = heard.expect("it is answered") else {
            panic!("the bus lost a message")
        };
        decode(&message.payload).unwrap()
    }

    async fn say(&mut self, said: &Announcement) -> Verdict {
        let sealed = Envelope::seal(said, &self.key);
        let answer = self.send(&sealed).await;
        assert_eq!(answer.nonce, said.nonce);
        answer.verdict
    }

    async fn here(&mut self) -> Verdict {
        let said = self.said(Phase::Here);
        self.say(&said).await
    }

    async fn stored(&self) -> Option<Backend> {
        let key = typed::key::<Backend>("gpu-0").unwrap();
        let entry = self.store.get(&key).await.unwrap()?;
        typed::read::<Backend>(&entry).unwrap().map(|stored| stored.document)
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        self.lifecycle.begin_drain();
    }
}

#[tokio::test]
async fn an_engine_joins_after_a_probe_and_is_only_heard_then() {
    let mut kit = Kit::new(Some("model")).await;
    assert_eq!(kit.here().await, Verdict::Joined);
    let stored = kit.stored().await.unwrap();
    assert_eq!(
        (stored.wish, stored.announced.unwrap().token.as_str()),
        (LifecycleWish::Ready, "rack-1")
    );
    let revision = kit.store.revision();
    let asked = kit.engine.requests();
    assert_eq!(kit.here().await, Verdict::Heard);
    assert_eq!((kit.store.revision(), kit.engine.requests()), (revision, asked));
}

#[tokio::test]
async fn an_engine_that_does_not_answer_or_serves_something_else_does_not_join() {
    let mut kit = Kit::new(Some("model")).await;
    kit.engine.change(|script| script.health = 503);
    assert_eq!(kit.here().await, Verdict::Unreachable);
    kit.engine.change(|script| {
        script.health = 200;
        script.models.1 = listing(&["model", "other"]);
    });
    assert_eq!(kit.here().await, Verdict::OutOfScope);
    kit.engine.change(|script| script.models.1 = listing(&["other"]));
    assert_eq!(kit.here().await, Verdict::OutOfScope);
    assert!(kit.stored().await.is_none());
}

#[tokio::test]
async fn a_farewell_drains_and_a_return_takes_it_back() {
    let mut kit = Kit::new(None).await;
    assert_eq!(kit.here().await, Verdict::Joined);
    let farewell = kit.said(Phase::Leaving);
    assert_eq!(kit.say(&farewell).await, Verdict::Leaving);
    let stored = kit.stored().await.unwrap();
    assert_eq!((stored.wish, stored.announced.unwrap().withdrawn), (LifecycleWish::Draining, true));
    assert_eq!(kit.here().await, Verdict::Heard);
    let stored = kit.stored().await.unwrap();
    assert_eq!((stored.wish, stored.announced.unwrap().withdrawn), (LifecycleWish::Ready, false));
}

#[tokio::test]
async fn what_was_said_before_does_nothing_when_it_is_said_again() {
    let mut kit = Kit::new(None).await;
    let first = kit.said(Phase::Here);
    assert_eq!(kit.say(&first).await, Verdict::Joined);
    let farewell = kit.said(Phase::Leaving);
    assert_eq!(kit.say(&farewell).await, Verdict::Leaving);
    assert_eq!(kit.say(&first).await, Verdict::Replayed);
    let mut early = kit.said(Phase::Here);
    early.at_ms = first.at_ms;
    assert_eq!(kit.say(&early).await, Verdict::Replayed, "it is older than the farewell");
    assert_eq!(kit.stored().await.unwrap().wish, LifecycleWish::Draining);
}

#[tokio::test]
async fn a_stranger_and_a_name_of_another_are_refused() {
    let mut kit = Kit::new(None).await;
    let said = kit.said(Phase::Here);
    let stranger = MintedToken::generate("rack-1").unwrap();
    let stranger = JoinKey::parse(stranger.secret_text()).unwrap();
    assert_eq!(kit.send(&Envelope::seal(&said, &stranger)).await.verdict, Verdict::Unsigned);
    let backend: Backend =
        serde_json::from_value(serde_json::json!({"id": "gpu-0", "url": "http://a:1"})).unwrap();
    let by = Signature { author: "ops".into(), at: Timestamp(1) };
    kit.store.commit(typed::create(&backend, by).unwrap()).await.unwrap();
    assert_eq!(kit.here().await, Verdict::Taken);
    let token = typed::key::<JoinToken>("rack-1").unwrap();
    let entry = kit.store.get(&token).await.unwrap().unwrap();
    let stored = typed::read::<JoinToken>(&entry).unwrap().unwrap();
    let by = Signature { author: "ops".into(), at: Timestamp(1) };
    kit.store.commit(typed::delete(&stored, by).unwrap()).await.unwrap();
    assert_eq!(kit.here().await, Verdict::Unsigned, "the token was revoked");
}

fn file(id: &str, url: String) -> FileBackends {
    let entry = RawBackend { id: id.into(), url, engine: None, api_key: None, credential: None };
    FileBackends::new(&Config::new(RawConfig::default(), vec![entry]).unwrap().backends)
}

#[tokio::test]
async fn an_engine_takes_neither_name_nor_address_of_one_of_the_config_file() {
    let by_name = |_: &Engine| file("gpu-0", "http://127.0.0.2:1".to_owned());
    let by_address = |engine: &Engine| file("e0", format!("http://{}", engine.address));
    for mut kit in [Kit::beside(None, by_name).await, Kit::beside(None, by_address).await] {
        assert_eq!(kit.here().await, Verdict::Taken);
        let farewell = kit.said(Phase::Leaving);
        assert_eq!(kit.say(&farewell).await, Verdict::Gone);
        assert!(kit.stored().await.is_none());
        assert_eq!(kit.engine.requests(), 0, "it is not even probed");
    }
}

#[tokio::test]
async fn one_that_falls_silent_is_drained_and_removed() {
    let mut kit = Kit::new(None).await;
    assert_eq!(kit.here().await, Verdict::Joined);
    tokio::time::pause();
    let drained = async {
        loop {
            match kit.stored().await {
                Some(stored) if stored.wish == LifecycleWish::Draining => return,
                Some(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                None => panic!("it is drained first"),
            }
        }
    };
    tokio::time::timeout(super::SILENT_AFTER * 2, drained).await.expect("it is drained");
    let gone = async {
        while kit.stored().await.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(super::SHORTEST_DRAIN * 3, gone).await.expect("it is removed");
    let farewell = kit.said(Phase::Leaving);
    assert_eq!(kit.say(&farewell).await, Verdict::Gone);
}

#[tokio::test]
async fn what_an_operator_wished_stays_when_the_engine_comes_from_another_address() {
    let mut kit = Kit::new(None).await;
    assert_eq!(kit.here().await, Verdict::Joined);
    let key = typed::key::<Backend>("gpu-0").unwrap();
    let entry = kit.store.get(&key).await.unwrap().unwrap();
    let stored = typed::read::<Backend>(&entry).unwrap().unwrap();
    let wanted = Backend { wish: LifecycleWish::Maintenance, ..stored.document.clone() };
    let by = Signature { author: "operator".into(), at: Timestamp(2) };
    kit.store.commit(typed::replace(&stored, &wanted, by).unwrap()).await.unwrap();
    kit.engine = Engine::start(Script::default()).await;
    assert_eq!(kit.here().await, Verdict::Joined);
    let now = kit.stored().await.unwrap();
    assert_eq!(now.wish, LifecycleWish::Maintenance);
    assert_eq!(now.url, format!("http://{}", kit.engine.address));
}
