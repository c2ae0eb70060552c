//! Scripted engines and a telemetry that watches them at a quick pace.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use config_store::{Limits, MemoryStore};
use domain::{Backend, Fleet, ModelId};
use lifecycle::{Lifecycle, ShutdownOutcome};
use parking_lot::Mutex;
use prometheus::Registry;
use settings::HumanDuration;
use tokenization::ModelFolder;
use tokio::sync::watch;

use crate::{Config, Deps, RawBackend, RawConfig};

/// What a scripted engine answers.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) health: u16,
    pub(crate) models: (u16, String),
    pub(crate) metrics: (u16, String),
    pub(crate) tokenize: Tokenize,
    /// SGLang's or llama.cpp's settings; absent from engines that have no such route.
    pub(crate) settings: Option<String>,
    /// It accepts requests and never answers.
    pub(crate) silent: bool,
}

#[derive(Clone)]
pub(crate) enum Tokenize {
    Missing,
    /// As this folder does.
    Like(Arc<ModelFolder>),
    /// One token too many.
    Wrong(Arc<ModelFolder>),
}

impl Default for Script {
    fn default() -> Self {
        Self {
            health: 200,
            models: (200, listing(&["model"])),
            metrics: (200, page(100.0, 1000, 2, 1)),
            tokenize: Tokenize::Missing,
            settings: None,
            silent: false,
        }
    }
}

pub(crate) fn listing(models: &[&str]) -> String {
    let data: Vec<serde_json::Value> = models
        .iter()
        .map(|id| {
            serde_json::json!({
                "id": id, "object": "model", "owned_by": "vllm", "max_model_len": 4096,
                "root": format!("/models/{id}"),
            })
        })
        .collect();
    serde_json::json!({ "object": "list", "data": data }).to_string()
}

/// A page of vLLM's.
pub(crate) fn page(start: f64, prompt_tokens: u64, running: u32, waiting: u32) -> String {
    format!(
        "process_start_time_seconds {start}\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"model\"}} {running}\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"model\"}} {waiting}\n\
         vllm:prompt_tokens_total{{engine=\"0\",model_name=\"model\"}} {prompt_tokens}\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"601\",\
         enable_prefix_caching=\"True\",engine=\"0\"}} 1.0\n"
    )
}

/// A scripted engine; it ends with the test.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    script: Arc<Mutex<Script>>,
    pub(crate) asked: Arc<AtomicU32>,
    authorization: Arc<Mutex<Option<String>>>,
    lifecycle: Lifecycle,
}

#[derive(Clone)]
struct Served {
    script: Arc<Mutex<Script>>,
    asked: Arc<AtomicU32>,
    authorization: Arc<Mutex<Option<String>>>,
}

