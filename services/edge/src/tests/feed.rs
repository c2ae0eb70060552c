//! Keys, tenants and limits that change while the edge runs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use config_feed::{Client, ClientDeps, Document, Hub, LocalFeed, Metrics, Position};
use domain::ErrorCode;
use lifecycle::Lifecycle;
use settings::HumanDuration;

use crate::config::{OnStale, RawAuth};
use crate::testing::*;
use credentials::GeneratedKey;

/// A telemetry whose documents an edge follows.
struct Desired {
    hub: Arc<Hub>,
    revision: u64,
    lifecycle: Lifecycle,
}

impl Desired {
    fn new() -> (Self, config_feed::Feed) {
        let (hub, lifecycle) = (Hub::new(1, lifecycle::monotonic()), Lifecycle::new());
        let client = Client::new(ClientDeps {
            feed: Arc::new(LocalFeed::new(hub.clone())),
            spawner: lifecycle.spawner(),
            metrics: Metrics::default(),
            member: None,
        });
        (Self { hub, revision: 0, lifecycle }, client.start())
    }

    fn begin(&self) {
        self.hub.replace(Position { store: "s".into(), revision: self.revision }, []);
        self.hub.tick(lifecycle::monotonic());
    }

    fn put(&mut self, kind: &str, id: &str, json: Option<serde_json::Value>) {
        self.revision += 1;
        self.hub.document(Document {
            kind: kind.into(),
            id: id.into(),
            revision: self.revision,
            schema: (1, 0),
            json: json.map(|json| Bytes::from(json.to_string())),
        });
    }

    fn tenant(&mut self, limits: serde_json::Value) {
        self.put("tenants", "acme", Some(serde_json::json!({"id": "acme"})));
        let mut document = limits;
        document["tenant"] = "acme".into();
        self.put("limits", "acme", Some(document));
    }

    /// A key of `acme`; returns its id and the header that carries it.
    fn key(&mut self) -> (String, String) {
        let key = GeneratedKey::generate("acme").unwrap();
        let lines = key.config_lines();
        let value = |name: &str| {
            let line = lines.lines().find(|l| l.starts_with(name)).unwrap();
            line.split('"').nth(1).unwrap().to_owned()
        };
        let (id, sha256) = (value("id"), value("sha256"));
        let document = serde_json::json!({"id": id, "tenant": "acme", "sha256": sha256});
        self.put("keys", &id, Some(document));
        (id, format!("authorization: Bearer {}\r\n", key.secret_text()))
    }
}

async fn engine() -> Engine {
    Engine::start("e", vec![events(&[&token("a"), DONE])]).await
}

async fn bed(engine: &Engine, auth: RawAuth) -> (Desired, Bed) {
    let (desired, feed) = Desired::new();
    desired.begin();
    eventually("the desired state is heard", || feed.staleness().heard_ever()).await;
    let bed = Setup { auth, feed: Some(feed), ..Setup::default() }.start(&[engine]).await;
    (desired, bed)
}

async fn known(bed: &Bed, keys: i64) {
    eventually("the keys are known", || bed.gateway.families.keys.get() == keys).await;
}

async fn ask(bed: &Bed, key: &str) -> Reply {
    bed.client.post("/v1/chat/completions", key, STREAM).await
}

#[tokio::test]
async fn a_key_counts_while_it_is_there() {
    let engine = engine().await;
    let (mut desired, bed) = bed(&engine, RawAuth::default()).await;
    assert_eq!(ask(&bed, "").await.status, 200, "without keys only this machine is served");
    desired.tenant(serde_json::json!({}));
    let (id, key) = desired.key();
    known(&bed, 1).await;
    assert_eq!(ask(&bed, &key).await.status, 200);
    assert_eq!(bed.router.routes()[1].tenant.as_str(), "acme");
    assert_error(&ask(&bed, "").await, ErrorCode::InvalidApiKey);

    let (_, other) = desired.key();
    known(&bed, 2).await;
    desired.put("keys", &id, None);
    known(&bed, 1).await;
    assert_error(&ask(&bed, &key).await, ErrorCode::InvalidApiKey);
    assert_eq!(ask(&bed, &other).await.status, 200);
    desired.put("tenants", "acme", None);
    eventually("no tenant", || bed.gateway.families.tenants.get() == 0).await;
    assert_error(&ask(&bed, &other).await, ErrorCode::InvalidApiKey);
    bed.assert_metric("warmpath_edge_keys 1");
}

#[tokio::test]
async fn without_its_last_key_an_open_edge_with_tenants_lets_nobody_in() {
    let engine = engine().await;
    let (mut desired, bed) = bed(&engine, RawAuth::default()).await;
    assert_eq!(ask(&bed, "").await.status, 200, "there is nothing to ask for");
    desired.tenant(serde_json::json!({}));
    let (id, key) = desired.key();
    known(&bed, 1).await;
    assert_eq!(ask(&bed, &key).await.status, 200);
    desired.put("keys", &id, None);
    known(&bed, 0).await;
    assert_error(&ask(&bed, &key).await, ErrorCode::InvalidApiKey);
    assert_error(&ask(&bed, "").await, ErrorCode::InvalidApiKey);
    desired.put("tenants", "acme", None);
    eventually("no tenant", || bed.gateway.families.tenants.get() == 0).await;
    // Nor does the last tenant, when it goes, let everybody in.
    assert_error(&ask(&bed, &key).await, ErrorCode::InvalidApiKey);
    assert_error(&ask(&bed, "").await, ErrorCode::InvalidApiKey);
}

