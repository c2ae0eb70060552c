//! Telemetry as a process of its own: `warmpath-telemetry`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bus::{Bus, NatsBus, NatsConfig, RawNatsConfig};
use config_feed::{ControlService, Guard};
use config_store::ConfigStore;
use domain::Fleet;
use events::Region;
use instrumentation::{LogConfig, Registry};
use launch::region::{fingerprint, shared_secret};
use launch::sections::{
    Folders, Models, RawAdmin, RawModel, RawRegion, distinct_listeners, load_models,
};
use launch::{Base, Fixed, Program, Started};
use lifecycle::{AdminRoutes, TaskSpawner};
use rpc::{Fingerprint, RawServerConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use settings::{NamedCredential, SettingsError};
use tokio::sync::watch;

use crate::announce;
use crate::backend_events::BackendEvents;
use crate::load_events::LoadEvents;
use crate::{
    Config as TelemetryConfig, Deps, FileBackends, RawBackend, RawConfig as RawTelemetry, admin,
};

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
    /// What edges and routers have to show; nothing if absent.
    members_of: Option<Fingerprint>,
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

    const FIXED: &'static [Fixed] = &[
        Fixed::Key("telemetry.store"),
        Fixed::Key("rpc"),
        Fixed::Key("admin_api.listen"),
        Fixed::Presence("admin_api.tokens"),
        Fixed::Presence("admin_api.tls.cert"),
        Fixed::Key("bus"),
        Fixed::Key("region"),
        Fixed::Key("admin.listen"),
        Fixed::Key("log.format"),
        Fixed::Key("models"),
    ];

    fn check(raw: RawConfig, folders: &Folders) -> Result<Config, SettingsError> {
        let ports = [("rpc.listen", raw.rpc.listen), ("admin.listen", raw.admin.listen)];
        let api = raw.admin_api.served_at().map(|listen| ("admin_api.listen", listen));
        distinct_listeners(&ports.into_iter().chain(api).collect::<Vec<_>>())?;
        let credentials: HashMap<_, _> = settings::resolve_credentials(&raw.credentials)?;
        let secret = raw.region.secret.as_ref().map(|secret| shared_secret(Some(secret)));
        Ok(Config {
            telemetry: TelemetryConfig::new(raw.telemetry, raw.backends)?
                .with_credentials(&credentials)?,
            rpc: ServerConfig::new(raw.rpc).map_err(|e| e.under("rpc"))?,
            admin_api: admin::Config::new(raw.admin_api)?,
            bus: raw.bus.map(NatsConfig::new).transpose().map_err(|e| e.under("bus"))?,
            region: Region::new(&raw.region.name)
                .map_err(|e| SettingsError::new("region.name", e.to_string()))?,
            members_of: secret.transpose()?.as_ref().map(fingerprint),
            admin: raw.admin.listen,
            drain_timeout: raw.admin.drain_timeout.get(),
            log: raw.log,
            models: load_models(&raw.models, folders)?,
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
    let base = Base::begin(Telemetry::NAME, config.admin).await?;
    let (lifecycle, registry) = (base.lifecycle.clone(), base.registry.clone());
    let (background, admin_address) = (base.background.clone(), base.admin_address);
    let listener = lifecycle::bind(config.rpc.listen()).await.context("rpc.listen")?;
    let rpc_address = listener.local_addr()?;
    let mut ports = vec![("rpc", rpc_address)];

    let store = config.telemetry.open_store(&registry)?;
    let telemetry = config.telemetry.build(Deps {
        registry: registry.clone(),
        spawner: background.clone(),
        models: config.models,
        store: store.clone(),
    })?;
    let (fleet, whole, hub) = (telemetry.fleet(), telemetry.whole(), telemetry.hub());
    let (file, reload) = (telemetry.file_backends(), telemetry.reload());
    let deps = admin::Deps {
        registry: registry.clone(),
        store: store.clone(),
        fleet: fleet.clone(),
        members: hub.members(),
        file: file.clone(),
    };
    let admin_api = serve_admin_api(config.admin_api, deps, &background).await?;
    ports.extend(admin_api.as_ref().map(|api| ("admin_api", api.address)));
    if let Some(bus) = config.bus {
        join_bus(bus, config.region, (&registry, &background), (&store, &fleet, file))?;
    }

    base.readiness.follow(&background, THE_FLEET_IS_WHOLE, whole, |is_whole| *is_whole);
    background.spawn("telemetry", telemetry.run(background.drain()));
    let rpc_metrics = rpc::Metrics::default();
    rpc_metrics.register(&registry)?;
    let server = rpc::Server::new(listener, &config.rpc, rpc_metrics)?;
    let guard = guard(config.members_of, &registry)?;
    let control = ControlService::new(hub, lifecycle.drain(), guard);
    let routes = tonic::service::Routes::new(control);
    lifecycle.spawn("rpc", server.serve(routes, lifecycle.drain()));
    tracing::info!(
        rpc.listen = %rpc_address,
        admin.listen = %admin_address,
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    let commit = move |config| {
        // What takes a restart, and what the process itself goes by.
        let Config {
            telemetry,
            admin_api: of_api,
            rpc: _,
            bus: _,
            region: _,
            members_of: _,
            admin: _,
            drain_timeout: _,
            log: _,
            models: _,
        } = config;
        reload.apply(telemetry);
        if let (Some(api), Some(config)) = (&admin_api, of_api) {
            api.reload.apply(config);
        }
    };
    Ok(base.serve(AdminRoutes::new(), ports, commit))
}

/// Who may be a member.
fn guard(region: Option<Fingerprint>, registry: &Registry) -> anyhow::Result<Guard> {
    if region.is_none() {
        tracing::warn!(
            "region.secret is not set: whoever reaches the gRPC port can be a member of the region"
        );
    }
    let guard = Guard { region, ..Guard::default() };
    guard.refusals.register(registry)?;
    Ok(guard)
}

/// An admin API that is served.
pub struct ServedApi {
    /// Where.
    pub address: SocketAddr,
    /// Puts other configs of it in force.
    pub reload: admin::Reload,
}

/// Serves the admin API until the spawner's drain, if anybody may use it.
///
/// # Errors
/// The port cannot be bound, or a metric's name is taken.
pub async fn serve_admin_api(
    config: Option<admin::Config>,
    deps: admin::Deps,
    spawner: &TaskSpawner,
) -> anyhow::Result<Option<ServedApi>> {
    let Some(config) = config else {
        tracing::info!("no admin API is served: [[admin_api.tokens]] is empty");
        return Ok(None);
    };
    let listener = lifecycle::bind(config.listen()).await.context("admin_api.listen")?;
    let address = listener.local_addr()?;
    tracing::info!(
        admin_api.listen = %address, admin_api.tls = config.is_encrypted(),
        "serving the admin API"
    );
    let api = config.build(deps)?;
    let reload = api.reload();
    spawner.spawn("admin-api", api.run(listener, spawner.clone()));
    Ok(Some(ServedApi { address, reload }))
}

/// Tells others of backends, and hears engines that announce themselves.
fn join_bus(
    config: NatsConfig,
    region: Region,
    (registry, spawner): (&Registry, &TaskSpawner),
    (store, fleet, file): (&Arc<dyn ConfigStore>, &watch::Receiver<Arc<Fleet>>, FileBackends),
) -> anyhow::Result<()> {
    let metrics = bus::Metrics::default();
    metrics.register(registry)?;
    let bus: Arc<dyn Bus> = Arc::new(NatsBus::start(config, spawner.clone(), metrics));
    let events = BackendEvents::new(registry, bus.clone(), region.clone(), fleet.clone())?;
    spawner.spawn("backend-events", events.run(spawner.drain()));
    let loads = LoadEvents::new(registry, bus.clone(), region.clone(), fleet.clone())?;
    spawner.spawn("load-events", loads.run(spawner.drain()));
    let deps = announce::Deps {
        registry: registry.clone(),
        bus,
        region,
        store: store.clone(),
        fleet: fleet.clone(),
        file,
    };
    let announcements = deps.build()?;
    spawner.spawn("announcements", announcements.run(spawner.drain()));
    Ok(())
}
