//! Two routers of a region: what one decides, the other has a copy of, and goes on from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    Backend, BackendState, BlockKey, BlockUnit, CacheConfig, Decision, FailureClass, Incarnation,
    KeyList, LeaseId, Moment, Prompt, Report, Route, Usage,
};
use kv_index::Content;
use prometheus::Registry;
use proptest::prelude::*;
use proto::What;
use replication::{
    Epoch, LeaseKey, Member, MemberList, PoolId, Process, Replicated as _, Role, To,
};
use tokio::sync::mpsc;

use super::kit::{BLOCK, doc, fleet, fleet_of, text, vllm};
use crate::metrics::{CopyMetrics, Families};
use crate::pool::{Answer, Change, Outbox, Outgoing, Ownership, Peers, State};
use crate::replica::wire;
use crate::{Config, Router};

/// One router with what it has to say to others.
struct Node {
    process: Process,
    router: Router,
    registry: Registry,
    outgoing: mpsc::Receiver<Outgoing>,
    is_alive: bool,
}

/// Two routers, one edge, and the time.
struct Pair {
    nodes: [Node; 2],
    now: Moment,
    next_lease: u64,
    open: Vec<(LeaseId, u32)>,
    requests: u64,
}

fn process(id: &str, incarnation: u64) -> Process {
    Process { id: id.into(), incarnation: Incarnation(incarnation) }
}

fn pool() -> PoolId {
    "model".into()
}

fn key(lease: LeaseId) -> LeaseKey {
    LeaseKey { edge: process("edge", 1), lease }
}

impl Node {
    fn new(process: Process) -> Self {
        let registry = Registry::new();
        let families = |registry: &Registry| Families::register(registry).expect("it is empty");
        let (outbox, outgoing) = Outbox::new(100_000, CopyMetrics::default());
        let hidden = Arc::new(families(&Registry::new()));
        let peers = Peers { me: process.clone(), hidden, outbox };
        let choosing = Config::default().choosing;
        let router = Router::new(choosing, families(&registry), Some(peers));
        Self { process, router, registry, outgoing, is_alive: true }
    }

    fn serves(&self, now: Moment) -> bool {
        matches!(self.router.ownership(&pool(), now), Some(Ownership::Here(_)))
    }

    fn with<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        self.router.with_state(&pool(), read)
    }
}

impl Pair {
    fn new(backends: Vec<Backend>) -> Self {
        let nodes = [Node::new(process("router-0", 1)), Node::new(process("router-1", 1))];
        let now = Moment::from_secs_f64(1000.0);
        let mut pair = Self { nodes, now, next_lease: 0, open: Vec::new(), requests: 0 };
        pair.reconcile(backends);
        pair.publish_list(1);
        pair.settle();
        pair
    }

    fn publish_list(&self, number: u64) {
        let alive = self.nodes.iter().filter(|node| node.is_alive);
        let members = alive.map(|node| Member {
            process: node.process.clone(),
            role: Role::Router,
            address: "http://127.0.0.1:1".into(),
        });
        let list = MemberList { epoch: Epoch { term: 1, number }, members: members.collect() };
        for node in &self.nodes {
            node.router.set_list(&list, self.now);
        }
    }

    fn reconcile(&self, backends: Vec<Backend>) {
        let fleet = fleet(backends);
        for node in &self.nodes {
            node.router.reconcile(fleet.clone());
        }
    }

    /// Time passes, and everything said by then is heard.
    fn wait(&mut self, seconds: f64) {
        let steps = (seconds / 0.05).ceil() as u32;
        for _ in 0..steps.max(1) {
            self.now = self.now + Duration::from_secs_f64(seconds / f64::from(steps.max(1)));
            for node in self.nodes.iter().filter(|node| node.is_alive) {
                node.router.tick_copies(self.now);
            }
            self.deliver();
        }
    }

    /// Long enough for a takeover, and for a copy to be whole.
    fn settle(&mut self) {
        self.wait(2.0);
    }

    fn deliver(&mut self) {
        loop {
            let mut carried = false;
            for from in 0..2 {
                while let Ok(Outgoing { pool, to, message }) = self.nodes[from].outgoing.try_recv()
                {
                    carried = true;
                    let other = &self.nodes[1 - from];
                    let is_for_it = match &to {
                        To::Routers => true,
                        To::One(process) => *process == other.process,
                    };
                    if !is_for_it || !other.is_alive || !self.nodes[from].is_alive {
                        continue;
                    }
                    // By way of the wire.
                    let read = wire::read(wire::message(&pool, message)).expect("it makes sense");
                    let (pool, message) = read.expect("it is known");
                    let from = self.nodes[from].process.clone();
                    other.router.hear_router(&from, &pool, message, self.now);
                }
            }
            if !carried {
                return;
            }
        }
    }

