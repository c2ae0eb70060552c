//! Putting the edge together, and running it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config_feed::Feed;
use domain::{ModelId, RoutingClient};
use futures_util::StreamExt;
use instrumentation::Registry;
use lifecycle::{Drain, TaskSpawner};
use settings::Redacted;
use tokenization::ModelFolder;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use traces::{Exporter, Tracer};

use crate::access::AccessWatch;
use crate::answer::{self, Answers, Worker};
use crate::config::Config;
use crate::engine_keys::EngineKeys;
use crate::error::Error;
use crate::fleet::FleetWatch;
use crate::gateway::{Gateway, Heavy};
use crate::headers::RequestIds;
use crate::memory::STEP;
use crate::metrics::Families;
use crate::reload::Reload;
use crate::server::Server;
use crate::trace::{SCHEMA_URL, SERVICE};
use crate::upstream::Upstream;

/// How often idle upstream connections are looked through.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// What an edge is given.
pub struct Deps {
    /// Where its metrics are registered.
    pub registry: Registry,
    /// What its tasks are started with.
    pub spawner: TaskSpawner,
    /// The way to a router.
    pub routing: Arc<dyn RoutingClient>,
    /// Where clients connect: already bound.
    pub listener: TcpListener,
    /// Tokenizer and chat template by model; a model without is routed by its text.
    pub models: HashMap<ModelId, Arc<ModelFolder>>,
    /// The desired state, where there is one beside the config file: keys, tenants, limits.
    pub feed: Option<Feed>,
    /// The secret that block keys begin with: the same for all edges of a region.
    pub region_secret: Redacted<Vec<u8>>,
}

/// A running edge, or one that is about to run.
pub struct Service {
    server: Server,
    listener: TcpListener,
    spawner: TaskSpawner,
    address: SocketAddr,
    answer_worker: Worker,
    exporter: Option<Exporter>,
}

impl Config {
    /// Builds the edge.
    ///
    /// # Errors
    /// A metric's name is taken, or the system fails.
    pub fn build(self, deps: Deps) -> Result<Service, Error> {
        let address = deps.listener.local_addr()?;
        let families = Families::default();
        families.register(&deps.registry)?;
        let drain = deps.spawner.drain();
        let (answers, answer_worker) = Answers::new(Arc::new(families.clone()));
        let keys = EngineKeys::new(self.engine_keys, families.backends_without_key.clone());
        let fleet = FleetWatch::new(&deps.routing.fleet(), deps.models, keys, families.clone());
        let access = AccessWatch::new(self.rules, deps.feed, families.clone());
        let workers = std::thread::available_parallelism().map_or(2, usize::from);
        let (tracer, exporter) = match &self.traces {
            None => (Tracer::off(), None),
            Some(config) => {
                let metrics =
                    traces::Metrics::register(&deps.registry, "warmpath_edge_spans_total")?;
                let service = (SERVICE, env!("CARGO_PKG_VERSION"), SCHEMA_URL);
                let (tracer, exporter) = Tracer::new(config, service, metrics)?;
                (tracer, Some(exporter))
            }
        };
        let gateway = Gateway {
            tracer,
            access,
            region_secret: deps.region_secret,
            routing: deps.routing,
            upstream: Upstream::default(),
            fleet,
            families: Arc::new(families),
            ids: RequestIds::new().map_err(Error::Random)?,
            owners: Arc::default(),
            answers,
            heavy: Heavy::new(workers),
            body_memory: Arc::new(Semaphore::new(self.body_memory_bytes.div_ceil(STEP))),
            drain,
            spawner: deps.spawner.clone(),
            cut: Arc::default(),
        };
        let server = Server {
            gateway: Arc::new(gateway),
            spawner: deps.spawner.clone(),
            max_connections: self.max_connections,
        };
        Ok(Service {
            server,
            listener: deps.listener,
            spawner: deps.spawner,
            address,
            answer_worker,
            exporter,
        })
    }
}

impl Service {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the drain is signalled and the answers in course have ended.
    pub async fn run(self, drain: Drain) {
        let gateway = Arc::clone(&self.server.gateway);
        self.spawner.spawn("edge-fleet", watch_fleet(Arc::clone(&gateway), drain.clone()));
        let (access, draining) = (Arc::clone(&gateway), drain.clone());
        self.spawner.spawn("edge-access", async move {
            tokio::select! {
                () = access.access.follow() => {}
                () = draining.signaled() => {}
            }
        });
        self.spawner.spawn("edge-idle", close_idle(gateway, drain.clone()));
        self.spawner.spawn("edge-answers", answer::run(self.answer_worker, drain.clone()));
        let served = CancellationToken::new();
        if let Some(exporter) = self.exporter {
            let stop = served.clone();
            self.spawner.spawn("edge-traces", exporter.run(stop.cancelled_owned()));
        }
        self.server.run(self.listener, drain).await;
        served.cancel();
    }

    /// Puts other configs in force while it runs.
    pub fn reload(&self) -> Reload {
        Reload::new(Arc::clone(&self.server.gateway))
    }

    #[cfg(test)]
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.server.gateway
    }
}

/// Follows the fleet.
async fn watch_fleet(gateway: Arc<Gateway>, drain: Drain) {
    let mut states = gateway.routing.watch_fleet();
    loop {
        tokio::select! {
            state = states.next() => match state {
                Some(fleet) => gateway.fleet.update(&fleet),
                // The router is gone; what was seen last stands.
                None => return,
            },
            () = drain.signaled() => return,
        }
    }
}

async fn close_idle(gateway: Arc<Gateway>, drain: Drain) {
    let mut ticks = tokio::time::interval(IDLE_CHECK);
    loop {
        tokio::select! {
            _ = ticks.tick() => gateway.upstream.close_idle(lifecycle::monotonic()),
            () = drain.signaled() => return,
        }
    }
}
