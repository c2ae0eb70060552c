//! The three services in one process, joined by in-process ports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use config_feed::{Client, ClientDeps, Documents, Feed, LocalFeed};
use domain::{BackendState, Fleet, RoutingClient};
use futures_util::StreamExt;
use instrumentation::Registry;
use launch::Started;
use lifecycle::{Lifecycle, Readiness, ServeLimits, ShutdownOutcome};
use tokio::sync::watch;

use crate::config::Config;

/// What must hold before traffic is welcome.
const A_BACKEND_IS_READY: &str = "a backend is ready";
const DESIRED_STATE_IS_KNOWN: &str = "the desired state is known";

/// A running gateway.
pub struct Gateway {
    edge: SocketAddr,
    admin: SocketAddr,
    admin_api: Option<SocketAddr>,
    fleet: watch::Receiver<Arc<Fleet>>,
    routing: Arc<dyn RoutingClient>,
    registry: Registry,
    lifecycle: Lifecycle,
}

impl Gateway {
    /// Binds the ports, builds the services in the order of their arrows, and runs them.
    ///
    /// # Errors
    /// A port that cannot be bound, or a service that cannot be built.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let lifecycle = Lifecycle::new();
        let registry = Registry::new();
        lifecycle.register(&registry)?;
        instrumentation::register_build_info(&registry, "warmpath", env!("CARGO_PKG_VERSION"))?;
        let edge_listener = lifecycle::bind(config.edge.listen()).await.context("edge.listen")?;
        let admin_listener = lifecycle::bind(config.admin).await.context("admin.listen")?;
        let (edge_address, admin_address) =
            (edge_listener.local_addr()?, admin_listener.local_addr()?);

        let background = lifecycle.background();
        let store = config.telemetry.open_store(&registry)?;
        let telemetry = config.telemetry.build(telemetry::Deps {
            registry: registry.clone(),
            spawner: background.clone(),
            models: config.models.clone(),
            store: store.clone(),
        })?;
        let fleet = telemetry.fleet();
        let mut admin_api = None;
        if let Some(config) = config.admin_api {
            let deps = telemetry::admin::Deps {
                registry: registry.clone(),
                store,
                fleet: fleet.clone(),
                members: telemetry.hub().members(),
            };
            let serving = telemetry::process::serve_admin_api(config, deps, &background);
            admin_api = Some(serving.await?);
        }
        let deps = router::Deps { registry: registry.clone(), fleet: fleet.clone() };
        let router = config.router.build(deps)?;
        let routing = router.client();
        let feed_metrics = config_feed::Metrics::default();
        feed_metrics.register(&registry)?;
        let feed = Client::new(ClientDeps {
            feed: Arc::new(LocalFeed::new(telemetry.hub())),
            spawner: background.clone(),
            metrics: feed_metrics,
            member: None,
        });
        let edge = config.edge.build(edge::Deps {
            registry: registry.clone(),
            spawner: lifecycle.spawner(),
            routing: routing.clone(),
            listener: edge_listener,
            models: config.models,
            engine_keys: config.engine_keys,
            credentials: config.credentials,
            feed: Some(feed.feed()),
            region_secret: config.region_secret,
        })?;

        let readiness = Readiness::new(lifecycle.drain());
        readiness.require(A_BACKEND_IS_READY);
        readiness.require(DESIRED_STATE_IS_KNOWN);
        let admin = lifecycle::admin::router(registry.clone(), readiness.clone())
            .merge(router::api::admin_routes(router.admin()));

        background.spawn("telemetry", telemetry.run(background.drain()));
        background.spawn("router", router.run(background.drain()));
        let feed = feed.start();
        background.spawn("readiness", follow_readiness(fleet.clone(), readiness.clone()));
        background.spawn("readiness", follow_desired(feed, readiness));
        let serving =
            lifecycle::serve(admin_listener, admin, ServeLimits::ADMIN, background.clone());
        background.spawn("admin", serving);
        lifecycle.spawn("edge", edge.run(lifecycle.drain()));
        let (edge, admin) = (edge_address, admin_address);
        Ok(Self { edge, admin, admin_api, fleet, routing, registry, lifecycle })
    }

    /// Where clients connect.
    pub fn edge(&self) -> SocketAddr {
        self.edge
    }

    /// Where operators connect.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Where the admin API is served, if anybody may use it.
    pub fn admin_api(&self) -> Option<SocketAddr> {
        self.admin_api
    }

    /// The backends as telemetry sees them.
    pub fn fleet(&self) -> watch::Receiver<Arc<Fleet>> {
        self.fleet.clone()
    }

    /// The routing port that the edge uses.
    pub fn routing(&self) -> Arc<dyn RoutingClient> {
        self.routing.clone()
    }

    /// The metrics of all services.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Waits until every backend is ready.
    ///
    /// # Errors
    /// The backends that are not ready after `limit`.
    pub async fn ready(&self, limit: Duration) -> anyhow::Result<()> {
        let all = |f: &Fleet| {
            !f.backends.is_empty() && f.backends.iter().all(|b| b.state == BackendState::Ready)
        };
        // What telemetry has published the router may still have to take up.
        let mut states = self.routing.watch_fleet();
        let seen = async {
            while !all(&self.routing.fleet()) {
                if states.next().await.is_none() {
                    return false;
                }
            }
            true
        };
        if tokio::time::timeout(limit, seen).await.is_ok_and(|seen| seen) {
            return Ok(());
        }
        let missing: Vec<String> = self
            .fleet
            .borrow()
            .backends
            .iter()
            .filter(|b| b.state != BackendState::Ready)
            .map(|b| format!("{} at {} is {}", b.id, b.url, b.state.as_str()))
            .collect();
        anyhow::bail!("not ready after {limit:?}: {}", missing.join(", "))
    }

    /// What is left to do with it by whoever runs the process.
    pub fn into_started(self) -> Started {
        let mut ports = vec![("edge", self.edge), ("admin", self.admin)];
        ports.extend(self.admin_api.map(|address| ("admin_api", address)));
        Started { lifecycle: self.lifecycle, registry: self.registry, ports }
    }

    /// Drains: no new connections, open streams go on for `limit` at most.
    pub async fn stop(self, limit: Duration) -> ShutdownOutcome {
        self.lifecycle.begin_drain();
        self.lifecycle.shutdown(limit).await
    }
}

async fn follow_desired(feed: Feed, readiness: Readiness) {
    let known = |d: &Documents| !d.position.store.is_empty();
    let heard = feed.documents().wait_for(known).await.is_ok();
    readiness.set(DESIRED_STATE_IS_KNOWN, heard);
}

async fn follow_readiness(mut fleet: watch::Receiver<Arc<Fleet>>, readiness: Readiness) {
    loop {
        let ready =
            fleet.borrow_and_update().backends.iter().any(|b| b.state == BackendState::Ready);
        readiness.set(A_BACKEND_IS_READY, ready);
        if fleet.changed().await.is_err() {
            return;
        }
    }
}