#[tokio::test]
async fn keys_and_tenants_of_the_file_stay_as_they_are() {
    let engine = engine().await;
    let (mut desired, feed) = Desired::new();
    desired.begin();
    let minted = GeneratedKey::generate("fixed").unwrap();
    let digest = minted.config_lines().split('"').nth(5).unwrap().to_owned();
    let id = minted.config_lines().split('"').nth(1).unwrap().to_owned();
    let raw = crate::RawKey { id: id.clone(), tenant: "fixed".to_owned(), sha256: digest };
    let setup = Setup {
        feed: Some(feed),
        tenants: vec![tenant("fixed", |t| t.requests_per_minute = Some(5))],
        keys: vec![raw],
        ..Setup::default()
    };
    let bed = setup.start(&[&engine]).await;
    let key = format!("authorization: Bearer {}\r\n", minted.secret_text());
    assert_eq!(ask(&bed, &key).await.header("x-ratelimit-limit-requests"), Some("5"));
    desired.put("tenants", "fixed", Some(serde_json::json!({"id": "fixed"})));
    desired.put("limits", "fixed", Some(serde_json::json!({"tenant": "fixed"})));
    let theirs = serde_json::json!({"id": id, "tenant": "fixed", "sha256": "00".repeat(32)});
    desired.put("keys", &id, Some(theirs));
    desired.tenant(serde_json::json!({}));
    let (_, fed) = desired.key();
    known(&bed, 2).await;
    assert_eq!(ask(&bed, &fed).await.status, 200);
    let reply = ask(&bed, &key).await;
    assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("5"));
    assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some("3"));
}

#[tokio::test]
async fn changed_limits_go_on_from_what_is_used_and_open() {
    let engine = Engine::start("e", vec![vec![Step::AwaitClose]]).await;
    let (mut desired, bed) = bed(&engine, RawAuth::default()).await;
    desired.tenant(serde_json::json!({"requests_per_minute": 10, "max_concurrency": 1}));
    let (_, key) = desired.key();
    known(&bed, 1).await;
    let open = bed.client.send("POST", "/v1/chat/completions", &key, STREAM).await;
    engine.await_requests(1).await;
    assert_error(&ask(&bed, &key).await, ErrorCode::ConcurrencyLimitExceeded);

    desired.tenant(serde_json::json!({"requests_per_minute": 4, "max_concurrency": 2}));
    // A key that comes later shows that the limits were taken over.
    desired.key();
    known(&bed, 2).await;
    let second = bed.client.send("POST", "/v1/chat/completions", &key, STREAM).await;
    engine.await_requests(2).await;
    let third = ask(&bed, &key).await;
    assert_error(&third, ErrorCode::ConcurrencyLimitExceeded);
    drop((open, second));
    bed.assert_idle().await;
    for sent in [3, 4] {
        let open = bed.client.send("POST", "/v1/chat/completions", &key, STREAM).await;
        engine.await_requests(sent).await;
        drop(open);
        bed.assert_idle().await;
    }
    assert_error(&ask(&bed, &key).await, ErrorCode::RateLimitExceeded);
}

#[tokio::test]
async fn before_the_desired_state_is_heard_nobody_is_told_that_a_key_is_wrong() {
    let engine = engine().await;
    let (mut desired, feed) = Desired::new();
    let bed = Setup { feed: Some(feed.clone()), ..Setup::default() }.start(&[&engine]).await;
    let reply = ask(&bed, "authorization: Bearer sk-wp-a-b\r\n").await;
    assert_error(&reply, ErrorCode::Overloaded);
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert_error(&ask(&bed, "").await, ErrorCode::Overloaded);
    desired.begin();
    desired.tenant(serde_json::json!({}));
    let (_, key) = desired.key();
    known(&bed, 1).await;
    eventually("it is heard", || feed.staleness().heard_ever()).await;
    assert_eq!(ask(&bed, &key).await.status, 200);
    assert_error(&ask(&bed, "authorization: Bearer sk-wp-a-b\r\n").await, ErrorCode::InvalidApiKey);
}

#[tokio::test]
async fn keys_that_may_have_been_revoked_meanwhile_count_on_or_not_as_configured() {
    for (on_stale, status) in [(OnStale::Serve, 200), (OnStale::Refuse, 503)] {
        let engine = engine().await;
        let auth = RawAuth { max_stale: HumanDuration::from_millis(1), on_stale };
        let (mut desired, bed) = bed(&engine, auth).await;
        desired.tenant(serde_json::json!({}));
        let (_, key) = desired.key();
        known(&bed, 1).await;
        // Telemetry falls silent for longer than allowed.
        let until = lifecycle::monotonic() + Duration::from_millis(5);
        eventually("time passes", || lifecycle::monotonic() > until).await;
        assert_eq!(ask(&bed, &key).await.status, status, "{on_stale:?}");
        drop(desired.lifecycle);
    }
}