    fn owner(&self) -> usize {
        let serving = |at: &usize| self.nodes[*at].is_alive && self.nodes[*at].serves(self.now);
        (0..2).find(serving).expect("one serves")
    }

    fn route(&mut self, prompt: Prompt) -> Option<(LeaseId, Decision)> {
        self.requests += 1;
        let route = Route {
            request: format!("r{}", self.requests).as_str().into(),
            client_request: None,
            attempt: 0,
            tenant: "tenant".into(),
            model: "model".into(),
            prompt: Some(prompt),
            max_output_tokens: None,
            stream: true,
            excluded: Vec::new(),
            hold: Duration::ZERO,
            ranked: Vec::new(),
        };
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        let owner = self.owner();
        match self.nodes[owner].router.ask(&pool(), &key(lease), &route, self.now) {
            Answer::Decided(decision, blocks) => {
                self.open.push((lease, blocks));
                Some((lease, *decision))
            }
            Answer::Rejected(_) => None,
            other => panic!("{other:?}"),
        }
    }

    fn hear(&mut self, lease: LeaseId, report: Report, blocks: u32) {
        let owner = self.owner();
        let what = What::Report { report, blocks };
        self.nodes[owner].router.hear(&pool(), key(lease), &what, self.now);
    }

    fn finish(&mut self, lease: LeaseId, cached_tokens: Option<u64>, keys: Vec<KeyList>) {
        let usage = cached_tokens.map(|cached| Usage {
            prompt_tokens: 165,
            completion_tokens: 40,
            cached_tokens: Some(cached),
        });
        self.open.retain(|(open, _)| *open != lease);
        self.hear(lease, Report::Finished { lease, usage, output_keys: keys }, 12);
    }

