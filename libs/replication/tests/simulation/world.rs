//! The virtual region: processes, engines, a network that loses, delays, reorders and repeats,
//! and faults by a seed.

#[path = "world/engines.rs"]
mod engines;
#[path = "world/faults.rs"]
mod faults;
#[path = "world/network.rs"]
mod network;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use domain::{Incarnation, LeaseId, Moment};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use replication::{MemberId, PoolId, Process, Registrar};

use crate::checks::Checks;
use crate::edge::Edge;
use crate::messages::{Fleet, Message, Node};
use crate::router::Router;
pub(crate) use engines::Engine;
use faults::Undo;

pub(crate) const EDGES: usize = 3;
pub(crate) const ROUTERS: usize = 3;
pub(crate) const ENGINES: usize = 4;
const TICK: Duration = Duration::from_millis(25);
/// Faults and traffic end; then everything must come to rest.
const FAULTS_FROM: Duration = Duration::from_secs(5);
const FAULTS_UNTIL: Duration = Duration::from_secs(35);
/// From here on every pool has one owner.
pub(crate) const REST_FROM: Duration = Duration::from_secs(41);
pub(crate) const TRAFFIC_UNTIL: Duration = Duration::from_secs(45);
const END: Duration = Duration::from_secs(66);

pub(crate) fn pools() -> Vec<PoolId> {
    vec!["p0".into(), "p1".into()]
}

pub(crate) fn at(after: Duration) -> Moment {
    Moment::ZERO + after
}

enum Event {
    Deliver {
        from: Node,
        to: Node,
        message: Box<Message>,
    },
    Tick(Node),
    Request(usize),
    FirstToken {
        edge: Process,
        lease: LeaseId,
    },
    Done {
        edge: Process,
        lease: LeaseId,
    },
    /// The stream broke, seen by the edge.
    Broke {
        edge: Process,
        lease: LeaseId,
    },
    /// A closed connection is seen by its other end.
    SessionBroke {
        at: Node,
        of: Process,
    },
    Fault,
    Undo(Undo),
    Check,
}

pub(crate) struct World {
    pub(crate) now: Moment,
    rng: SmallRng,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    events: BTreeMap<(Moment, u64), Event>,
    next_event: u64,
    pub(crate) telemetry: Option<Registrar>,
    telemetry_starts: u64,
    fleet: Fleet,
    next_fleet: Moment,
    pub(crate) routers: Vec<Option<Router>>,
    pub(crate) edges: Vec<Option<Edge>>,
    pub(crate) engines: Vec<Engine>,
    incarnations: BTreeMap<Node, u64>,
    cuts: BTreeSet<(Node, Node)>,
    paused: BTreeMap<Node, Moment>,
    storm: bool,
    bus_down: bool,
    checks: Checks,
    pub(crate) trace: Trace,
}

/// What happened, kept outside of the world so that it outlives a panic.
pub(crate) type Trace = std::rc::Rc<std::cell::RefCell<Vec<String>>>;

impl World {
    pub(crate) fn new(seed: u64, trace: Trace) -> Self {
        let engine = || Engine { up: true, incarnation: 1, wanted: true, streams: BTreeMap::new() };
        let mut world = Self {
            now: Moment::ZERO,
            rng: SmallRng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            telemetry: None,
            telemetry_starts: 0,
            fleet: Fleet::default(),
            next_fleet: Moment::ZERO,
            routers: (0..ROUTERS).map(|_| None).collect(),
            edges: (0..EDGES).map(|_| None).collect(),
            engines: (0..ENGINES).map(|_| engine()).collect(),
            incarnations: BTreeMap::new(),
            cuts: BTreeSet::new(),
            paused: BTreeMap::new(),
            storm: false,
            bus_down: false,
            checks: Checks::default(),
            trace,
        };
        for node in nodes() {
            world.start(node);
            world.after(TICK, Event::Tick(node));
        }
        for edge in 0..EDGES {
            world.after(Duration::from_secs(4), Event::Request(edge));
        }
        world.after(FAULTS_FROM, Event::Fault);
        world.after(TICK, Event::Check);
        world
    }

