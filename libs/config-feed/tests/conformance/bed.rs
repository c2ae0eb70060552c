//! A hub, and clients of it by either adapter.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use config_feed::{
    Client, ClientDeps, ConfigFeed, ControlService, Document, Feed, GrpcFeed, Guard, Hub,
    LocalFeed, Metrics, Position,
};
use domain::{
    Backend, BackendState, EngineKind, Fleet, Incarnation, LoadSample, RankState, ServedModel,
};
use lifecycle::Lifecycle;
use replication::{Member, Process, Role};
use rpc::Fingerprint;
use settings::Redacted;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Endpoint, Server};

/// How a client reaches the hub.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Local,
    Grpc,
}

/// One telemetry: a hub that is told of time, and a server before it.
pub(crate) struct Telemetry {
    pub(crate) hub: Arc<Hub>,
    lifecycle: Lifecycle,
    guard: Guard,
    address: Option<SocketAddr>,
}

impl Telemetry {
    pub(crate) async fn start(way: Way, start: u64) -> Self {
        let listener = match way {
            Way::Local => None,
            Way::Grpc => Some(TcpListener::bind("127.0.0.1:0").await.expect("loopback")),
        };
        let guard = Guard { region: Some(region("ours")), ..Guard::default() };
        Self::serve(listener, start, guard)
    }

    fn serve(listener: Option<TcpListener>, start: u64, guard: Guard) -> Self {
        let hub = Hub::new(start, lifecycle::monotonic());
        let lifecycle = Lifecycle::new();
        let (drain, ticked) = (lifecycle.drain(), hub.clone());
        lifecycle.spawn("hub", async move {
            let ticks = async {
                loop {
                    ticked.tick(lifecycle::monotonic());
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::select! {
                () = drain.signaled() => {}
                () = ticks => {}
            }
        });
        let address = listener.as_ref().map(|l| l.local_addr().expect("bound"));
        if let Some(listener) = listener {
            let service = ControlService::new(hub.clone(), lifecycle.drain(), guard.clone());
            let drain = lifecycle.drain();
            lifecycle.spawn("server", async move {
                let incoming = TcpListenerStream::new(listener);
                let until = async move { drain.signaled().await };
                let server = Server::builder().add_service(service);
                server.serve_with_incoming_shutdown(incoming, until).await.expect("it serves");
            });
        }
        Self { hub, lifecycle, guard, address }
    }

    pub(crate) fn feed(&self) -> Arc<dyn ConfigFeed> {
        match self.address {
            None => Arc::new(LocalFeed::new(self.hub.clone())),
            Some(_) => Arc::new(self.stranger().of_region(region("ours"))),
        }
    }

    /// A client that shows no region's secret.
    pub(crate) fn stranger(&self) -> GrpcFeed {
        let address = self.address.expect("it has a server");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("valid");
        GrpcFeed::new(endpoint.connect_lazy(), None)
    }

    /// Calls that were refused for a reason.
    pub(crate) fn refused(&self, reason: &str) -> u64 {
        let registry = prometheus::Registry::new();
        self.guard.refusals.register(&registry).expect("an empty registry");
        let page = instrumentation::encode(&registry);
        let name = format!("warmpath_telemetry_member_refusals_total{{reason=\"{reason}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|count| count.parse().ok()).expect("it is shown")
    }

    /// Ends, and another start takes its place at the same address. Only over the wire.
    pub(crate) async fn restart(self, start: u64) -> Self {
        let (address, guard) = (self.address.expect("it has a server"), self.guard.clone());
        self.stop().await;
        let listener = TcpListener::bind(address).await.expect("the port is free again");
        Self::serve(Some(listener), start, guard)
    }

    pub(crate) async fn stop(self) {
        self.lifecycle.shutdown(Duration::from_secs(5)).await;
    }
}

/// A client of its own.
pub(crate) struct Follower {
    pub(crate) feed: Feed,
    lifecycle: Lifecycle,
}

impl Follower {
    pub(crate) fn start(feed: Arc<dyn ConfigFeed>, member: Option<Member>) -> Self {
        let (lifecycle, metrics) = (Lifecycle::new(), Metrics::default());
        let deps = ClientDeps { feed, spawner: lifecycle.spawner(), metrics, member };
        Self { feed: Client::new(deps).start(), lifecycle }
    }

    pub(crate) async fn tenants(&self, wanted: &[&str]) {
        let mut documents = self.feed.documents();
        let ids = |d: &config_feed::Documents| -> Vec<String> {
            d.tenants.keys().map(ToString::to_string).collect()
        };
        within("its tenants", documents.wait_for(|d| ids(d) == wanted)).await;
    }

    pub(crate) async fn backends(&self, wanted: &[(&str, BackendState)]) {
        let mut fleet = self.feed.fleet();
        let seen = |f: &Arc<Fleet>| -> Vec<(String, BackendState)> {
            f.backends.iter().map(|b| (b.id.to_string(), b.state)).collect()
        };
        let wanted: Vec<_> = wanted.iter().map(|(id, state)| ((*id).to_owned(), *state)).collect();
        within("its backends", fleet.wait_for(|f| seen(f) == wanted)).await;
    }

    pub(crate) async fn stop(self) {
        self.lifecycle.shutdown(Duration::from_secs(5)).await;
    }
}

/// What shows a region's secret.
pub(crate) fn region(secret: &str) -> Fingerprint {
    Fingerprint::of(&Redacted::new(secret.as_bytes().to_vec()))
}

/// Waits for what must come.
pub(crate) async fn within<T, E: std::fmt::Debug>(
    what: &str,
    wait: impl Future<Output = Result<T, E>>,
) -> T {
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"))
        .expect("the client runs")
}

pub(crate) fn tenant(id: &str, revision: u64) -> Document {
    Document {
        kind: "tenants".into(),
        id: id.into(),
        revision,
        schema: (1, 0),
        json: Some(Bytes::from(format!(r#"{{"id":"{id}"}}"#))),
    }
}

pub(crate) fn deleted(id: &str, revision: u64) -> Document {
    Document { json: None, ..tenant(id, revision) }
}

pub(crate) fn position(store: &str, revision: u64) -> Position {
    Position { store: store.into(), revision }
}

pub(crate) fn backend(id: &str, state: BackendState, running: u32) -> Arc<Backend> {
    let load = LoadSample {
        at: lifecycle::monotonic(),
        running,
        waiting: 0,
        kv_usage: Some(0.5),
        preemptions: None,
        prefix_cache: Some((9, 4)),
        prefills: Some(domain::PrefillCounters { requests: 3, tokens: 5, seconds: 0.25 }),
    };
    Arc::new(Backend {
        id: id.into(),
        incarnation: Incarnation(1),
        url: "http://127.0.0.1:1".into(),
        engine: EngineKind::Vllm,
        state,
        models: vec![ServedModel {
            id: "m".into(),
            max_model_len: Some(4096),
            listing: "{}".into(),
            parity: Some(true),
            base: None,
        }],
        ranks: vec![RankState { rank: 0, cache: None, slots: None, load: Some(load) }],
        network: Duration::from_micros(80),
        credential: None,
    })
}

pub(crate) fn fleet(revision: u64, backends: &[Arc<Backend>]) -> Arc<Fleet> {
    Arc::new(Fleet { revision, backends: backends.to_vec() })
}

pub(crate) fn router(id: &str) -> Member {
    let process = Process { id: id.into(), incarnation: Incarnation(1) };
    Member { process, role: Role::Router, address: "http://127.0.0.1:1".into() }
}
