//! The edge as a process of its own: `warmpath-edge`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use config_feed::Documents;
use domain::Fleet;
use instrumentation::LogConfig;
use launch::region::{MemberConfig, RawMember, fingerprint, shared_secret};
use launch::sections::{
    Folders, Models, RawAdmin, RawModel, RawRegion, distinct_listeners, load_models,
};
use launch::{Base, Fixed, Program, Started};
use lifecycle::AdminRoutes;
use replication::Role;
use rpc::{ClientConfig, RawClientConfig};
use serde::{Deserialize, Serialize};
use session::SessionClient;
use settings::{NamedCredential, Redacted, SettingsError};
use tokio::sync::watch;

use crate::{Config as EdgeConfig, Deps, Keys, RawAuth, RawConfig as RawEdge, RawKey, RawTenant};

/// The edge cuts what is still open so long before the process gives up on it, so that the error
/// event reaches its client.
const CUT_MARGIN: Duration = Duration::from_secs(1);

/// How long clients wait for an edge that has just started and knows nothing yet.
const START_WAIT: Duration = Duration::from_secs(5);

/// What must hold before traffic is welcome.
const A_BACKEND_IS_READY: &str = "a backend is ready";

/// Before it was connected to a router once, an edge would scatter what it decides alone. Later
/// it serves on without.
const A_ROUTER_WAS_REACHED: &str = "a router was reached";

/// The config file as it stands.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// Where and how clients are served.
    pub edge: RawEdge,
    /// How routers are asked.
    pub routers: session::RawConfig,
    /// Who this process is.
    pub member: RawMember,
    /// How peers are called.
    pub rpc: RawClientConfig,
    /// What all services of a region share.
    pub region: RawRegion,
    /// The port for operators.
    pub admin: RawAdmin,
    /// Logs.
    pub log: LogConfig,
    /// Models with their tokenizers.
    pub models: Vec<RawModel>,
    /// Tenants beside those that telemetry has.
    pub tenants: Vec<RawTenant>,
    /// API keys beside those that telemetry has.
    pub keys: Vec<RawKey>,
    /// Keys that are changed while it runs.
    pub auth: RawAuth,
    /// What backends ask for, by the name that their documents give.
    pub credentials: Vec<NamedCredential>,
}

/// The config file, checked.
pub struct Config {
    edge: EdgeConfig,
    routers: session::Config,
    member: MemberConfig,
    client: ClientConfig,
    region_secret: Redacted<Vec<u8>>,
    admin: SocketAddr,
    drain_timeout: Duration,
    log: LogConfig,
    models: Models,
}

/// The process.
pub struct Edge;

impl Program for Edge {
    const NAME: &'static str = "warmpath-edge";
    type Raw = RawConfig;
    type Config = Config;

    const FIXED: &'static [Fixed] = &[
        Fixed::Key("edge.listen"),
        Fixed::Key("edge.body_memory_bytes"),
        Fixed::Key("edge.max_connections"),
        Fixed::Key("edge.traces"),
        Fixed::Key("routers"),
        Fixed::Key("member"),
        Fixed::Key("rpc"),
        Fixed::Key("region"),
        Fixed::Key("admin.listen"),
        Fixed::Key("log.format"),
        Fixed::Key("models"),
    ];

    fn check(raw: RawConfig, folders: &Folders) -> Result<Config, SettingsError> {
        let listeners = [("edge.listen", raw.edge.listen), ("admin.listen", raw.admin.listen)];
        distinct_listeners(&listeners)?;
        let drain_timeout = raw.admin.drain_timeout.get();
        let client = ClientConfig::new(raw.rpc).map_err(|e| e.under("rpc"))?;
        let credentials = settings::resolve_credentials(&raw.credentials)?;
        Ok(Config {
            edge: EdgeConfig::new(raw.edge, &raw.auth, raw.tenants, raw.keys, Keys::OfFeed)?
                .with_credentials(&credentials)?
                .drain_within(drain_timeout.saturating_sub(CUT_MARGIN)),
            routers: session::Config::new(raw.routers, client.clone())
                .map_err(|e| e.under("routers"))?,
            member: MemberConfig::new(raw.member)?,
            client,
            region_secret: shared_secret(raw.region.secret.as_ref())?,
            admin: raw.admin.listen,
            drain_timeout,
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
    let base = Base::begin(Edge::NAME, config.admin).await?;
    let (lifecycle, registry) = (base.lifecycle.clone(), base.registry.clone());
    let (background, admin_address) = (base.background.clone(), base.admin_address);
    let listener = lifecycle::bind(config.edge.listen()).await.context("edge.listen")?;

    let me = config.member.process();
    let feed = config.member.follow(
        &me,
        (Role::Edge, ""),
        (&config.client, fingerprint(&config.region_secret)),
        (&registry, background.clone()),
    )?;
    let metrics = session::Metrics::default();
    metrics.register(&registry)?;
    let routing = SessionClient::start(
        config.routers,
        session::Deps {
            spawner: background.clone(),
            me: me.clone(),
            fingerprint: fingerprint(&config.region_secret),
            fleet: feed.fleet(),
            members: feed.members(),
            metrics,
        },
    );
    let edge = config.edge.build(Deps {
        registry: registry.clone(),
        spawner: lifecycle.spawner(),
        routing: Arc::new(routing.clone()),
        listener,
        models: config.models,
        feed: Some(feed.clone()),
        region_secret: config.region_secret,
    })?;
    let (address, reload) = (edge.address(), edge.reload());

    let is_served = |fleet: &Arc<Fleet>| fleet.has_ready();
    base.readiness.follow(&background, A_BACKEND_IS_READY, feed.fleet(), is_served);
    let (client, readiness) = (routing.clone(), base.readiness.clone());
    readiness.require(A_ROUTER_WAS_REACHED);
    background.spawn("readiness", async move {
        routing.connected().await;
        readiness.set(A_ROUTER_WAS_REACHED, true);
    });
    let (drain, documents) = (lifecycle.drain(), feed.documents());
    lifecycle.spawn("edge", async move {
        know_the_region(&client, documents).await;
        edge.run(drain).await;
    });
    tracing::info!(
        edge.listen = %address,
        admin.listen = %admin_address,
        member.id = %me.id,
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    let commit = move |config| {
        // What takes a restart, and what the process itself goes by.
        let Config {
            edge,
            routers: _,
            member: _,
            client: _,
            region_secret: _,
            admin: _,
            drain_timeout: _,
            log: _,
            models: _,
        } = config;
        reload.apply(edge);
    };
    Ok(base.serve(AdminRoutes::new(), vec![("edge", address)], commit))
}

/// Waits for keys to check and a router to ask, so that who comes first is not turned away: until
/// then connections wait in the kernel. Not for ever: an edge serves what it can without either.
async fn know_the_region(routing: &SessionClient, mut documents: watch::Receiver<Documents>) {
    let known = async {
        let heard = documents.wait_for(|documents| !documents.position.store.is_empty()).await;
        drop(heard);
        routing.connected().await;
    };
    if tokio::time::timeout(START_WAIT, known).await.is_err() {
        tracing::warn!("neither telemetry nor a router was reached: serving without");
    }
}