    /// Sends a prompt and has it answered.
    fn serve(&mut self, prompt: Prompt) -> Decision {
        let (lease, decision) = self.route(prompt).expect("a candidate is there");
        self.wait(0.05);
        self.hear(lease, Report::FirstToken { lease }, 12);
        self.finish(lease, None, Vec::new());
        decision
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].is_alive = false;
    }

    /// What a router has of the pool: the blocks of each rank in the order of eviction, however
    /// they are cut into runs, and everything else.
    fn content(&self, at: usize) -> BTreeMap<String, Vec<String>> {
        let mut content: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let chunks = self.nodes[at].with(|state| state.snapshot());
        for change in chunks.iter().flat_map(|chunk| chunk.iter()) {
            match &**change {
                // What was learned is told now and then.
                Change::Learned { .. } | Change::Seated { .. } => {}
                Change::Cached { rank, unit, content: item } => {
                    let place = content.entry(format!("{rank:?} {unit:?}")).or_default();
                    match item {
                        Content::Prefix { keys, blocks, .. } => {
                            let run = keys.iter().enumerate().rev().take(*blocks as usize);
                            place.extend(run.map(|block| format!("{block:?}")));
                        }
                        Content::Copy { keys } => place.push(format!("copy of {:?}", keys.last())),
                        Content::Output { blocks, after } => {
                            let block = format!("output after {:?}", after.last());
                            place.extend((0..*blocks).map(|_| block.clone()));
                        }
                    }
                }
                Change::Booked(opening) => {
                    let mut opening = opening.clone();
                    opening.bytes_per_token = 0.0;
                    let name = format!("lease {:?}", opening.lease);
                    content.entry(name).or_default().push(format!("{opening:?}"));
                }
                other => content.entry("sizes".to_owned()).or_default().push(format!("{other:?}")),
            }
        }
        content.entry("sizes".to_owned()).or_default().sort();
        content
    }

    /// Both routers' checksums, where they differ, with what the ranks hold.
    fn differ(&self) -> Option<String> {
        let sums = |at: usize| self.nodes[at].with(|state| state.checksums());
        let (ours, theirs) = (sums(0), sums(1));
        let views = || (0..2).map(|at| self.nodes[at].router.view(self.now)["ranks"].to_string());
        (ours != theirs).then(|| format!("{ours:?} {theirs:?} {:?}", views().collect::<Vec<_>>()))
    }

    fn counted(&self, at: usize, series: &str) -> f64 {
        let text = instrumentation::encode(&self.nodes[at].registry);
        let lines = text.lines().filter(|line| line.starts_with(series));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

#[test]
fn one_of_two_serves_and_the_other_has_what_it_has() {
    let mut pair = Pair::new(fleet_of(3));
    let owner = pair.owner();
    for n in 0..30 {
        pair.serve(doc(n % 7, 10));
    }
    pair.route(doc(1, 10));
    pair.wait(0.5);
    assert!(!pair.nodes[1 - owner].serves(pair.now));
    assert_eq!(pair.content(owner), pair.content(1 - owner));
    assert_eq!(pair.differ(), None);
    assert_eq!(pair.counted(1 - owner, "warmpath_router_leases"), 0.0, "a copy shows nothing");
    assert_eq!(pair.counted(owner, "warmpath_router_leases{"), 1.0);
}

#[test]
fn who_takes_over_sends_prompts_where_they_are_warm() {
    let mut pair = Pair::new(fleet_of(4));
    let owner = pair.owner();
    let homes: Vec<_> = (0..8).map(|n| pair.serve(doc(n, 40)).chosen.rank).collect();
    let (held, _) = pair.route(doc(0, 40)).expect("a candidate is there");
    pair.wait(0.5);
    pair.kill(owner);
    assert!(!pair.nodes[1 - owner].serves(pair.now));
    pair.wait(1.0);
    assert!(pair.nodes[1 - owner].serves(pair.now), "edges ask it");
    let now: Vec<_> = (0..8).map(|n| pair.serve(doc(n, 40)).chosen.rank).collect();
    assert_eq!(now, homes);
    assert_eq!(pair.counted(1 - owner, "warmpath_router_in_flight_requests{"), 1.0, "{held:?}");
    pair.finish(held, None, Vec::new());
    assert_eq!(pair.counted(1 - owner, "warmpath_router_in_flight_requests{"), 0.0);
}

#[test]
fn who_comes_back_takes_a_whole_copy_and_then_its_pool() {
    let mut pair = Pair::new(fleet_of(4));
    let owner = pair.owner();
    let homes: Vec<_> = (0..8).map(|n| pair.serve(doc(n, 40)).chosen.rank).collect();
    pair.wait(0.5);
    pair.kill(owner);
    pair.publish_list(2);
    pair.wait(1.0);
    pair.serve(doc(3, 40));
    let again = Process { incarnation: Incarnation(2), ..pair.nodes[owner].process.clone() };
    pair.nodes[owner] = Node::new(again);
    pair.reconcile(fleet_of(4));
    pair.publish_list(3);
    pair.settle();
    assert_eq!(pair.owner(), owner, "the first in order serves again");
    assert!(!pair.nodes[1 - owner].serves(pair.now));
    let now: Vec<_> = (0..8).map(|n| pair.serve(doc(n, 40)).chosen.rank).collect();
    assert_eq!(now, homes, "nothing was forgotten on the way");
}

#[test]
fn who_takes_over_goes_by_the_backends_that_it_sees() {
    let mut pair = Pair::new(fleet_of(3));
    let owner = pair.owner();
    pair.serve(doc(1, 40));
    pair.wait(0.5);
    pair.kill(owner);
    let mut draining = fleet_of(2);
    draining[0].state = BackendState::Draining;
    pair.reconcile(draining);
    pair.nodes[1 - owner].serves(pair.now);
    pair.wait(1.0);
    for n in 0..10 {
        assert_eq!(pair.serve(doc(n, 40)).chosen.rank.backend.as_str(), "b1");
    }
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Step {
    Route { document: u64, blocks: u32, text: bool },
    FirstToken(usize),
    Progress(usize, u32),
    Finish { open: usize, cached: Option<u64>, answer: bool },
    Cancel(usize),
    Fail(usize),
    Wait(u32),
    Fleet(u8),
    Resize(u32),
    Broken,
    Resync,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..12_u64, 1..30_u32, prop::bool::weighted(0.1))
            .prop_map(|(document, blocks, text)| Step::Route { document, blocks, text }),
        4 => (0..8_usize).prop_map(Step::FirstToken),
        3 => (0..8_usize, 1..200_u32).prop_map(|(open, generated)| Step::Progress(open, generated)),
        5 => (0..8_usize, prop::option::of(0..165_u64), any::<bool>())
            .prop_map(|(open, cached, answer)| Step::Finish { open, cached, answer }),
        1 => (0..8_usize).prop_map(Step::Cancel),
        1 => (0..8_usize).prop_map(Step::Fail),
        4 => (1..400_u32).prop_map(Step::Wait),
        1 => (1..16_u8).prop_map(Step::Fleet),
        1 => (50..200_u32).prop_map(Step::Resize),
        1 => Just(Step::Broken),
        1 => Just(Step::Resync),
    ]
}

