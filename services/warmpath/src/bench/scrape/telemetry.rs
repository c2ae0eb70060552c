//! Telemetry alone in a process, with a thousand backends in its store. It changes a document and
//! a backend's wish from time to time, so that their way can be timed.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bus::{NatsBus, NatsConfig, RawNatsConfig};
use config_feed::{ControlService, Guard};
use config_store::typed::{self, Signature, Stored};
use config_store::{ConfigStore, Limits, MemoryStore, Timestamp};
use domain::desired::{Backend, Document, LifecycleWish, Tenant};
use events::Region;
use lifecycle::Lifecycle;
use serde_json::json;
use telemetry::load_events::LoadEvents;

use super::wall_micros;

/// The tenant that is changed.
pub(super) const TENANT: &str = "bench";

/// The field with the moment of a change, in microseconds since 1970.
pub(super) const AT: &str = "changed_at_micros";

/// Between two changes. Not a multiple of anything that telemetry does once a second.
const CHANGE_EVERY: Duration = Duration::from_millis(437);

/// Options of telemetry's process.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The engines' ports, one a line
    #[arg(long)]
    ports: PathBuf,
    /// Where the address that clients connect to is written
    #[arg(long)]
    address: PathBuf,
    /// A NATS server that is told of loads
    #[arg(long)]
    nats: Option<String>,
}

/// The name of the nth backend.
pub(super) fn backend_id(n: usize) -> String {
    format!("backend-{n:04}")
}

/// Writes a file in one step, so that nobody reads half of it.
pub(super) fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let aside = path.with_extension("part");
    std::fs::write(&aside, text)?;
    Ok(std::fs::rename(aside, path)?)
}

/// Serves until it is killed.
///
/// # Errors
/// When the store or the port fails.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new(Limits::default())?);
    for (n, port) in std::fs::read_to_string(&args.ports)?.lines().enumerate() {
        let url = format!("http://127.0.0.1:{port}");
        let backend = json!({ "id": backend_id(n), "url": url });
        commit(&*store, &serde_json::from_value::<Backend>(backend)?).await?;
    }
    let lifecycle = Lifecycle::new();
    let config = telemetry::Config::new(telemetry::RawConfig::default(), Vec::new())?;
    let service = config.build(telemetry::Deps {
        registry: prometheus_registry(),
        spawner: lifecycle.spawner(),
        models: HashMap::new(),
        store: store.clone(),
    })?;
    if let Some(url) = args.nats {
        let raw = RawNatsConfig { servers: vec![url], ..RawNatsConfig::default() };
        let (spawner, metrics) = (lifecycle.background(), bus::Metrics::default());
        let bus = Arc::new(NatsBus::start(NatsConfig::new(raw)?, spawner.clone(), metrics));
        let region = Region::new("bench")?;
        let loads = LoadEvents::new(&prometheus_registry(), bus, region, service.fleet())?;
        spawner.spawn("load-events", loads.run(spawner.drain()));
    }
    let control = ControlService::new(service.hub(), lifecycle.drain(), Guard::default());
    let listener = lifecycle::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let server_config = rpc::ServerConfig::new(rpc::RawServerConfig::default())?;
    let server = rpc::Server::new(listener, &server_config, rpc::Metrics::default())?;
    write_whole(&args.address, server.address())?;
    lifecycle.spawn("telemetry", service.run(lifecycle.drain()));
    let drain = lifecycle.drain();
    let routes = tonic::service::Routes::new(control);
    tokio::select! {
        served = server.run(routes, drain) => served?,
        changed = change(&*store) => changed?,
    }
    Ok(())
}

fn prometheus_registry() -> instrumentation::Registry {
    instrumentation::Registry::new()
}

/// Makes a document, or puts it in place of what is there.
async fn commit<D: Document>(store: &dyn ConfigStore, document: &D) -> anyhow::Result<()> {
    let by = Signature { author: "bench".into(), at: Timestamp::now() };
    let change = match store.get(&typed::key::<D>(document.id())?).await? {
        None => typed::create(document, by)?,
        Some(entry) => match typed::read::<D>(&entry)? {
            Some(stored) => typed::replace::<D>(&stored as &Stored<D>, document, by)?,
            None => typed::create(document, by)?,
        },
    };
    store.commit(change).await?;
    Ok(())
}

/// Changes a tenant and a backend in turn.
async fn change(store: &dyn ConfigStore) -> anyhow::Result<()> {
    let key = typed::key::<Backend>(&backend_id(0))?;
    loop {
        tokio::time::sleep(CHANGE_EVERY).await;
        let tenant = json!({ "id": TENANT, AT: wall_micros() });
        commit(store, &serde_json::from_value::<Tenant>(tenant)?).await?;
        tokio::time::sleep(CHANGE_EVERY).await;
        let Some(entry) = store.get(&key).await? else { continue };
        let Some(stored) = typed::read::<Backend>(&entry)? else { continue };
        let wish = match stored.document.wish {
            LifecycleWish::Ready => LifecycleWish::Draining,
            _ => LifecycleWish::Ready,
        };
        let mut backend = Backend { wish, ..stored.document };
        backend.unknown.insert(AT.to_owned(), wall_micros().into());
        commit(store, &backend).await?;
    }
}
