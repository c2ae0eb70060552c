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
use launch::sections::{Folders, RawAdmin, RawRegion, distinct_listeners};
use launch::{Base, Fixed, Program, Started};
use lifecycle::TaskSpawner;
use replication::Role;
use rpc::{RawServerConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use settings::{Redacted, SettingsError};

use crate::{Config as RouterConfig, Deps, RawConfig as RawRouter, RegionBus, RegionDeps};

/// What must hold before edges are served: without it they would be told that every model is
/// unknown.
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

    const FIXED: &'static [Fixed] = &[
        Fixed::Key("member"),
        Fixed::Key("rpc"),
        Fixed::Key("bus"),
        Fixed::Key("events"),
        Fixed::Key("region"),
        Fixed::Key("admin.listen"),
        Fixed::Key("log.format"),
    ];

    fn check(raw: RawConfig, _: &Folders) -> Result<Config, SettingsError> {
        let listeners = [("rpc.listen", raw.rpc.listen), ("admin.listen", raw.admin.listen)];
        distinct_listeners(&listeners)?;
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

    async fn start(config: Config) -> anyhow::Result<Started<Config>> {
        start(config).await
    }
}

async fn start(config: Config) -> anyhow::Result<Started<Config>> {
    let base = Base::begin(RouterProcess::NAME, config.admin).await?;
    let (lifecycle, registry) = (base.lifecycle.clone(), base.registry.clone());
    let (background, admin_address) = (base.background.clone(), base.admin_address);
    let listener = lifecycle::bind(config.rpc.listen()).await.context("rpc.listen")?;
    let rpc_address = listener.local_addr()?;

    let rpc_metrics = rpc::Metrics::default();
    rpc_metrics.register(&registry)?;
    let server = rpc::Server::new(listener, &config.rpc, rpc_metrics)?;
    let me = config.member.process();
    let feed = config.member.follow(
        &me,
        (Role::Router, server.address()),
        (config.rpc.client(), fingerprint(&config.region_secret)),
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

    let is_known = |fleet: &Arc<Fleet>| fleet.revision > 0;
    base.readiness.follow(&background, THE_FLEET_IS_KNOWN, feed.fleet(), is_known);
    let (admin, reload) = (crate::api::admin_routes(router.admin()), router.admin());
    let routes = router.routes();
    background.spawn("router", router.run(background.drain()));
    lifecycle.spawn("rpc", server.serve(routes, lifecycle.drain()));
    tracing::info!(
        rpc.listen = %rpc_address,
        admin.listen = %admin_address,
        member.id = %me.id,
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    let commit = move |config| {
        // What takes a restart, and what the process itself goes by.
        let Config {
            router,
            member: _,
            rpc: _,
            bus: _,
            decisions_one_in: _,
            region: _,
            region_secret: _,
            admin: _,
            drain_timeout: _,
            log: _,
        } = config;
        reload.configure(router);
    };
    Ok(base.serve(admin, vec![("rpc", rpc_address)], commit))
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
