//! A scripted fleet, routers that can be killed, edges, and a wire that can be cut.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bus::{Bus, MemoryBus};
use domain::{
    Backend, BackendState, BlockKey, BlockUnit, CacheConfig, Decision, EngineKind, Fleet,
    Incarnation, KeyList, Prompt, RankState, Rejected, Route, RoutingClient, ServedModel,
};
use events::DecisionEvents;
use instrumentation::Registry;
use integration_tests::metrics::Metrics;
use integration_tests::wait::{PATIENCE, eventually};
use lifecycle::Lifecycle;
use replication::{Epoch, Member, MemberList, Process, Role};
use rpc::{Fingerprint, RawServerConfig, Server, ServerConfig};
use session::{Config, RawConfig, SessionClient};
use settings::Redacted;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub(crate) const MODEL: &str = "model";
const BLOCK: u32 = 16;

pub(crate) fn region_name() -> events::Region {
    events::Region::new("test").unwrap()
}

pub(crate) fn fingerprint(secret: &str) -> Fingerprint {
    Fingerprint::of(&Redacted::new(secret.as_bytes().to_vec()))
}

pub(crate) fn process(id: &str, incarnation: u64) -> Process {
    Process { id: id.into(), incarnation: Incarnation(incarnation) }
}

/// A vLLM that serves [`MODEL`].
pub(crate) fn backend(id: &str, state: BackendState) -> Backend {
    let cache = CacheConfig { block_size: BLOCK, usable_blocks: 6000, prefix_caching: true };
    Backend {
        id: id.into(),
        incarnation: Incarnation(1),
        url: format!("http://{id}:8000").into(),
        engine: EngineKind::Vllm,
        state,
        models: vec![ServedModel {
            id: MODEL.into(),
            max_model_len: None,
            listing: "{}".into(),
            parity: None,
            base: None,
        }],
        ranks: vec![RankState { rank: 0, cache: Some(cache), slots: None, load: None }],
        network: Duration::ZERO,
        credential: None,
    }
}

pub(crate) fn ready(n: usize) -> Arc<Fleet> {
    let backends = (0..n).map(|i| backend(&format!("b{i}"), BackendState::Ready));
    fleet(1, backends.collect())
}

pub(crate) fn fleet(revision: u64, backends: Vec<Backend>) -> Arc<Fleet> {
    Arc::new(Fleet { revision, backends: backends.into_iter().map(Arc::new).collect() })
}

/// A prompt of so many full blocks of a document.
pub(crate) fn prompt(document: u64, blocks: u32) -> Prompt {
    let key = |i| BlockKey((document << 32) + u64::from(i) + 1);
    let tokens = blocks * BLOCK + 5;
    Prompt {
        tokens,
        text_bytes: tokens * 4,
        keys: vec![KeyList {
            unit: BlockUnit::Tokens(BLOCK),
            keys: (0..blocks).map(key).collect(),
        }],
    }
}

/// A Route of a request of its own.
pub(crate) fn route(document: u64) -> Route {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    Route {
        request: format!("r{number}").as_str().into(),
        client_request: None,
        attempt: 0,
        tenant: "tenant".into(),
        model: MODEL.into(),
        prompt: Some(prompt(document, 20)),
        max_output_tokens: None,
        stream: true,
        excluded: Vec::new(),
        hold: Duration::ZERO,
        ranked: Vec::new(),
    }
}

/// The metrics of one part.
#[derive(Clone)]
pub(crate) struct Series(Registry);

impl Series {
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        Metrics::new(instrumentation::encode(&self.0)).sum(name, labels)
    }

    /// Leases that a router has booked.
    pub(crate) fn leases(&self) -> f64 {
        self.sum("warmpath_router_leases", &[])
    }

    pub(crate) fn in_flight(&self, backend: &str) -> f64 {
        self.sum("warmpath_router_in_flight_requests", &[("backend", backend)])
    }

    pub(crate) async fn reaches(&self, what: &'static str, holds: impl Fn(&Self) -> bool) {
        eventually(PATIENCE, what, || std::future::ready(holds(self))).await;
    }
}

/// A router in a runtime of its own, so that it can be killed in the middle of anything.
pub(crate) struct RouterNode {
    pub(crate) process: Process,
    pub(crate) address: String,
    pub(crate) series: Series,
    runtime: Option<Runtime>,
}

