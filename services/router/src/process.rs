//! The router as a process of its own: `warmpath-router`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bus::{NatsBus, NatsConfig, RawNatsConfig};
use domain::Fleet;
use events::{DecisionEvents, Region};
use instrumentation::{LogConfig, Registry};
use launch::region::{MemberConfig, RawMember, fingerprint, shared_secret};
use launch::sections::{RawAdmin, RawRegion};
use launch::{Program, Started};
use lifecycle::{Drain, Lifecycle, Readiness, ServeLimits, TaskSpawner};
use replication::Role;
use rpc::{RawServerConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use settings::{Redacted, SettingsError};
use tokio::sync::watch;

use crate::{Config as RouterConfig, Deps, RawConfig as RawRouter, RegionBus, RegionDeps};

/// What must hold before edges are served: without it every model is unknown.
const THE_FLEET_IS_KNOWN: &str = "the fleet is known";

/// The config file as it stands.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// How backends are chosen.
    pub router: RawRouter,
    /// Who this process is.
    pub member: RawMember,
    /// Where edges and other routers connect.
    pub rpc: RawServerConfig,
    /// Where pools' owners tell other routers what they do. Without it they call each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<RawNatsConfig>,
    /// What others are told over the bus.
    pub events: RawEvents,
    /// What all services of a region share.
    pub region: RawRegion,
    /// The port for operators.
    pub admin: RawAdmin,
    /// Logs.
    pub log: LogConfig,
}

/// Section `[events]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawEvents {
    /// Others are told of one decision in so many; of none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decisions_one_in: Option<NonZeroU32>,
}

/// The config file, checked.
pub struct Config {
    router: RouterConfig,
    member: MemberConfig,
    rpc: ServerConfig,
    bus: Option<NatsConfig>,
    decisions_one_in: Option<NonZeroU32>,
    region: Region,
    region_secret: Redacted<Vec<u8>>,
    admin: SocketAddr,
    drain_timeout: Duration,
    log: LogConfig,
}

/// The process.
pub struct RouterProcess;

impl Program for RouterProcess {
    const NAME: &'static str = "warmpath-router";
    type Raw = RawConfig;
    type Config = Config;

    fn check(raw: RawConfig) -> Result<Config, SettingsError> {
        let decisions_one_in = raw.events.decisions_one_in;
        if decisions_one_in.is_some() && raw.bus.is_none() {
            let message = "decisions are told over the bus: the section [bus] is needed";
            return Err(SettingsError::new("events.decisions_one_in", message));
        }
        Ok(Config {
            router: RouterConfig::new(raw.router)?,
            member: MemberConfig::new(raw.member)?,
            rpc: ServerConfig::new(raw.rpc).map_err(|e| e.under("rpc"))?,
            decisions_one_in,
            bus: raw.bus.map(NatsConfig::new).transpose().map_err(|e| e.under("bus"))?,
            region: Region::new(&raw.region.name)
                .map_err(|e| SettingsError::new("region.name", e.to_string()))?,
            region_secret: shared_secret(raw.region.secret.as_ref())?,
            admin: raw.admin.listen,
            drain_timeout: raw.admin.drain_timeout.get(),
            log: raw.log,
        })
    }

    fn log(config: &Config) -> &LogConfig {
        &config.log
    }

    fn drain_timeout(config: &Config) -> Duration {
        config.drain_timeout
    }

    async fn start(config: Config) -> anyhow::Result<Started> {
        start(config).await
    }
}

async fn start(config: Config) -> anyhow::Result<Started> {
    let lifecycle = Lifecycle::new();
    let registry = Registry::new();
    lifecycle.register(&registry)?;
    instrumentation::register_build_info(
        &registry,
        RouterProcess::NAME,
        env!("CARGO_PKG_VERSION"),
    )?;
    let listener = lifecycle::bind(config.rpc.listen()).await.context("rpc.listen")?;
    let admin_listener = lifecycle::bind(config.admin).await.context("admin.listen")?;
    let (rpc_address, admin_address) = (listener.local_addr()?, admin_listener.local_addr()?);
    let background = lifecycle.background();

    let rpc_metrics = rpc::Metrics::default();
    rpc_metrics.register(&registry)?;
    let server = rpc::Server::new(listener, &config.rpc, rpc_metrics)?;
    let me = config.member.process();
    let feed = config.member.follow(
        &me,
        (Role::Router, server.address()),
        config.rpc.client(),
        (&registry, background.clone()),
    )?;
    let bus = config.bus.map(|bus| join_bus(bus, config.region, &registry, &background));
    let bus = bus.transpose()?;
    let decisions = bus
        .as_ref()
        .zip(config.decisions_one_in)
        .map(|(to, one_in)| DecisionEvents::new(to.bus.clone(), to.region.clone(), one_in));
    let deps = Deps { registry: registry.clone(), fleet: feed.fleet() };
    let router = config.router.build_in_region(
        deps,
        RegionDeps {
            me: me.clone(),
            members: feed.members(),
            fingerprint: fingerprint(&config.region_secret),
            client: config.rpc.client().clone(),
            bus,
            decisions,
            spawner: lifecycle.spawner(),
        },
    )?;

    let readiness = Readiness::new(lifecycle.drain());
    readiness.require(THE_FLEET_IS_KNOWN);
    let admin = lifecycle::admin::router(registry.clone(), readiness.clone())
        .merge(crate::api::admin_routes(router.admin()));
    background.spawn("readiness", follow_readiness(feed.fleet(), readiness));
    let serving = lifecycle::serve(admin_listener, admin, ServeLimits::ADMIN, background.clone());
    background.spawn("admin", serving);
    let routes = router.routes();
    background.spawn("router", router.run(background.drain()));
    lifecycle.spawn("rpc", serve(server, routes, lifecycle.drain()));
    tracing::info!(
        rpc.listen = %rpc_address,
        admin.listen = %admin_address,
        member.id = %me.id,
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    let ports = vec![("rpc", rpc_address), ("admin", admin_address)];
    Ok(Started { lifecycle, registry, ports })
}

fn join_bus(
    config: NatsConfig,
    region: Region,
    registry: &Registry,
    spawner: &TaskSpawner,
) -> anyhow::Result<RegionBus> {
    let metrics = bus::Metrics::default();
    metrics.register(registry)?;
    let bus = NatsBus::start(config, spawner.clone(), metrics);
    Ok(RegionBus { bus: Arc::new(bus), region })
}

async fn serve(server: rpc::Server, routes: tonic::service::Routes, drain: Drain) {
    if let Err(error) = server.run(routes, drain).await {
        tracing::error!(%error, "the gRPC port is closed");
    }
}

/// A router that knows no fleet would tell every edge that its model is unknown.
async fn follow_readiness(mut fleet: watch::Receiver<Arc<Fleet>>, readiness: Readiness) {
    loop {
        let is_known = fleet.borrow_and_update().revision > 0;
        readiness.set(THE_FLEET_IS_KNOWN, is_known);
        if fleet.changed().await.is_err() {
            return;
        }
    }
}
