//! A region as it is deployed: telemetry, routers and edges started from config files as their
//! binaries start, each with a runtime of its own, so that one can be killed while the others go
//! on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use instrumentation::Registry;
use launch::sections::Folders;
use launch::{Program, Started};
use lifecycle::{Lifecycle, ShutdownOutcome};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::client::Client;
use crate::cluster::MODEL;
use crate::desired::{Desired, path, secret_file};
use crate::metrics::Metrics;
use crate::wait::{PATIENCE, eventually};
use crate::wire::Wire;

fn checked<P: Program>(config: toml::Table) -> P::Config {
    let raw: P::Raw = config.try_into().unwrap_or_else(|e| panic!("{}: {e}", P::NAME));
    P::check(raw, &Folders::default()).unwrap_or_else(|e| panic!("{}: {e}", P::NAME))
}

/// One process's worth of a region.
pub struct Part {
    ports: Vec<(&'static str, SocketAddr)>,
    lifecycle: Lifecycle,
    registry: Registry,
    config: toml::Table,
    commit: Box<dyn FnMut(toml::Table) + Send>,
    runtime: Option<Runtime>,
}

impl Part {
    /// Starts what a binary starts from this config.
    fn start<P>(config: toml::Table) -> Self
    where
        P: Program,
        P::Raw: DeserializeOwned,
        P::Config: Send + 'static,
    {
        let (raw, config) = (config.clone(), checked::<P>(config));
        // A runtime cannot be entered from within another.
        let starting = std::thread::spawn(move || {
            let runtime = Runtime::new().expect("a runtime");
            let started = runtime.block_on(P::start(config)).map_err(|e| format!("{e:#}"));
            (runtime, started)
        });
        let (runtime, started) = starting.join().expect("it does not panic");
        let started = started.unwrap_or_else(|e| panic!("{}: {e}", P::NAME));
        let Started { lifecycle, registry, ports, mut commit } = started;
        let commit = Box::new(move |config| commit(checked::<P>(config)));
        Self { ports, lifecycle, registry, config: raw, commit, runtime: Some(runtime) }
    }

    /// Where it listens on behalf of a section.
    ///
    /// # Panics
    /// There is no such port.
    pub fn port(&self, section: &str) -> SocketAddr {
        let found = self.ports.iter().find(|(name, _)| *name == section);
        found.map(|(_, address)| *address).unwrap_or_else(|| panic!("no port for {section}"))
    }

    /// Its metrics.
    pub fn metrics(&self) -> Metrics {
        Metrics::new(instrumentation::encode(&self.registry))
    }

    /// What its port for operators says of readiness.
    pub async fn is_ready(&self) -> bool {
        let client = Client::new(self.port("admin"));
        let asked = client.try_send(http::Method::GET, "/readyz", &[], bytes::Bytes::new()).await;
        asked.is_ok_and(|reply| reply.status == 200)
    }

    /// Waits until it is ready.
    ///
    /// # Panics
    /// It is not within the limit.
    pub async fn await_ready(&self, limit: Duration) {
        eventually(limit, "it is ready", || self.is_ready()).await;
    }

    /// Puts its config in force with these keys over those it has, as a reload does.
    ///
    /// # Panics
    /// That is no valid config.
    pub fn reload_with(&mut self, fragment: &str) {
        let fragment = fragment.parse().unwrap_or_else(|e| panic!("{e}"));
        self.config = merged(std::mem::take(&mut self.config), fragment);
        (self.commit)(self.config.clone());
    }

    /// Asks it to end, as SIGTERM does.
    pub fn begin_drain(&self) {
        self.lifecycle.begin_drain();
    }

    /// Ends it as SIGTERM does, and waits for that.
    pub async fn end(&mut self, limit: Duration) -> ShutdownOutcome {
        let outcome = self.lifecycle.shutdown(limit).await;
        self.kill();
        outcome
    }

