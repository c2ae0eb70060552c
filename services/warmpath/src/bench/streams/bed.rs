//! The processes under test.

use std::net::{Ipv4Addr, SocketAddr};

use lifecycle::Lifecycle;

use super::reader::Target;
use super::{Args, source};
use crate::bench::child::ChildProcess;
use crate::bench::drive;

/// The double's model, and that of the engine in this process.
pub(super) const DOUBLE: &str = "double";
pub(super) const SOURCE: &str = "source";
/// A model of it with a cache that is followed by tokens, and an alias for that.
pub(super) const CACHED: &str = "cached";
pub(super) const ALIAS: &str = "alias";

/// Memory for bodies in the gateway under test, and the largest one.
pub(super) const BODY_MEMORY: usize = 96 << 20;
pub(super) const BODY_LIMIT: usize = 64 << 20;

/// Tokens of a prompt's head and of what else a stream may need in the double's cache.
const SPARE_TOKENS: u32 = 256;
const BLOCK_TOKENS: u32 = 16;

/// Everything that runs.
pub(super) struct Bed {
    pub(super) gateway: ChildProcess,
    engine: ChildProcess,
    engine_port: u16,
    edge_port: u16,
    admin_port: u16,
    key: String,
    _lifecycle: Lifecycle,
    _folder: tempfile::TempDir,
}

impl Bed {
    /// Starts the engines, then the gateway before them.
    ///
    /// # Errors
    /// When one of them does not start.
    pub(super) async fn start(args: &Args) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let log = |name: &str| folder.path().join(name);
        let [engine_port, edge_port, admin_port] = drive::free_ports()?;
        let mut engine = ChildProcess::start(
            "the engine double",
            &engine_args(args, engine_port),
            &log("engine.log"),
        )?;
        engine.ready(&format!("http://127.0.0.1:{engine_port}/health")).await?;

        let lifecycle = Lifecycle::new();
        let [source_port, cached_port] =
            [start_source(&lifecycle, SOURCE).await?, start_source(&lifecycle, CACHED).await?];

        let key = credentials::GeneratedKey::generate("bench")?;
        let ports = Ports {
            edge: edge_port,
            admin: admin_port,
            engine: engine_port,
            source: source_port,
            cached: cached_port,
        };
        let path = log("gateway.toml");
        std::fs::write(&path, config(args, &ports, &key.config_lines()))?;
        let serve = ["serve", "--config", &path.to_string_lossy()].map(str::to_owned);
        let mut gateway = ChildProcess::start("the gateway", &serve, &log("gateway.log"))?;
        gateway.ready(&format!("http://127.0.0.1:{admin_port}/readyz")).await?;
        let key = key.secret_text().to_owned();
        let bed = Self {
            gateway,
            engine,
            engine_port,
            edge_port,
            admin_port,
            key,
            _lifecycle: lifecycle,
            _folder: folder,
        };
        bed.await_models().await?;
        Ok(bed)
    }

    /// The double without the gateway.
    pub(super) fn direct(&self) -> Target {
        Target::new(self.engine_port, "none")
    }

    pub(super) fn edge(&self) -> Target {
        Target::new(self.edge_port, &self.key)
    }

    pub(super) fn admin(&self) -> Target {
        Target::new(self.admin_port, "none")
    }

    /// CPU seconds of the engine and of the gateway so far.
    pub(super) fn cpu(&self) -> anyhow::Result<(f64, f64)> {
        Ok((self.engine.used()?.cpu_seconds, self.gateway.used()?.cpu_seconds))
    }

    /// The gateway is ready with one engine: all are wanted.
    async fn await_models(&self) -> anyhow::Result<()> {
        for _ in 0..100 {
            let list = self.edge().get("/v1/models").await?;
            if [SOURCE, DOUBLE, ALIAS].iter().all(|model| list.contains(model)) {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        anyhow::bail!("the gateway does not list all engines")
    }
}

/// Starts an engine in this process.
async fn start_source(lifecycle: &Lifecycle, model: &'static str) -> anyhow::Result<u16> {
    let listener = lifecycle::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let port = listener.local_addr()?.port();
    lifecycle.spawn(model, source::serve(listener, model, lifecycle.spawner()));
    Ok(port)
}

fn engine_args(args: &Args, port: u16) -> Vec<String> {
    let tokens = args.rate * args.seconds + SPARE_TOKENS;
    let blocks = (tokens / BLOCK_TOKENS + 1) * (args.streams as u32 + 1) + 1;
    let itl = format!("{:.3}", 1e3 / f64::from(args.rate));
    let running = (args.streams + 1).to_string();
    let (port, blocks) = (port.to_string(), blocks.to_string());
    let list = [
        "engine",
        "--model",
        DOUBLE,
        "--port",
        &port,
        "--blocks",
        &blocks,
        "--itl-ms",
        &itl,
        "--max-running",
        &running,
        "--prefill-tokens-per-second",
        "10000000",
    ];
    list.map(str::to_owned).to_vec()
}

struct Ports {
    edge: u16,
    admin: u16,
    engine: u16,
    source: u16,
    cached: u16,
}

fn config(args: &Args, ports: &Ports, key_lines: &str) -> String {
    let Ports { edge, admin, engine, source, cached } = ports;
    let connections = args.connections.max(1) + 1024;
    let folder = args.model_folder.as_ref().map_or("builtin".into(), |path| path.to_string_lossy());
    let folder = serde_json::Value::from(folder);
    format!(
        r#"[edge]
listen = "127.0.0.1:{edge}"
max_connections = {connections}
body_limit_bytes = {BODY_LIMIT}
body_memory_bytes = {BODY_MEMORY}

[[edge.aliases]]
id = "{ALIAS}"
models = ["{CACHED}"]

[admin]
listen = "127.0.0.1:{admin}"

[[backends]]
id = "double"
url = "http://127.0.0.1:{engine}"
engine = "vllm"

[[backends]]
id = "source"
url = "http://127.0.0.1:{source}"
engine = "other"

[[backends]]
id = "cached"
url = "http://127.0.0.1:{cached}"
engine = "vllm"

[[models]]
id = "{DOUBLE}"
folder = "builtin"

[[models]]
id = "{SOURCE}"
folder = {folder}

[[tenants]]
id = "bench"
requests_per_minute = 10000000
max_concurrency = 20000

{key_lines}
"#
    )
}
