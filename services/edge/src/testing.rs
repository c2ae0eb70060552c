//! A bed for tests: engines that do as they are told over real sockets, a router that chooses
//! the first engine left, and an edge between them and a plain client.

mod client;
mod engine;
pub(crate) mod h2;
mod log;
mod router;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use config_feed::Feed;
use domain::{ErrorCode, ModelId};
use instrumentation::Registry;
use lifecycle::Lifecycle;
use settings::Redacted;
use tokenization::ModelFolder;

pub(crate) use self::client::{Client, Reply, read_reply, request_bytes};
pub(crate) use self::engine::{Engine, Step, answer, event, events, part, sse};
pub(crate) use self::log::Log;
pub(crate) use self::router::Router;
use crate::config::{Config, Keys, RawAuth, RawConfig, RawKey, RawTenant};
use crate::gateway::Gateway;
use crate::guard::RawFields;

/// A streaming chat request.
pub(crate) const STREAM: &str =
    r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
/// One that does not stream.
pub(crate) const WHOLE: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

pub(crate) const ROLE: &str = "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
pub(crate) const USAGE: &str = "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// One event with content.
pub(crate) fn token(text: &str) -> String {
    format!(
        "data: {{\"id\":\"1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
    )
}

pub(crate) struct Bed {
    pub(crate) client: Client,
    pub(crate) router: Arc<Router>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) reload: crate::Reload,
    pub(crate) registry: Registry,
    pub(crate) lifecycle: Lifecycle,
}

/// What a bed is made of.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) edge: RawConfig,
    pub(crate) auth: RawAuth,
    pub(crate) feed: Option<Feed>,
    pub(crate) credentials: HashMap<String, Redacted<String>>,
    pub(crate) tenants: Vec<RawTenant>,
    pub(crate) keys: Vec<RawKey>,
    pub(crate) models: HashMap<ModelId, Arc<ModelFolder>>,
    pub(crate) drain_limit: Option<Duration>,
}

impl Setup {
    /// The config alone.
    pub(crate) fn config(&self) -> Config {
        let more = if self.feed.is_some() { Keys::OfFeed } else { Keys::OfFile };
        let (tenants, keys) = (self.tenants.clone(), self.keys.clone());
        let config = Config::new(self.edge.clone(), &self.auth, tenants, keys, more).unwrap();
        let config = config.with_credentials(&self.credentials).unwrap();
        match self.drain_limit {
            Some(limit) => config.drain_within(limit),
            None => config,
        }
    }

    /// Starts an edge before these engines.
    pub(crate) async fn start(self, engines: &[&Engine]) -> Bed {
        let lifecycle = Lifecycle::new();
        let registry = Registry::new();
        let router = Router::new(engines);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = self.config();
        let deps = crate::Deps {
            registry: registry.clone(),
            spawner: lifecycle.spawner(),
            routing: router.clone(),
            listener,
            models: self.models,
            feed: self.feed,
            region_secret: Redacted::new(b"secret".to_vec()),
        };
        let service = config.build(deps).unwrap();
        let (gateway, reload) = (Arc::clone(service.gateway()), service.reload());
        let client = Client::new(service.address());
        lifecycle.spawn("edge", service.run(lifecycle.drain()));
        Bed { client, router, gateway, reload, registry, lifecycle }
    }
}

impl Bed {
    pub(crate) async fn start(engines: &[&Engine]) -> Bed {
        Setup::default().start(engines).await
    }

    pub(crate) fn metrics(&self) -> String {
        instrumentation::encode(&self.registry)
    }

    /// Whether a series stands at a value, as the metrics page shows it.
    #[track_caller]
    pub(crate) fn assert_metric(&self, line: &str) {
        let page = self.metrics();
        assert!(page.lines().any(|l| l == line), "{line} is not in:\n{page}");
    }

    /// Waits until nothing of any request is left, and checks it.
    pub(crate) async fn assert_idle(&self) {
        eventually("requests are still open", || {
            self.gateway.families.in_flight.get() == 0
                && self.gateway.access.open_requests() == 0
                && self.router.open_leases() == 0
        })
        .await;
    }
}

/// Waits for something that other tasks are about to do. Bounded by steps, not by time.
#[track_caller]
pub(crate) fn eventually<'a>(
    what: &'static str,
    mut holds: impl FnMut() -> bool + 'a,
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..2000 {
            if holds() {
                return;
            }
            // Lets the other tasks run and the socket events come in.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{what} ({caller})");
    }
}

/// A tenant without limits, changed.
pub(crate) fn tenant(id: &str, change: impl FnOnce(&mut RawTenant)) -> RawTenant {
    let mut tenant = RawTenant {
        id: id.to_owned(),
        requests_per_minute: None,
        max_concurrency: None,
        debug_headers: false,
        models: None,
        fields: RawFields::default(),
    };
    change(&mut tenant);
    tenant
}

/// Checks the shape and the code of an error of the gateway's own.
#[track_caller]
pub(crate) fn assert_error(reply: &Reply, code: ErrorCode) {
    assert_eq!(reply.status, code.http_status(), "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.header("x-request-id").is_some());
    let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    let error = body["error"].as_object().unwrap();
    let mut names: Vec<_> = error.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["code", "message", "param", "type"]);
    assert_eq!(error["code"], code.as_str());
    let message = error["message"].as_str().unwrap();
    assert!(!message.contains("127.0.0.1"), "{message}");
}
