//! The admin API: what operators want of the fleet, as REST over the config store.
//!
//! It has a listener and tokens of its own, and answers nobody without one. A change is answered
//! only after the store has committed it; its revision is the document's entity tag. Problems are
//! RFC 9457 with stable codes. The API describes itself at `/admin/v1/openapi.json`.
//!
//! - [`Config`], [`RawConfig`], [`RawToken`]: `[admin_api]`
//! - [`Deps`], [`Admin`], [`Reload`]: what it needs, what it gives, and how it changes
//! - `auth`, `extract`, `problem`, `page`: parts of requests and answers
//! - `api`: documents of the store, with conditions
//! - `backends`, `models`, `tenants`, `keys`, `join_tokens`: one kind of document each
//! - `events`: the audit log; `status`: everything at a glance

mod api;
mod auth;
mod backends;
mod config;
mod events;
mod extract;
mod join_tokens;
mod keys;
mod metrics;
mod models;
mod observed;
mod openapi;
mod page;
mod problem;
mod status;
mod tenants;

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use config_store::ConfigStore;
use domain::Fleet;
use lifecycle::{ServeLimits, TaskSpawner};
use prometheus::Registry;
use replication::MemberList;
use rpc::https::ServerTls;
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::api::Api;
use self::metrics::Metrics;
use self::problem::{Code, Problem};
use crate::{Error, FileBackends};

pub use config::{Config, RawConfig, RawToken};
pub use openapi::document;

/// What the API needs from outside.
pub struct Deps {
    /// Where its metrics are registered.
    pub registry: Registry,
    /// The desired state.
    pub store: Arc<dyn ConfigStore>,
    /// The observed state.
    pub fleet: watch::Receiver<Arc<Fleet>>,
    /// The services of the region.
    pub members: watch::Receiver<MemberList>,
    /// The backends that are not managed here.
    pub file: FileBackends,
}

/// The API, ready to be served.
pub struct Admin {
    router: Router,
    tls: Option<watch::Receiver<ServerTls>>,
    reload: Reload,
}

/// Puts other configs in force. A cheap handle.
#[derive(Clone)]
pub struct Reload {
    api: Arc<Api>,
    tls: Option<watch::Sender<ServerTls>>,
}

impl Reload {
    /// From now on these are the tokens, and the certificate that is shown to who connects. The
    /// address, and whether there is TLS, are those that the API was built with.
    pub fn apply(&self, config: Config) {
        let Config { listen: _, tls, tokens } = config;
        self.api.tokens.store(Arc::new(tokens));
        if let (Some(shown), Some(tls)) = (&self.tls, tls) {
            shown.send_replace(tls);
        }
    }
}

impl Config {
    /// Builds the API.
    ///
    /// # Errors
    /// The registry already holds its metrics.
    pub fn build(self, deps: Deps) -> Result<Admin, Error> {
        let Deps { registry, store, fleet, members, file } = deps;
        let metrics = Metrics::register(&registry)?;
        let tokens = ArcSwap::from_pointee(self.tokens);
        let api = Arc::new(Api { store, fleet, members, file, tokens, metrics });
        let (to_tls, tls) = self.tls.map(watch::channel).unzip();
        let reload = Reload { api: api.clone(), tls: to_tls };
        let (routes, document) = openapi::routes().split_for_parts();
        let router = routes
            .merge(openapi::served(document))
            .fallback(async || Problem::new(Code::NotFound, "the API has no such route"))
            .method_not_allowed_fallback(async || {
                Problem::new(Code::MethodNotAllowed, "see the Allow header")
            })
            .layer(from_fn_with_state(api.clone(), observe))
            .layer(from_fn_with_state(api.clone(), auth::require_token))
            .with_state(api);
        Ok(Admin { router, tls, reload })
    }
}

impl Admin {
    /// The routes, with the check of tokens before them.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Puts other configs in force while it runs.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Serves until the spawner's drain, over TLS if the config has certificates.
    pub async fn run(self, listener: TcpListener, spawner: TaskSpawner) {
        let (router, limits) = (self.router, ServeLimits::ADMIN);
        match self.tls {
            None => lifecycle::serve(listener, router, limits, spawner).await,
            Some(tls) => {
                let tls = move || tls.borrow().config();
                lifecycle::serve_tls(listener, tls, router, limits, spawner).await;
            }
        }
    }
}

/// Counts what was answered, and keeps it out of caches: some answers hold secrets.
async fn observe(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "PUT" | "POST" | "DELETE") => known.to_owned(),
        _ => "other".to_owned(),
    };
    let mut response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    api.metrics.answered(route, &method, response.status().as_str());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
