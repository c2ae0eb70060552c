//! The virtual region: processes, engines, a network that loses, delays, reorders and repeats,
//! and faults by a seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use domain::{BackendId, BlockKey, Incarnation, LeaseId, Moment, RankId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use replication::{MemberId, PoolId, Process, Registrar};

use crate::checks::Checks;
use crate::edge::Edge;
use crate::messages::{Fleet, Message, Node};
use crate::router::Router;

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

#[derive(Clone, Copy, Debug)]
enum Undo {
    Restart(Node),
    Heal(Node, Node),
    BusUp,
    Calm,
    EngineUp(usize),
    ListEngine(usize),
}

#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) up: bool,
    pub(crate) incarnation: u64,
    /// Whether the operator wants it.
    pub(crate) wanted: bool,
    /// Streams that it works on, with the moment they began.
    pub(crate) streams: BTreeMap<(Process, LeaseId), Moment>,
}

impl Engine {
    pub(crate) fn rank(number: usize, incarnation: u64) -> RankId {
        let backend = BackendId::new(format!("b{number}"));
        RankId { backend, incarnation: Incarnation(incarnation), rank: 0 }
    }
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

    /// Whether both live and hear each other.
    pub(crate) fn are_connected(&self, a: Node, b: Node) -> bool {
        let stands = |node| self.paused.get(&node).is_some_and(|until| *until > self.now);
        let runs = |node| self.is_up(node) && !stands(node);
        let cut = self.cuts.contains(&(a, b)) || self.cuts.contains(&(b, a));
        runs(a) && runs(b) && !cut && !self.storm
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

    /// What a process that stands still will get later.
    fn waits_for(&self, event: &Event) -> Option<Moment> {
        let node = match event {
            Event::Deliver { to: node, .. } | Event::Tick(node) => *node,
            Event::Request(edge) => Node::Edge(*edge),
            Event::FirstToken { edge, .. }
            | Event::Done { edge, .. }
            | Event::Broke { edge, .. } => Node::of(edge),
            Event::SessionBroke { at, .. } => *at,
            Event::Fault | Event::Undo(_) | Event::Check => return None,
        };
        self.paused.get(&node).copied().filter(|until| *until > self.now)
    }

    fn send(&mut self, from: Node, to: Node, message: Message) {
        if to == Node::Bus {
            for router in 0..ROUTERS {
                if !self.bus_down {
                    self.send(from, Node::Router(router), message.clone());
                }
            }
            return;
        }
        let (loss, twice, slow) = if self.storm { (0.2, 0.1, 0.3) } else { (0.01, 0.01, 0.03) };
        if self.cuts.contains(&(from, to)) || self.rng.random_bool(loss) {
            return;
        }
        let copies = 1 + usize::from(self.rng.random_bool(twice));
        for _ in 0..copies {
            let range = if self.rng.random_bool(slow) { 2..300 } else { 0..2 };
            let delay = self.millis(range);
            let message = Box::new(message.clone());
            self.after(delay, Event::Deliver { from, to, message });
        }
    }

    fn deliver(&mut self, from: Node, to: Node, message: Message) {
        if self.cuts.contains(&(from, to)) {
            return;
        }
        let now = self.now;
        match to {
            Node::Telemetry => {
                let Some(telemetry) = &mut self.telemetry else { return };
                let Message::Renew(renew) = message else { return };
                self.checks.renewed(&renew.member.process, now);
                let list = telemetry.renew(renew, now);
                self.checks.published(telemetry.list(), now);
                self.send(to, from, Message::Renewed(list));
            }
            Node::Router(i) => {
                let Some(router) = &mut self.routers[i] else { return };
                let sent = router.on_message(from, message, now);
                self.after_router(i, sent);
            }
            Node::Edge(i) => {
                let Some(edge) = &mut self.edges[i] else { return };
                edge.on_message(from, message, now);
                self.after_edge(i);
            }
            Node::Bus => {}
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

    fn open_stream(&mut self, i: usize, lease: LeaseId, rank: &RankId) {
        let process = self.process(Node::Edge(i));
        let number: usize = rank.backend.as_str()[1..].parse().unwrap();
        let engine = &mut self.engines[number];
        if !engine.up || engine.incarnation != rank.incarnation.0 {
            let delay = self.millis(1..3);
            return self.after(delay, Event::Broke { edge: process, lease });
        }
        engine.streams.insert((process.clone(), lease), self.now);
        let first = self.millis(20..300);
        let done = first + self.millis(50..6000);
        self.after(first, Event::FirstToken { edge: process.clone(), lease });
        self.after(done, Event::Done { edge: process, lease });
    }

    fn on_stream(&mut self, process: &Process, lease: LeaseId, f: impl FnOnce(&mut Edge, Moment)) {
        let Node::Edge(i) = Node::of(process) else { return };
        if self.process(Node::Edge(i)) != *process {
            return;
        }
        let now = self.now;
        let Some(edge) = self.edges[i].as_mut().filter(|e| e.requests.contains_key(&lease)) else {
            return;
        };
        f(edge, now);
        self.after_edge(i);
    }

    fn request(&mut self, i: usize) {
        if self.now >= at(TRAFFIC_UNTIL) {
            return;
        }
        let delay = self.millis(20..200);
        self.after(delay, Event::Request(i));
        let pool = pools()[self.rng.random_range(0..2)].clone();
        let conversation = self.rng.random_range(1..=8_u64);
        let turns = self.rng.random_range(2..=10_u64);
        let keys = (0..turns).map(|turn| BlockKey(conversation * 1000 + turn)).collect();
        let gives_up = self.rng.random_bool(0.1);
        let patience = self.millis(1..1000);
        let now = self.now;
        let Some(edge) = &mut self.edges[i] else { return };
        let lease = edge.begin(pool, keys, now);
        self.after_edge(i);
        if gives_up {
            let edge = self.process(Node::Edge(i));
            self.after(patience, Event::Done { edge, lease });
        }
    }

    fn session_broke(&mut self, at: Node, of: &Process) {
        let now = self.now;
        match (at, Node::of_any(of)) {
            (Node::Router(i), Some(Node::Edge(_))) => {
                let Some(router) = &mut self.routers[i] else { return };
                for served in router.pools.values_mut() {
                    let book = served.pool.state().book.clone();
                    served.sessions.broken(of, &book, now);
                }
            }
            (Node::Edge(i), Some(Node::Router(_))) => {
                let Some(edge) = &mut self.edges[i] else { return };
                edge.unreachable(of, now);
            }
            _ => {}
        }
    }

    fn fault(&mut self) {
        if self.now >= at(FAULTS_UNTIL) {
            return;
        }
        let next = self.millis(200..2500);
        self.after(next, Event::Fault);
        let lasts = self.millis(100..8000).min(at(FAULTS_UNTIL).since(self.now));
        let (router, edge, engine) = (
            Node::Router(self.rng.random_range(0..ROUTERS)),
            Node::Edge(self.rng.random_range(0..EDGES)),
            self.rng.random_range(0..ENGINES),
        );
        match self.rng.random_range(0..12) {
            0 | 1 => self.crash_for(router, lasts),
            // Long enough for its leases to end before it is back.
            2 => self.crash_for(edge, (lasts * 3).min(at(FAULTS_UNTIL).since(self.now))),
            3 => self.crash_for(Node::Telemetry, lasts),
            4 => self.engine_crash(engine, lasts),
            5 | 6 => self.cut(lasts),
            7 => self.isolate(lasts),
            8 => {
                self.log(|| format!("bus down for {lasts:?}"));
                self.bus_down = true;
                self.after(lasts, Event::Undo(Undo::BusUp));
            }
            9 => {
                self.log(|| format!("storm for {lasts:?}"));
                self.storm = true;
                self.after(lasts, Event::Undo(Undo::Calm));
            }
            10 => {
                self.log(|| format!("backend b{engine} off the list for {lasts:?}"));
                self.engines[engine].wanted = false;
                self.after(lasts, Event::Undo(Undo::ListEngine(engine)));
            }
            _ => {
                let node = if self.rng.random_bool(0.5) { router } else { edge };
                let node = if self.rng.random_bool(0.2) { Node::Telemetry } else { node };
                self.log(|| format!("{} stands still for {lasts:?}", node.name()));
                self.paused.insert(node, self.now + lasts);
            }
        }
        if self.rng.random_bool(0.1) {
            self.checks.corrupt(&mut self.routers[..]);
        }
    }

    fn crash_for(&mut self, node: Node, lasts: Duration) {
        if self.is_up(node) {
            self.crash(node);
            self.after(lasts, Event::Undo(Undo::Restart(node)));
        }
    }

    fn engine_crash(&mut self, number: usize, lasts: Duration) {
        let engine = &mut self.engines[number];
        if !std::mem::replace(&mut engine.up, false) {
            return;
        }
        let streams = std::mem::take(&mut engine.streams);
        self.log(|| format!("engine b{number} dies with {} streams", streams.len()));
        for (edge, lease) in streams.into_keys() {
            let delay = self.millis(1..5);
            self.after(delay, Event::Broke { edge, lease });
        }
        self.after(lasts, Event::Undo(Undo::EngineUp(number)));
    }

    fn cut(&mut self, lasts: Duration) {
        let all = nodes();
        let a = all[self.rng.random_range(0..all.len())];
        let b = all[self.rng.random_range(0..all.len())];
        let both_ways = self.rng.random_bool(0.7);
        self.log(|| format!("cut {} {} both={both_ways} for {lasts:?}", a.name(), b.name()));
        self.cuts.insert((a, b));
        self.after(lasts, Event::Undo(Undo::Heal(a, b)));
        if both_ways {
            self.cuts.insert((b, a));
            self.after(lasts, Event::Undo(Undo::Heal(b, a)));
        }
    }

    fn isolate(&mut self, lasts: Duration) {
        let all = nodes();
        let node = all[self.rng.random_range(0..all.len())];
        self.log(|| format!("isolate {} for {lasts:?}", node.name()));
        for other in all {
            for pair in [(node, other), (other, node)] {
                self.cuts.insert(pair);
                self.after(lasts, Event::Undo(Undo::Heal(pair.0, pair.1)));
            }
        }
    }

    fn undo(&mut self, undo: Undo) {
        self.log(|| format!("undo {undo:?}"));
        match undo {
            Undo::Restart(node) => self.start(node),
            Undo::Heal(a, b) => {
                self.cuts.remove(&(a, b));
            }
            Undo::BusUp => self.bus_down = false,
            Undo::Calm => self.storm = false,
            Undo::EngineUp(i) => {
                self.engines[i].up = true;
                self.engines[i].incarnation += 1;
            }
            Undo::ListEngine(i) => self.engines[i].wanted = true,
        }
    }
}

/// Every process.
pub(crate) fn nodes() -> Vec<Node> {
    let edges = (0..EDGES).map(Node::Edge);
    std::iter::once(Node::Telemetry).chain(edges).chain((0..ROUTERS).map(Node::Router)).collect()
}
