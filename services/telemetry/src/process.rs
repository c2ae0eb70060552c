//! Telemetry as a process of its own: `warmpath-telemetry`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bus::{Bus, NatsBus, NatsConfig, RawNatsConfig};
use config_feed::ControlService;
use config_store::ConfigStore;
use domain::Fleet;
use events::Region;
use instrumentation::{LogConfig, Registry};
use launch::sections::{Models, RawAdmin, RawModel, RawRegion, load_models};
use launch::{Program, Started};
use lifecycle::{Drain, Lifecycle, Readiness, ServeLimits, TaskSpawner};
use rpc::{RawServerConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use settings::{NamedCredential, SettingsError};
use tokio::sync::watch;

use crate::announce;
use crate::backend_events::BackendEvents;
use crate::{Config as TelemetryConfig, Deps, RawBackend, RawConfig as RawTelemetry, admin};

/// What must hold before members are told of the fleet.
const THE_FLEET_IS_WHOLE: &str = "every backend was probed";

/// The config file as it stands.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// How backends are watched, and where the desired state is kept.
    pub telemetry: RawTelemetry,
    /// Where edges and routers connect.
    pub rpc: RawServerConfig,
    /// Where operators and scripts change the desired state.
    pub admin_api: admin::RawConfig,
    /// The bus: events for others, engines that announce themselves. None if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bus: Option<RawNatsConfig>,
    /// What all services of a region share.
    pub region: RawRegion,
    /// The port for operators.
    pub admin: RawAdmin,
    /// Logs.
    pub log: LogConfig,
    /// The engines that are always there.
    pub backends: Vec<RawBackend>,
    /// What backends ask for, by the name that their documents give.
    pub credentials: Vec<NamedCredential>,
    /// Models with their tokenizers.
    pub models: Vec<RawModel>,
}

/// The config file, checked.
pub struct Config {
    telemetry: TelemetryConfig,
    rpc: ServerConfig,
    admin_api: Option<admin::Config>,
    bus: Option<NatsConfig>,
    region: Region,
    admin: SocketAddr,
    drain_timeout: Duration,
    log: LogConfig,
    models: Models,
}

/// The process.
pub struct Telemetry;

impl Program for Telemetry {
    const NAME: &'static str = "warmpath-telemetry";
    type Raw = RawConfig;
    type Config = Config;

    fn check(raw: RawConfig) -> Result<Config, SettingsError> {
        let credentials: HashMap<_, _> = settings::resolve_credentials(&raw.credentials)?;
        Ok(Config {
            telemetry: TelemetryConfig::new(raw.telemetry, raw.backends)?
                .with_credentials(&credentials)?,
            rpc: ServerConfig::new(raw.rpc).map_err(|e| e.under("rpc"))?,
            admin_api: admin::Config::new(raw.admin_api)?,
            bus: raw.bus.map(NatsConfig::new).transpose().map_err(|e| e.under("bus"))?,
            region: Region::new(&raw.region.name)
                .map_err(|e| SettingsError::new("region.name", e.to_string()))?,
            admin: raw.admin.listen,
            drain_timeout: raw.admin.drain_timeout.get(),
            log: raw.log,
            models: load_models(&raw.models)?,
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
    instrumentation::register_build_info(&registry, Telemetry::NAME, env!("CARGO_PKG_VERSION"))?;
    let listener = lifecycle::bind(config.rpc.listen()).await.context("rpc.listen")?;
    let admin_listener = lifecycle::bind(config.admin).await.context("admin.listen")?;
    let (rpc_address, admin_address) = (listener.local_addr()?, admin_listener.local_addr()?);
    let mut ports = vec![("rpc", rpc_address), ("admin", admin_address)];
    let background = lifecycle.background();

    let store = config.telemetry.open_store(&registry)?;
    let telemetry = config.telemetry.build(Deps {
        registry: registry.clone(),
        spawner: background.clone(),
        models: config.models,
        store: store.clone(),
    })?;
    let (fleet, whole, hub) = (telemetry.fleet(), telemetry.whole(), telemetry.hub());
    if let Some(config) = config.admin_api {
        let deps = admin::Deps {
            registry: registry.clone(),
            store: store.clone(),
            fleet: fleet.clone(),
            members: hub.members(),
        };
        ports.push(("admin_api", serve_admin_api(config, deps, &background).await?));
    }
    if let Some(bus) = config.bus {
        join_bus(bus, config.region, (&registry, &background), (&store, &fleet))?;
    }

    let readiness = Readiness::new(lifecycle.drain());
    readiness.require(THE_FLEET_IS_WHOLE);
    let admin = lifecycle::admin::router(registry.clone(), readiness.clone());
    background.spawn("readiness", follow_readiness(whole, readiness));
    let serving = lifecycle::serve(admin_listener, admin, ServeLimits::ADMIN, background.clone());
    background.spawn("admin", serving);
    background.spawn("telemetry", telemetry.run(background.drain()));
    let rpc_metrics = rpc::Metrics::default();
    rpc_metrics.register(&registry)?;
    let server = rpc::Server::new(listener, &config.rpc, rpc_metrics)?;
    let routes = tonic::service::Routes::new(ControlService::new(hub, lifecycle.drain()));
    lifecycle.spawn("rpc", serve(server, routes, lifecycle.drain()));
    tracing::info!(
        rpc.listen = %rpc_address,
        admin.listen = %admin_address,
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    Ok(Started { lifecycle, registry, ports })
}

async fn serve(server: rpc::Server, routes: tonic::service::Routes, drain: Drain) {
    if let Err(error) = server.run(routes, drain).await {
        tracing::error!(%error, "the gRPC port is closed");
    }
}

/// Serves the admin API until the spawner's drain, and returns where.
///
/// # Errors
/// The port cannot be bound, or a metric's name is taken.
pub async fn serve_admin_api(
    config: admin::Config,
    deps: admin::Deps,
    spawner: &TaskSpawner,
) -> anyhow::Result<SocketAddr> {
    let listener = lifecycle::bind(config.listen()).await.context("admin_api.listen")?;
    let address = listener.local_addr()?;
    tracing::info!(admin_api.listen = %address, "serving the admin API");
    let api = config.build(deps)?;
    spawner.spawn("admin-api", api.run(listener, spawner.clone()));
    Ok(address)
}

/// Tells others of backends, and hears engines that announce themselves.
fn join_bus(
    config: NatsConfig,
    region: Region,
    (registry, spawner): (&Registry, &TaskSpawner),
    (store, fleet): (&Arc<dyn ConfigStore>, &watch::Receiver<Arc<Fleet>>),
) -> anyhow::Result<()> {
    let metrics = bus::Metrics::default();
    metrics.register(registry)?;
    let bus: Arc<dyn Bus> = Arc::new(NatsBus::start(config, spawner.clone(), metrics));
    let events = BackendEvents::new(registry, bus.clone(), region.clone(), fleet.clone())?;
    spawner.spawn("backend-events", events.run(spawner.drain()));
    let deps = announce::Deps {
        registry: registry.clone(),
        bus,
        region,
        store: store.clone(),
        fleet: fleet.clone(),
    };
    let announcements = deps.build()?;
    spawner.spawn("announcements", announcements.run(spawner.drain()));
    Ok(())
}

async fn follow_readiness(mut whole: watch::Receiver<bool>, readiness: Readiness) {
    loop {
        let is_whole = *whole.borrow_and_update();
        readiness.set(THE_FLEET_IS_WHOLE, is_whole);
        if whole.changed().await.is_err() {
            return;
        }
    }
}