impl RouterNode {
    pub(crate) fn start(
        process: Process,
        listen: SocketAddr,
        secret: &str,
        fleet: watch::Receiver<Arc<Fleet>>,
        members: watch::Receiver<MemberList>,
        bus: Option<Arc<dyn Bus>>,
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let (registry, lifecycle) = (Registry::new(), Lifecycle::new());
        let deps = router::Deps { registry: registry.clone(), fleet };
        let region = router::RegionDeps {
            me: process.clone(),
            members,
            fingerprint: fingerprint(secret),
            client: rpc::ClientConfig::new(rpc::RawClientConfig::default()).unwrap(),
            bus: bus.clone().map(|bus| router::RegionBus { bus, region: region_name() }),
            decisions: bus.map(|bus| DecisionEvents::new(bus, region_name(), NonZeroU32::MIN)),
            spawner: lifecycle.spawner(),
        };
        let service = router::Config::default().build_in_region(deps, region).unwrap();
        let raw = RawServerConfig { listen, ..RawServerConfig::default() };
        let config = ServerConfig::new(raw).unwrap();
        let inside = runtime.enter();
        let listener = std::net::TcpListener::bind(listen).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let server = Server::new(listener, &config, rpc::Metrics::default()).unwrap();
        let address = server.address().to_owned();
        let routes = service.routes();
        let drain = lifecycle.drain();
        lifecycle.spawn("rpc", async move { server.run(routes, drain).await.unwrap() });
        lifecycle.spawn("router", service.run(lifecycle.drain()));
        drop(inside);
        Self { process, address, series: Series(registry), runtime: Some(runtime) }
    }