/// Small caches, so that there is much to evict.
fn small(blocks: u32) -> impl Fn(usize) -> Backend {
    move |at| {
        let mut backend = vllm(&format!("b{at}"));
        backend.ranks[0].cache =
            Some(CacheConfig { block_size: BLOCK, usable_blocks: blocks, prefix_caching: true });
        backend
    }
}

impl Pair {
    fn make(&mut self, step: Step) {
        let owner = self.owner();
        let pick = |pair: &Self, at: usize| pair.open.get(at).copied();
        match step {
            Step::Route { document, blocks, text: true } => {
                drop(self.route(text(document, blocks)))
            }
            Step::Route { document, blocks, .. } => drop(self.route(doc(document, blocks))),
            Step::FirstToken(at) => {
                if let Some((lease, blocks)) = pick(self, at) {
                    self.hear(lease, Report::FirstToken { lease }, blocks);
                }
            }
            Step::Progress(at, generated) => {
                if let Some((lease, blocks)) = pick(self, at) {
                    let blocks = blocks + generated / BLOCK;
                    self.hear(lease, Report::Progress { lease, generated }, blocks);
                }
            }
            Step::Finish { open, cached, answer } => {
                if let Some((lease, _)) = pick(self, open) {
                    let keys = (0..3).map(|n| BlockKey((lease.0 << 40) + n + 1)).collect();
                    let list = KeyList { unit: BlockUnit::Tokens(BLOCK), keys };
                    self.finish(lease, cached, if answer { vec![list] } else { Vec::new() });
                }
            }
            Step::Cancel(at) => {
                if let Some((lease, blocks)) = pick(self, at) {
                    self.open.remove(at);
                    self.hear(lease, Report::Cancelled { lease }, blocks);
                }
            }
            Step::Fail(at) => {
                if let Some((lease, blocks)) = pick(self, at) {
                    self.open.remove(at);
                    let class = FailureClass::Timeout;
                    self.hear(lease, Report::Failed { lease, class, retry_after: None }, blocks);
                }
            }
            Step::Wait(millis) => {
                self.wait(f64::from(millis) / 1000.0);
                self.nodes[owner].router.tick(self.now);
            }
            Step::Fleet(present) => {
                let there = (0..4).filter(|at| present & (1 << at) != 0);
                self.reconcile(there.map(small(120)).collect());
            }
            Step::Resize(blocks) => self.reconcile((0..4).map(small(blocks)).collect()),
            Step::Broken => self.nodes[owner].router.broken(&process("edge", 1), self.now),
            // The copy is another process's, which begins with nothing.
            Step::Resync => {
                let (copy, process) = (1 - owner, self.nodes[1 - owner].process.clone());
                let incarnation = Incarnation(process.incarnation.0 + 1);
                self.nodes[copy] = Node::new(Process { incarnation, ..process });
                self.reconcile((0..4).map(small(120)).collect());
                let number = self.nodes[owner].router.epoch().number;
                self.publish_list(number + 1);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_copy_is_the_same(steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new((0..4).map(small(120)).collect());
        for step in steps {
            // A new process of the first in order takes its pool back.
            let is_new = matches!(step, Step::Resync);
            pair.make(step);
            if is_new {
                pair.settle();
            }
            pair.deliver();
            let owner = pair.owner();
            let (ours, theirs) = (pair.content(owner), pair.content(1 - owner));
            let differs = ours.iter().find(|(place, held)| theirs.get(*place) != Some(held));
            let theirs_there = differs.map(|(place, _)| theirs.get(place));
            prop_assert!(differs.is_none(), "{:?} is there {:?}", differs, theirs_there);
            prop_assert_eq!(ours.len(), theirs.len());
            prop_assert_eq!(pair.differ(), None);
        }
    }
}
