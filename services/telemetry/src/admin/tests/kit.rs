//! An API over a store in memory, asked without a network.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use config_store::{ConfigStore, Limits, MemoryStore};
use domain::{Backend, BackendState, EngineKind, Fleet, Incarnation, RankState};
use prometheus::Registry;
use replication::{Member, MemberList, Process, Role};
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::FileBackends;
use crate::admin::auth::Tokens;
use crate::admin::config::Config;
use crate::admin::{Deps, Reload};

pub(super) const TOKEN: &str = "a-token-that-nobody-guesses";

/// A running API.
pub(super) struct Kit {
    pub(super) store: Arc<MemoryStore>,
    pub(super) registry: Registry,
    router: Router,
    reload: Reload,
    _fleet: watch::Sender<Arc<Fleet>>,
    _members: watch::Sender<MemberList>,
}

/// One answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

impl Answer {
    pub(super) fn etag(&self) -> &str {
        self.headers["etag"].to_str().unwrap()
    }

    /// Checks that it is a problem of that code, in the form of RFC 9457.
    #[track_caller]
    pub(super) fn is_problem(&self, status: u16, code: &str) -> &Value {
        assert_eq!((self.status.as_u16(), &self.body["code"]), (status, &code.into()), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["status"], status);
        &self.body
    }

    #[track_caller]
    pub(super) fn is(&self, status: u16) -> &Value {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        &self.body
    }
}

impl Kit {
    pub(super) fn new() -> Self {
        Self::seeing(Vec::new())
    }

    pub(super) fn seeing(backends: Vec<Arc<Backend>>) -> Self {
        Self::beside(FileBackends::default(), backends)
    }

    /// One beside backends of a config file.
    pub(super) fn beside(file: FileBackends, backends: Vec<Arc<Backend>>) -> Self {
        let store = Arc::new(MemoryStore::new(Limits::default()).unwrap());
        let fleet = watch::Sender::new(Arc::new(Fleet { revision: 3, backends }));
        let process = Process { id: "router-0".into(), incarnation: Incarnation(2) };
        let member = Member { process, role: Role::Router, address: "http://r:1".into() };
        let members = MemberList { members: Arc::from([member]), ..MemberList::default() };
        let members = watch::Sender::new(members);
        let mut tokens = Tokens::default();
        assert!(tokens.insert("ops".into(), TOKEN));
        let listen = "127.0.0.1:0".parse().unwrap();
        let registry = Registry::new();
        let deps = Deps {
            registry: registry.clone(),
            store: store.clone() as Arc<dyn ConfigStore>,
            fleet: fleet.subscribe(),
            members: members.subscribe(),
            file,
        };
        let api = Config { listen, tls: None, tokens }.build(deps).unwrap();
        let (router, reload) = (api.router(), api.reload());
        Self { store, registry, router, reload, _fleet: fleet, _members: members }
    }

    /// Has one token from now on, under the name that it had.
    pub(super) fn set_token(&self, token: &str) {
        let mut tokens = Tokens::default();
        assert!(tokens.insert("ops".into(), token));
        let listen = "127.0.0.1:0".parse().unwrap();
        self.reload.apply(Config { listen, tls: None, tokens });
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Answer {
        let answer = self.router.clone().oneshot(request);
        let answer = tokio::time::timeout(Duration::from_secs(60), answer).await.unwrap().unwrap();
        let (parts, body) = answer.into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 24).await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// `PUT /backends/a` and the like, with a header if it is not empty.
    pub(super) async fn ask(&self, what: &str, header: (&str, &str), body: Value) -> Answer {
        let (method, path) = what.split_once(' ').unwrap();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/admin/v1{path}"))
            .header("authorization", format!("Bearer {TOKEN}"));
        if !header.0.is_empty() {
            request = request.header(header.0, header.1);
        }
        let body = if body.is_null() {
            Body::empty()
        } else {
            request = request.header("content-type", "application/json");
            Body::from(body.to_string())
        };
        self.send(request.body(body).unwrap()).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path}"), ("", ""), Value::Null).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(&format!("POST {path}"), ("", ""), body).await
    }

    pub(super) async fn delete(&self, path: &str) -> Answer {
        self.ask(&format!("DELETE {path}"), ("", ""), Value::Null).await
    }

    /// Puts what must not exist.
    pub(super) async fn add(&self, path: &str, body: Value) -> Answer {
        self.ask(&format!("PUT {path}"), ("if-none-match", "*"), body).await
    }
}

pub(super) fn seen(id: &str, state: BackendState) -> Arc<Backend> {
    Arc::new(Backend {
        id: id.into(),
        incarnation: Incarnation(4),
        url: format!("http://{id}:1").into(),
        engine: EngineKind::Vllm,
        state,
        models: Vec::new(),
        ranks: vec![RankState { rank: 0, cache: None, slots: None, load: None }],
        network: Duration::from_millis(1),
        credential: None,
    })
}