    /// Runs to the end and checks that all came to rest.
    pub(crate) fn run(mut self) -> Checks {
        while let Some(Reverse(key)) = self.queue.pop() {
            self.now = key.0;
            if self.now >= at(END) {
                break;
            }
            let event = self.events.remove(&key).unwrap();
            self.handle(event);
        }
        let mut checks = std::mem::take(&mut self.checks);
        checks.at_rest(&self);
        checks
    }

    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        self.trace.borrow_mut().push(format!("{:9.4} {}", self.now.as_secs_f64(), text()));
    }

    fn after(&mut self, delay: Duration, event: Event) {
        let key = (self.now + delay, self.next_event);
        self.next_event += 1;
        self.queue.push(Reverse(key));
        self.events.insert(key, event);
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.rng.random_range(range.start * 1000..range.end * 1000))
    }

    pub(crate) fn process(&self, node: Node) -> Process {
        let incarnation = Incarnation(self.incarnations.get(&node).copied().unwrap_or_default());
        Process { id: MemberId::new(node.name()), incarnation }
    }

    pub(crate) fn is_up(&self, node: Node) -> bool {
        match node {
            Node::Telemetry => self.telemetry.is_some(),
            Node::Edge(i) => self.edges[i].is_some(),
            Node::Router(i) => self.routers[i].is_some(),
            Node::Bus => !self.bus_down,
        }
    }

    fn start(&mut self, node: Node) {
        *self.incarnations.entry(node).or_default() += 1;
        let process = self.process(node);
        self.log(|| format!("start {process:?}"));
        match node {
            Node::Telemetry => {
                self.telemetry_starts += 1;
                self.telemetry = Some(Registrar::new(self.telemetry_starts, self.now));
                self.checks.telemetry_started(self.now);
            }
            Node::Edge(i) => self.edges[i] = Some(Edge::new(process)),
            Node::Router(i) => self.routers[i] = Some(Router::new(process, &pools())),
            Node::Bus => {}
        }
    }

    fn crash(&mut self, node: Node) {
        let process = self.process(node);
        self.log(|| format!("crash {process:?}"));
        self.paused.remove(&node);
        match node {
            Node::Telemetry => self.telemetry = None,
            Node::Edge(i) => {
                self.edges[i] = None;
                for engine in &mut self.engines {
                    engine.streams.retain(|(edge, _), _| *edge != process);
                }
            }
            Node::Router(i) => self.routers[i] = None,
            Node::Bus => {}
        }
        // Connections of a process that ends are closed, which is seen, or not.
        for other in nodes() {
            if self.rng.random_bool(0.5) {
                let delay = self.millis(1..20);
                self.after(delay, Event::SessionBroke { at: other, of: process.clone() });
            }
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(until) = self.waits_for(&event) {
            return self.after(until.since(self.now), event);
        }
        match event {
            Event::Deliver { from, to, message } => self.deliver(from, to, *message),
            Event::Tick(node) => {
                self.after(TICK, Event::Tick(node));
                self.tick(node);
            }
            Event::Request(edge) => self.request(edge),
            Event::FirstToken { edge, lease } => {
                self.on_stream(&edge, lease, |edge, _| edge.first_token(lease));
            }
            Event::Done { edge, lease } => {
                let key = (edge.clone(), lease);
                for engine in &mut self.engines {
                    engine.streams.remove(&key);
                }
                self.on_stream(&edge, lease, |edge, _| edge.end(lease));
            }
            Event::Broke { edge, lease } => {
                self.on_stream(&edge, lease, |edge, now| edge.engine_failed(lease, now));
            }
            Event::SessionBroke { at, of } => self.session_broke(at, &of),
            Event::Fault => self.fault(),
            Event::Undo(undo) => self.undo(undo),
            Event::Check => {
                self.after(TICK, Event::Check);
                let mut checks = std::mem::take(&mut self.checks);
                checks.sample(self);
                self.checks = checks;
            }
        }
    }

    fn tick(&mut self, node: Node) {
        let now = self.now;
        match node {
            Node::Telemetry => self.tick_telemetry(),
            Node::Router(i) => {
                let Some(router) = &mut self.routers[i] else { return };
                let sent = router.tick(now);
                self.after_router(i, sent);
            }
            Node::Edge(i) => {
                let Some(edge) = &mut self.edges[i] else { return };
                edge.tick(now);
                self.after_edge(i);
            }
            Node::Bus => {}
        }
    }

    fn tick_telemetry(&mut self) {
        let Some(telemetry) = &mut self.telemetry else { return };
        if let Some(list) = telemetry.tick(self.now) {
            self.checks.published(&list, self.now);
            self.log(|| format!("list {list:?}"));
            for node in nodes() {
                self.send(Node::Telemetry, node, Message::List(list.clone()));
            }
        }
        if self.now < self.next_fleet {
            return;
        }
        self.next_fleet = self.now + Duration::from_millis(250);
        let listed = |(i, engine): (usize, &Engine)| {
            let pool = pools()[i % 2].clone();
            (engine.up && engine.wanted).then(|| (pool, Engine::rank(i, engine.incarnation)))
        };
        let ranks: Vec<_> = self.engines.iter().enumerate().filter_map(listed).collect();
        if ranks != self.fleet.ranks {
            self.fleet = Fleet { revision: self.fleet.revision + 1, ranks };
            self.log(|| format!("fleet {:?}", self.fleet));
        }
        for node in nodes() {
            self.send(Node::Telemetry, node, Message::Fleet(self.fleet.clone()));
        }
    }

    fn after_router(&mut self, i: usize, sent: Vec<(Node, Message)>) {
        let mut checks = std::mem::take(&mut self.checks);
        checks.router(self, i);
        self.checks = checks;
        if let Some(router) = &mut self.routers[i] {
            router.events.clear();
        }
        for (to, message) in sent {
            self.send(Node::Router(i), to, message);
        }
    }

    fn after_edge(&mut self, i: usize) {
        loop {
            let Some(edge) = &mut self.edges[i] else { return };
            let opens = std::mem::take(&mut edge.opens);
            let sent = std::mem::take(&mut edge.sent);
            let choices = std::mem::take(&mut edge.own_choices);
            let known = edge.fleet.clone();
            for rank in choices {
                self.checks.own_choice(&known, &rank);
            }
            if opens.is_empty() && sent.is_empty() {
                return;
            }
            for (to, message) in sent {
                self.send(Node::Edge(i), to, message);
            }
            for (lease, rank) in opens {
                self.open_stream(i, lease, &rank);
            }
        }
    }
}

/// Every process.
pub(crate) fn nodes() -> Vec<Node> {
    let edges = (0..EDGES).map(Node::Edge);
    std::iter::once(Node::Telemetry).chain(edges).chain((0..ROUTERS).map(Node::Router)).collect()
}