impl Engine {
    pub(crate) async fn start(script: Script) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = tokio::net::TcpListener::bind(any).await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let script = Arc::new(Mutex::new(script));
        let asked = Arc::new(AtomicU32::new(0));
        let authorization = Arc::default();
        let served = Served {
            script: script.clone(),
            asked: asked.clone(),
            authorization: Arc::clone(&authorization),
        };
        let routes = Router::new().fallback(answer).with_state(served);
        let lifecycle = Lifecycle::new();
        lifecycle.spawn("engine", async move {
            axum::serve(listener, routes).await.expect("serves until aborted");
        });
        Self { address, script, asked, authorization, lifecycle }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock());
    }

    pub(crate) fn requests(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    /// What the last request had in `authorization`.
    pub(crate) fn authorization(&self) -> Option<String> {
        self.authorization.lock().clone()
    }

    pub(crate) fn backend(&self, id: &str) -> RawBackend {
        RawBackend {
            id: id.into(),
            url: format!("http://{}", self.address),
            engine: None,
            api_key: None,
            credential: None,
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.lifecycle.begin_drain();
    }
}

async fn answer(
    State(served): State<Served>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    *served.authorization.lock() = authorization.map(str::to_owned);
    served.asked.fetch_add(1, Ordering::Relaxed);
    let script = served.script.lock().clone();
    if script.silent {
        std::future::pending::<()>().await;
    }
    let status = |code: u16| StatusCode::from_u16(code).expect("a valid status");
    match uri.path() {
        "/health" => (status(script.health), String::new()),
        "/v1/models" => (status(script.models.0), script.models.1),
        "/metrics" => (status(script.metrics.0), script.metrics.1),
        "/get_server_info" | "/props" if script.settings.is_some() => {
            (StatusCode::OK, script.settings.unwrap_or_default())
        }
        "/tokenize" => tokenize(&script.tokenize, &body),
        _ => (StatusCode::NOT_FOUND, "{\"detail\":\"Not Found\"}".to_owned()),
    }
}

fn tokenize(how: &Tokenize, body: &[u8]) -> (StatusCode, String) {
    let (folder, surplus) = match how {
        Tokenize::Missing => return (StatusCode::NOT_FOUND, String::new()),
        Tokenize::Like(folder) => (folder, None),
        Tokenize::Wrong(folder) => (folder, Some(7)),
    };
    let body: serde_json::Value = serde_json::from_slice(body).expect("JSON is sent");
    assert_eq!(body["model"], "model");
    assert_eq!(body["add_generation_prompt"], true);
    let request = tokenization::ChatRequest::from_body(&body).expect("a chat");
    let mut tokens = folder.tokenize_chat(&request).expect("renders").tokens;
    tokens.extend(surplus);
    let answer = serde_json::json!({ "count": tokens.len(), "tokens": tokens });
    (StatusCode::OK, answer.to_string())
}

/// Everything ten times a second or more, so that a test waits for milliseconds.
pub(crate) fn quick() -> RawConfig {
    RawConfig {
        probe_interval: HumanDuration::from_millis(20),
        metrics_interval: HumanDuration::from_millis(10),
        listing_interval: HumanDuration::from_millis(60),
        timeout: HumanDuration::from_millis(500),
        store: None,
    }
}

/// A running telemetry.
pub(crate) struct Watch {
    pub(crate) fleet: watch::Receiver<Arc<Fleet>>,
    pub(crate) registry: Registry,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) whole: watch::Receiver<bool>,
    pub(crate) reload: crate::Reload,
    pub(crate) file: crate::FileBackends,
    lifecycle: Lifecycle,
}

impl Watch {
    pub(crate) fn start(backends: Vec<RawBackend>) -> Self {
        Self::with(backends, HashMap::new())
    }

    pub(crate) fn with(
        backends: Vec<RawBackend>,
        models: HashMap<ModelId, Arc<ModelFolder>>,
    ) -> Self {
        let config = Config::new(quick(), backends).expect("valid");
        let (registry, lifecycle) = (Registry::new(), Lifecycle::new());
        let store = Arc::new(MemoryStore::new(Limits::default()).expect("a random source"));
        let deps = Deps {
            registry: registry.clone(),
            spawner: lifecycle.spawner(),
            models,
            store: store.clone(),
        };
        let service = config.build(deps).expect("an empty registry");
        let (fleet, whole, reload) = (service.fleet(), service.whole(), service.reload());
        let file = service.file_backends();
        lifecycle.spawn("telemetry", service.run(lifecycle.drain()));
        Self { fleet, registry, store, whole, reload, file, lifecycle }
    }

    /// Waits until the backend is as wanted.
    pub(crate) async fn until(
        &mut self,
        id: &str,
        what: &str,
        wanted: impl Fn(&Backend) -> bool,
    ) -> Arc<Backend> {
        let id = id.into();
        let found = self.fleet.wait_for(|f| f.backend(&id).is_some_and(|b| wanted(b)));
        let fleet = tokio::time::timeout(Duration::from_secs(20), found)
            .await
            .unwrap_or_else(|_| panic!("never came to: {what}"))
            .expect("telemetry runs");
        fleet.backend(&id).expect("just found").clone()
    }

    /// Waits until the engine was asked so many times more.
    pub(crate) async fn asked(&mut self, engine: &Engine, times: u32) {
        let goal = engine.requests() + times;
        let wait = async {
            while engine.requests() < goal {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("it goes on asking");
    }

    pub(crate) fn now(&self, id: &str) -> Arc<Backend> {
        self.fleet.borrow().backend(&id.into()).expect("configured").clone()
    }

    pub(crate) fn metrics(&self) -> String {
        instrumentation::encode(&self.registry)
    }

    pub(crate) async fn stop(self) {
        let outcome = self.lifecycle.shutdown(Duration::from_secs(5)).await;
        assert_eq!(outcome, ShutdownOutcome::Clean);
    }
}