    pub(crate) fn member(&self, address: &str) -> Member {
        Member { process: self.process.clone(), role: Role::Router, address: address.into() }
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for RouterNode {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An edge's end, with its metrics.
pub(crate) struct EdgeNode {
    pub(crate) client: Arc<SessionClient>,
    pub(crate) series: Series,
    lifecycle: Lifecycle,
}

impl EdgeNode {
    pub(crate) fn start(
        name: &str,
        secret: &str,
        fleet: watch::Receiver<Arc<Fleet>>,
        members: watch::Receiver<MemberList>,
    ) -> Self {
        // Far above what a busy machine takes, so that only a router that is gone is not waited
        // for. The deadline itself has tests of its own.
        let answer_deadline = settings::HumanDuration::from_millis(2000);
        let raw = RawConfig { answer_deadline, ..RawConfig::default() };
        Self::with(raw, process(name, 1), secret, fleet, members)
    }

    pub(crate) fn with(
        raw: RawConfig,
        me: Process,
        secret: &str,
        fleet: watch::Receiver<Arc<Fleet>>,
        members: watch::Receiver<MemberList>,
    ) -> Self {
        let (registry, lifecycle) = (Registry::new(), Lifecycle::new());
        let metrics = session::Metrics::default();
        metrics.register(&registry).unwrap();
        let client = SessionClient::start(
            Config::new(raw, rpc::ClientConfig::new(rpc::RawClientConfig::default()).unwrap())
                .unwrap(),
            session::Deps {
                spawner: lifecycle.spawner(),
                me,
                fingerprint: fingerprint(secret),
                fleet,
                members,
                metrics,
            },
        );
        Self { client: Arc::new(client), series: Series(registry), lifecycle }
    }

    pub(crate) async fn connected(&self, streams: usize) {
        let open = |s: &Series| s.sum("warmpath_session_streams", &[]) >= streams as f64;
        self.series.reaches("streams are open", open).await;
    }

    pub(crate) async fn route(&self, route: Route) -> Result<Decision, Rejected> {
        self.client.route(route).await
    }
}

impl Drop for EdgeNode {
    fn drop(&mut self) {
        self.lifecycle.begin_drain();
    }
}

/// Members with their addresses.
pub(crate) fn list(number: u64, members: Vec<Member>) -> MemberList {
    MemberList { epoch: Epoch { term: 1, number }, members: members.into() }
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A region of some routers and one edge.
pub(crate) struct Region {
    pub(crate) fleet: watch::Sender<Arc<Fleet>>,
    pub(crate) members: watch::Sender<MemberList>,
    pub(crate) bus: Option<Arc<dyn Bus>>,
    pub(crate) routers: Vec<RouterNode>,
}

impl Region {
    pub(crate) fn new(routers: usize) -> Self {
        Self::with_bus(routers, Some(Arc::new(MemoryBus::new(bus::Metrics::default()))))
    }

    /// One whose routers hear each other over this, or by direct calls alone.
    pub(crate) fn with_bus(routers: usize, bus: Option<Arc<dyn Bus>>) -> Self {
        let (fleet, members) = (watch::Sender::new(ready(3)), watch::Sender::new(list(0, vec![])));
        let start = |i| {
            let me = process(&format!("router-{i}"), 1);
            let (fleet, members) = (fleet.subscribe(), members.subscribe());
            RouterNode::start(me, any_port(), "secret", fleet, members, bus.clone())
        };
        let routers: Vec<_> = (0..routers).map(start).collect();
        let all = routers.iter().map(|router| router.member(&router.address)).collect();
        members.send_replace(list(1, all));
        Self { fleet, members, bus, routers }
    }

    pub(crate) fn edge(&self, name: &str) -> EdgeNode {
        EdgeNode::start(name, "secret", self.fleet.subscribe(), self.members.subscribe())
    }

    /// A later process of an edge.
    pub(crate) fn edge_again(&self, name: &str, incarnation: u64) -> EdgeNode {
        let (fleet, members) = (self.fleet.subscribe(), self.members.subscribe());
        let me = process(name, incarnation);
        EdgeNode::with(RawConfig::default(), me, "secret", fleet, members)
    }

    /// Where in `routers` the pool's owner stands by the list.
    pub(crate) fn owner(&self) -> usize {
        let order = replication::order(&MODEL.into(), &self.members.borrow());
        self.routers.iter().position(|router| router.process == order[0]).unwrap()
    }
}

/// One adapter of the routing port before a fleet of the test's making.
pub(crate) struct Rig {
    pub(crate) client: Arc<dyn RoutingClient>,
    pub(crate) fleet: watch::Sender<Arc<Fleet>>,
    /// The router's.
    pub(crate) series: Series,
    _edge: Option<EdgeNode>,
    _region: Option<Region>,
    _lifecycle: Lifecycle,
}

impl Rig {
    pub(crate) fn in_process() -> Self {
        let (registry, lifecycle) = (Registry::new(), Lifecycle::new());
        let fleet = watch::Sender::new(ready(3));
        let deps = router::Deps { registry: registry.clone(), fleet: fleet.subscribe() };
        let service = router::Config::default().build(deps).unwrap();
        let client = service.client();
        lifecycle.spawn("router", service.run(lifecycle.drain()));
        let series = Series(registry);
        Self { client, fleet, series, _edge: None, _region: None, _lifecycle: lifecycle }
    }

    pub(crate) async fn over_a_session() -> Self {
        let region = Region::new(1);
        let edge = region.edge("edge");
        edge.connected(2).await;
        Self {
            client: edge.client.clone(),
            fleet: region.fleet.clone(),
            series: region.routers[0].series.clone(),
            _edge: Some(edge),
            _region: Some(region),
            _lifecycle: Lifecycle::new(),
        }
    }

    pub(crate) async fn route(&self, route: Route) -> Result<Decision, Rejected> {
        let answered = tokio::time::timeout(PATIENCE, self.client.route(route));
        answered.await.expect("a Route is answered")
    }

    /// The one backend is down, and the router knows.
    pub(crate) async fn set_down(&self) {
        self.set_fleet(fleet(2, vec![backend("b0", BackendState::Down)])).await;
        while let Ok(decision) = self.route(route(0)).await {
            self.client.report(domain::Report::Cancelled { lease: decision.lease });
        }
        self.series.reaches("nothing is booked", |s| s.leases() == 0.0).await;
    }

    /// The fleet is another, and is shown.
    pub(crate) async fn set_fleet(&self, fleet: Arc<Fleet>) {
        let revision = fleet.revision;
        self.fleet.send_replace(fleet);
        let shown = || std::future::ready(self.client.fleet().revision == revision);
        eventually(PATIENCE, "the fleet is shown", shown).await;
    }
}
