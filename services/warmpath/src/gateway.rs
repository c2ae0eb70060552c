//! The three services in one process, joined by in-process ports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use config_feed::{Client, ClientDeps, Documents, LocalFeed};
use domain::{BackendState, Fleet, RoutingClient};
use futures_util::StreamExt;
use instrumentation::Registry;
use launch::{Base, Started};
use lifecycle::{Lifecycle, ShutdownOutcome};
use telemetry::process::ServedApi;
use tokio::sync::watch;

use crate::config::Config;

/// What must hold before traffic is welcome.
const A_BACKEND_IS_READY: &str = "a backend is ready";
const DESIRED_STATE_IS_KNOWN: &str = "the desired state is known";

/// A running gateway.
pub struct Gateway {
    edge: SocketAddr,
    admin: SocketAddr,
    admin_api: Option<ServedApi>,
    reload: Reload,
    fleet: watch::Receiver<Arc<Fleet>>,
    routing: Arc<dyn RoutingClient>,
    registry: Registry,
    lifecycle: Lifecycle,
}

/// Puts other configs in force. A cheap handle.
#[derive(Clone)]
pub struct Reload {
    edge: edge::Reload,
    router: Arc<router::Router>,
    telemetry: telemetry::Reload,
    admin_api: Option<telemetry::admin::Reload>,
}

impl Reload {
    /// From now on all services go by this config. Its addresses, its models and whatever else
    /// [is fixed](crate::serve::Serve) are those that the gateway was started with.
    pub fn apply(&self, config: Config) {
        // What takes a restart, and what the process itself goes by.
        let Config {
            edge,
            router,
            telemetry,
            admin_api,
            admin: _,
            drain_timeout: _,
            log: _,
            region_secret: _,
            models: _,
        } = config;
        // Engines first: requests that come by new names have somewhere to go as soon as can be.
        self.telemetry.apply(telemetry);
        self.router.configure(router);
        self.edge.apply(edge);
        if let (Some(api), Some(config)) = (&self.admin_api, admin_api) {
            api.apply(config);
        }
    }
}

impl Gateway {
    /// Binds the ports, builds the services in the order of their arrows, and runs them.
    ///
    /// # Errors
    /// A port that cannot be bound, or a service that cannot be built.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let base = Base::begin("warmpath", config.admin).await?;
        let (lifecycle, registry) = (base.lifecycle.clone(), base.registry.clone());
        let (background, admin_address) = (base.background.clone(), base.admin_address);
        let edge_listener = lifecycle::bind(config.edge.listen()).await.context("edge.listen")?;
        let edge_address = edge_listener.local_addr()?;

        let store = config.telemetry.open_store(&registry)?;
        let telemetry = config.telemetry.build(telemetry::Deps {
            registry: registry.clone(),
            spawner: background.clone(),
            models: config.models.clone(),
            store: store.clone(),
        })?;
        let fleet = telemetry.fleet();
        let deps = telemetry::admin::Deps {
            registry: registry.clone(),
            store,
            fleet: fleet.clone(),
            members: telemetry.hub().members(),
            file: telemetry.file_backends(),
        };
        let admin_api =
            telemetry::process::serve_admin_api(config.admin_api, deps, &background).await?;
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
            feed: Some(feed.feed()),
            region_secret: config.region_secret,
        })?;

        let reload = Reload {
            edge: edge.reload(),
            router: router.admin(),
            telemetry: telemetry.reload(),
            admin_api: admin_api.as_ref().map(|api| api.reload.clone()),
        };
        let admin = router::api::admin_routes(router.admin());
        background.spawn("telemetry", telemetry.run(background.drain()));
        background.spawn("router", router.run(background.drain()));
        let feed = feed.start();
        let is_served = |fleet: &Arc<Fleet>| fleet.has_ready();
        base.readiness.follow(&background, A_BACKEND_IS_READY, fleet.clone(), is_served);
        let is_known = |documents: &Documents| !documents.position.store.is_empty();
        base.readiness.follow(&background, DESIRED_STATE_IS_KNOWN, feed.documents(), is_known);
        lifecycle.spawn("edge", edge.run(lifecycle.drain()));
        let unused = |_: Config| {};
        drop(base.serve(admin, Vec::new(), unused));
        let (edge, admin) = (edge_address, admin_address);
        Ok(Self { edge, admin, admin_api, reload, fleet, routing, registry, lifecycle })
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
        self.admin_api.as_ref().map(|api| api.address)
    }

    /// Puts other configs in force, in all services together.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
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
    pub fn into_started(self) -> Started<Config> {
        let mut ports = vec![("edge", self.edge), ("admin", self.admin)];
        ports.extend(self.admin_api().map(|address| ("admin_api", address)));
        let Self { lifecycle, registry, reload, .. } = self;
        Started { lifecycle, registry, ports, commit: Box::new(move |c| reload.apply(c)) }
    }

    /// Drains: no new connections, open streams go on for `limit` at most.
    pub async fn stop(self, limit: Duration) -> ShutdownOutcome {
        self.lifecycle.begin_drain();
        self.lifecycle.shutdown(limit).await
    }
}