    /// Ends it without a word.
    pub fn kill(&mut self) {
        // What reloads holds on to the process's state, as a store's lock.
        self.commit = Box::new(|_| {});
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Telemetry, routers and edges. Edges and routers hear telemetry over a wire that can be cut.
pub struct Region {
    /// Telemetry.
    pub telemetry: Part,
    /// The routers.
    pub routers: Vec<Part>,
    /// The edges.
    pub edges: Vec<Part>,
    /// What telemetry is told to want.
    pub desired: Desired,
    /// Between telemetry and everybody else.
    pub wire: Wire,
    further: toml::Table,
    folder: TempDir,
}

impl Region {
    /// Starts so many routers and edges before these backends, with further keys of the edges'
    /// config, and waits until all are ready.
    ///
    /// # Panics
    /// Something does not start, or not in time.
    pub async fn start(
        routers: usize,
        edges: usize,
        backends: &[(&str, String)],
        edge_config: &str,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        secret_file(folder.path(), "region", "what-all-of-a-region-share");
        let telemetry = Part::start::<telemetry::process::Telemetry>(telemetry_config(&folder));
        let desired = Desired::new(telemetry.port("admin_api"));
        for (id, url) in backends {
            desired.put_backend(id, url).await;
        }
        let wire = Wire::to(&telemetry.port("rpc").to_string()).await;
        let further = edge_config.parse().unwrap_or_else(|e| panic!("{e}"));
        let (none, empty) = (Vec::new(), Vec::new());
        let mut region =
            Self { telemetry, routers: none, edges: empty, desired, wire, further, folder };
        region.routers = (0..routers).map(|n| region.new_router(n)).collect();
        region.edges = (0..edges).map(|n| region.new_edge(n)).collect();
        for part in region.routers.iter().chain(&region.edges) {
            part.await_ready(PATIENCE).await;
        }
        for edge in &region.edges {
            let all = || async { served(edge).await };
            eventually(PATIENCE, "the edge serves the model", all).await;
        }
        region
    }

    /// A router of this number: a new process under the old name, if there was one.
    pub fn new_router(&self, number: usize) -> Part {
        let config = self.member("router", number);
        let rpc = "[rpc]\nlisten = \"127.0.0.1:0\"".parse().expect("valid TOML");
        Part::start::<router::process::RouterProcess>(merged(config, rpc))
    }

    /// An edge of this number.
    pub fn new_edge(&self, number: usize) -> Part {
        let base = format!(
            "[edge]\nlisten = \"127.0.0.1:0\"\ndrain_notice = \"0s\"\n\
             [routers]\nanswer_deadline = \"2s\"\n\
             [[tenants]]\nid = \"anonymous\"\ndebug_headers = true\n\
             [[models]]\nid = \"{MODEL}\"\nfolder = \"builtin\""
        );
        let config = merged(self.member("edge", number), base.parse().expect("valid TOML"));
        Part::start::<edge::process::Edge>(merged(config, self.further.clone()))
    }

    fn member(&self, role: &str, number: usize) -> toml::Table {
        let config = format!(
            "[member]\nid = \"{role}-{number}\"\ntelemetry = \"{}\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"",
            self.wire.address
        );
        merged(config.parse().expect("valid TOML"), region_section(&self.folder))
    }

    /// Telemetry again, with what it had stored, where it was.
    pub fn telemetry_again(&mut self) {
        let mut config = telemetry_config(&self.folder);
        for section in ["rpc", "admin_api"] {
            let address = self.telemetry.port(section).to_string();
            let table = config[section].as_table_mut().expect("a section");
            table.insert("listen".to_owned(), address.into());
        }
        self.telemetry = Part::start::<telemetry::process::Telemetry>(config);
    }

    /// A client of an edge.
    pub fn client(&self, edge: usize) -> Client {
        Client::new(self.edges[edge].port("edge"))
    }

    /// The backends that a router can choose from.
    pub async fn chosen_from(&self, router: usize) -> Vec<String> {
        let operator = Client::new(self.routers[router].port("admin"));
        let page = operator.get("/admin/v1/backends").await.json();
        let ranks = page["ranks"].as_array().into_iter().flatten();
        let ready = ranks.filter(|rank| rank["state"] == "ready");
        let mut names: Vec<String> =
            ready.filter_map(|rank| Some(rank["backend"].as_str()?.to_owned())).collect();
        names.sort();
        names.dedup();
        names
    }
}

async fn served(edge: &Part) -> bool {
    let client = Client::new(edge.port("edge"));
    let reply = client.get("/v1/models").await;
    // With tenants it asks for a key first.
    reply.status == 401 || reply.text().contains(MODEL)
}

fn region_section(folder: &TempDir) -> toml::Table {
    let secret = toml::Table::from_iter([("file".to_owned(), path(&folder.path().join("region")))]);
    let region = toml::Table::from_iter([("secret".to_owned(), secret.into())]);
    toml::Table::from_iter([("region".to_owned(), region.into())])
}

fn telemetry_config(folder: &TempDir) -> toml::Table {
    let base = format!(
        "[rpc]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [telemetry]\nprobe_interval = \"100ms\"\nmetrics_interval = \"50ms\"\n\
         listing_interval = \"1s\"\ntimeout = \"2s\"\n\
         [[models]]\nid = \"{MODEL}\"\nfolder = \"builtin\""
    );
    let base = merged(base.parse().expect("valid TOML"), region_section(folder));
    merged(base, Desired::section(folder.path()))
}

fn merged(mut into: toml::Table, from: toml::Table) -> toml::Table {
    crate::cluster::merge(&mut into, from);
    into
}

/// Clients that go round edges which say that they are ready, as a load balancer does.
pub struct Balancer {
    turn: std::sync::atomic::AtomicUsize,
    edges: Arc<parking_lot::Mutex<Vec<Client>>>,
}

impl Balancer {
    /// Before these edges.
    pub fn before(edges: &[Part]) -> Self {
        let clients = edges.iter().map(|edge| Client::new(edge.port("edge"))).collect();
        Self { turn: Default::default(), edges: Arc::new(parking_lot::Mutex::new(clients)) }
    }

    /// From now on only these.
    pub fn keep(&self, edges: &[Part]) {
        *self.edges.lock() = edges.iter().map(|edge| Client::new(edge.port("edge"))).collect();
    }

    /// Whose turn it is.
    pub fn next(&self) -> Client {
        let edges = self.edges.lock();
        let turn = self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        edges[turn % edges.len()].clone()
    }
}
