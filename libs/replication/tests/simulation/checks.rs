//! What must hold while everything fails, and once it has come to rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use domain::{LeaseId, Moment, RankId};
use replication::{
    Epoch, LeaseKey, MEMBER_LEASE, MemberId, MemberList, ORPHAN_TIME, Phase, PoolId, Position,
    Process, RankLoad, Replicated, SESSION_SILENCE, Stream, order,
};

use crate::messages::{Fleet, Node};
use crate::router::{Event, Router};
use crate::world::{REST_FROM, TRAFFIC_UNTIL, World, at, nodes, pools};

/// Two owners that hear each other are one after this time.
const TWO_OWNERS: Duration = Duration::from_millis(1500);
/// A pool that somebody asks for is served after this time.
const SERVED_AFTER: Duration = Duration::from_secs(3);
/// A standby that hears its owner is in step after this time, and lags no more than the second.
const IN_STEP_AFTER: Duration = Duration::from_secs(4);
const LAG: Duration = Duration::from_millis(1500);

/// The first list, and the first requests, are there after this time.
const FIRST_LIST: Duration = Duration::from_secs(5);

type Checksums = Vec<(RankId, u64)>;

#[derive(Default)]
pub(crate) struct Checks {
    // Members.
    lists: BTreeMap<Epoch, MemberList>,
    adopted: BTreeMap<Process, Epoch>,
    renewed: BTreeMap<MemberId, (Process, Moment)>,
    telemetry_started: Moment,
    // Owners and standbys.
    history: BTreeMap<(PoolId, Position), Checksums>,
    positions: BTreeMap<(Process, PoolId), Position>,
    /// To whom a pool was handed, the last state, by whom and when.
    released: BTreeMap<PoolId, (Process, Position, Node, Moment)>,
    corrupted: BTreeSet<(Process, PoolId)>,
    /// Streams that a damaged state began.
    tainted: BTreeSet<Stream>,
    /// When a router last took a snapshot as its state was damaged.
    repaired: BTreeMap<(Process, PoolId), Moment>,
    both_serve: BTreeMap<(PoolId, usize, usize), Moment>,
    reigns: BTreeMap<PoolId, (Stream, Moment)>,
    /// When a pool was served last.
    served: BTreeMap<PoolId, Moment>,
    seqs: BTreeMap<PoolId, VecDeque<(Moment, Position)>>,
    lists_since: BTreeMap<Process, Moment>,
    // Connections.
    unlinked: BTreeMap<(Node, Node), Moment>,
    /// When a process of an edge was last connected to a router.
    in_reach: BTreeMap<(Process, usize), Moment>,
    bus_down: Moment,
    // Leases.
    differs: BTreeMap<(PoolId, LeaseKey, Kind), Moment>,
    /// How often things happened, to see that the simulation exercises them.
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    LeaseWithoutStream,
    StreamWithoutLease,
}

impl Checks {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    // --- members ----------------------------------------------------------------------------

    pub(crate) fn telemetry_started(&mut self, now: Moment) {
        self.telemetry_started = now;
        self.renewed.clear();
    }

    pub(crate) fn renewed(&mut self, process: &Process, now: Moment) {
        let known = self.renewed.get(&process.id);
        if known.is_none_or(|(known, _)| known <= process) {
            self.renewed.insert(process.id.clone(), (process.clone(), now));
        }
    }

    pub(crate) fn published(&mut self, list: &MemberList, now: Moment) {
        if list.epoch == Epoch::ZERO || self.lists.contains_key(&list.epoch) {
            return self.same_list(list);
        }
        self.count("lists");
        // When nobody renews, it is telemetry that is cut off.
        assert!(!list.members.is_empty(), "nobody is on {list:?}");
        assert!(now.since(self.telemetry_started) >= MEMBER_LEASE, "{list:?} comes too early");
        for (process, renewed) in self.renewed.values() {
            let lives = now.since(*renewed) < MEMBER_LEASE;
            let listed = list.members.iter().any(|m| m.process == *process);
            assert!(listed || !lives, "{process:?} renewed and is not on {list:?}");
        }
        let newest = self.lists.keys().next_back();
        assert!(newest.is_none_or(|newest| *newest < list.epoch), "{list:?} is no newer");
        self.lists.insert(list.epoch, list.clone());
    }

    fn same_list(&self, list: &MemberList) {
        if list.epoch != Epoch::ZERO {
            assert_eq!(self.lists.get(&list.epoch), Some(list), "one epoch, two lists");
        }
    }

    fn member(&mut self, process: &Process, list: &MemberList, now: Moment) {
        self.same_list(list);
        let before = self.adopted.insert(process.clone(), list.epoch);
        assert!(before.is_none_or(|before| before <= list.epoch), "{process:?} went back");
        if before != Some(list.epoch) {
            self.lists_since.insert(process.clone(), now);
        }
    }

    // --- after every event of a router ------------------------------------------------------

    pub(crate) fn router(&mut self, world: &World, i: usize) {
        let Some(router) = &world.routers[i] else { return };
        let me = router.membership.me().clone();
        self.member(&me, router.membership.list(), world.now);
        for event in &router.events {
            self.router_event(world, router, event);
        }
        for (pool, served) in &router.pools {
            counters_are_sums(served.pool.state());
            let Some(position) = served.pool.position() else {
                self.positions.remove(&(me.clone(), pool.clone()));
                continue;
            };
            self.positions.insert((me.clone(), pool.clone()), position.clone());
            let checksums = served.pool.state().checksums();
            let key = (pool.clone(), position);
            if served.pool.is_serving() {
                self.history.insert(key, checksums);
            } else if let Some(owners) = self.history.get(&key) {
                let corrupted = (me.clone(), pool.clone());
                if *owners == checksums && !checksums.is_empty() {
                    self.corrupted.remove(&corrupted);
                } else if *owners != checksums {
                    assert!(
                        self.corrupted.contains(&corrupted) || self.tainted.contains(&key.1.stream),
                        "{me:?} is not what the owner was at {:?}",
                        key.1,
                    );
                }
            }
        }
    }

    fn router_event(&mut self, world: &World, router: &Router, event: &Event) {
        let me = router.membership.me();
        match event {
            Event::Chose { pool, rank } => {
                self.count("choices");
                let known = router.fleet.ranks_of(pool).contains(rank);
                assert!(known, "{me:?} chose {rank}, which it knows to be gone");
            }
            Event::TookOver { pool, warm } => {
                world.log(|| format!("{me:?} takes over {pool:?} warm={warm}"));
                self.count(if *warm { "warm takeovers" } else { "cold takeovers" });
                if self.corrupted.remove(&(me.clone(), pool.clone())) {
                    // What an owner has is right by definition: now the others differ.
                    let position = router.pools[pool].pool.position();
                    self.tainted.extend(position.map(|position| position.stream));
                }
                let before = self.positions.get(&(me.clone(), pool.clone())).cloned();
                assert_eq!(*warm, before.is_some(), "{me:?} at {before:?}");
                let released = self.released.remove(pool);
                if let Some((_, last, by, at)) = released.filter(|(to, ..)| to == me) {
                    let linked = self.linked_for(by, Node::of(me), world.now);
                    // One that heard of a higher reign meanwhile has followed that.
                    let turn = |position: &Position| position.stream.turn;
                    let is_last = before.as_ref().is_none_or(|p| turn(p) <= turn(&last));
                    if linked > world.now.since(at) + LAG && is_last {
                        self.count("handovers");
                        assert_eq!(before, Some(last), "a handover that loses changes");
                    }
                }
            }
            Event::SteppedDown { pool } => {
                world.log(|| format!("{me:?} steps down from {pool:?}"));
                let served = &router.pools[pool].pool;
                if served.has_released() {
                    let successor = served.owner(world.now).unwrap();
                    let position = served.position().unwrap();
                    let handed = (successor, position, Node::of(me), world.now);
                    self.released.insert(pool.clone(), handed);
                }
            }
            Event::Resync { pool, reason } => {
                world.log(|| format!("{me:?} takes a snapshot of {pool:?}: {reason:?}"));
                self.count(match reason {
                    replication::ResyncReason::NewStream => "snapshots for a new stream",
                    replication::ResyncReason::PastRing => "snapshots past the ring",
                    replication::ResyncReason::Checksum => "snapshots for a checksum",
                });
                if *reason == replication::ResyncReason::Checksum {
                    let key = (me.clone(), pool.clone());
                    let corrupted = self.corrupted.contains(&key);
                    self.repaired.insert(key, world.now);
                    let position = router.pools[pool].pool.position();
                    let tainted = position.is_some_and(|p| self.tainted.contains(&p.stream));
                    assert!(
                        corrupted || tainted,
                        "{me:?}: a checksum differs though nothing was damaged"
                    );
                }
            }
        }
    }

    pub(crate) fn own_choice(&mut self, known: &Fleet, rank: &RankId) {
        self.count("choices without a router");
        assert!(known.ranks.iter().any(|(_, r)| r == rank), "{rank} is known to be gone");
    }

    /// Damages the state of one follower.
    pub(crate) fn corrupt(&mut self, routers: &mut [Option<Router>]) {
        for router in routers.iter_mut().flatten() {
            let me = router.membership.me().clone();
            for (id, served) in &mut router.pools {
                if !served.pool.is_serving() && served.pool.state().corrupt() {
                    self.corrupted.insert((me, id.clone()));
                    self.count("corruptions");
                    return;
                }
            }
        }
    }

    // --- often ------------------------------------------------------------------------------

    pub(crate) fn sample(&mut self, world: &World) {
        let now = world.now;
        for a in nodes() {
            for b in nodes() {
                if !world.are_connected(a, b) {
                    self.unlinked.insert((a, b), now);
                }
            }
        }
        if !world.is_up(Node::Bus) {
            self.bus_down = now;
        }
        for edge in world.edges.iter().flatten() {
            let me = edge.membership.me();
            for owner in 0..world.routers.len() {
                if world.are_connected(Node::of(me), Node::Router(owner)) {
                    self.in_reach.insert((me.clone(), owner), now);
                }
            }
            self.member(edge.membership.me(), edge.membership.list(), now);
        }
        for pool in pools() {
            self.owners(world, &pool);
        }
    }

    fn linked_for(&self, a: Node, b: Node, now: Moment) -> Duration {
        now.since(self.unlinked.get(&(a, b)).copied().unwrap_or_default())
    }

    fn owners(&mut self, world: &World, pool: &PoolId) {
        let now = world.now;
        let serves =
            |i: &usize| world.routers[*i].as_ref().is_some_and(|r| r.pools[pool].pool.is_serving());
        let serving: Vec<usize> = (0..world.routers.len()).filter(serves).collect();
        for (&i, &j) in serving.iter().flat_map(|i| serving.iter().map(move |j| (i, j))) {
            if i < j {
                self.two_owners(world, pool, i, j);
            }
        }
        self.both_serve
            .retain(|(p, i, j), _| p != pool || (serving.contains(i) && serving.contains(j)));
        if now >= at(REST_FROM) {
            assert_eq!(serving.len(), 1, "owners of {pool:?}: {serving:?}");
        }
        if serving.is_empty() {
            self.unserved(world, pool);
        } else {
            self.served.insert(pool.clone(), now);
        }
        let [owner] = serving[..] else {
            self.reigns.remove(pool);
            return;
        };
        let router = world.routers[owner].as_ref().unwrap();
        let position = router.pools[pool].pool.position().unwrap();
        let (stream, since) =
            self.reigns.get(pool).cloned().unwrap_or((position.stream.clone(), now));
        if stream != position.stream || !self.reigns.contains_key(pool) {
            self.reigns.insert(pool.clone(), (position.stream.clone(), now));
            self.seqs.remove(pool);
            return;
        }
        let seqs = self.seqs.entry(pool.clone()).or_default();
        seqs.push_back((now, position));
        while seqs.front().is_some_and(|(at, _)| now.since(*at) > LAG) {
            seqs.pop_front();
        }
        self.standby(world, pool, owner, since);
        self.leases(world, pool, owner, since);
    }

    /// Nobody serves a pool. That may be while nobody asks, or hears who would.
    fn unserved(&mut self, world: &World, pool: &PoolId) {
        let now = world.now;
        self.count("samples without an owner");
        if now >= at(TRAFFIC_UNTIL) {
            return;
        }
        let routers = (0..world.routers.len()).map(Node::Router).filter(|r| world.is_up(*r));
        let edges = (0..world.edges.len()).map(Node::Edge).filter(|e| world.is_up(*e));
        let all: Vec<Node> = routers.chain(edges).collect();
        let quiet = all.iter().flat_map(|a| all.iter().map(|b| self.linked_for(*a, *b, now))).min();
        let lists = world.edges.iter().flatten().map(|edge| edge.membership.list());
        let known = world.routers.iter().flatten().all(|router| {
            let me = router.membership.me();
            lists.clone().all(|list| list.routers().any(|p| p.id == me.id))
                && router.membership.list().routers().any(|p| p.id == me.id)
        });
        let is_asked = known && world.edges.iter().flatten().count() > 0;
        let is_there = world.routers.iter().flatten().count() > 0;
        let since = now.since(self.served.get(pool).copied().unwrap_or_default());
        let edges = world.edges.iter().flatten().map(|edge| edge.membership.me());
        let routers = world.routers.iter().flatten().map(|router| router.membership.me());
        let listed = |p: &Process| now.since(self.lists_since.get(p).copied().unwrap_or(now));
        let stable = edges.chain(routers).map(listed).min().unwrap_or_default();
        let quiet = quiet.unwrap_or_default().min(since).min(stable);
        let began = now >= at(FIRST_LIST + SERVED_AFTER);
        let unserved = is_asked && is_there && began && quiet >= SERVED_AFTER;
        assert!(!unserved, "nobody serves {pool:?} for {since:?}");
    }

    fn two_owners(&mut self, world: &World, pool: &PoolId, i: usize, j: usize) {
        let now = world.now;
        let since = *self.both_serve.entry((pool.clone(), i, j)).or_insert(now);
        let linked = self.linked_for(Node::Router(i), Node::Router(j), now);
        let heard = linked.min(now.since(self.bus_down)).min(now.since(since));
        self.counts.entry("samples with two owners").and_modify(|n| *n += 1).or_insert(1);
        assert!(heard < TWO_OWNERS, "r{i} and r{j} both serve {pool:?}");
    }

    /// A standby that hears its owner is in step with it.
    fn standby(&self, world: &World, pool: &PoolId, owner: usize, since: Moment) {
        let now = world.now;
        let router = world.routers[owner].as_ref().unwrap();
        let list = router.membership.list();
        let places = order(pool, list);
        for (i, other) in world.routers.iter().enumerate() {
            let Some(other) = other.as_ref().filter(|_| i != owner) else { continue };
            let me = other.membership.me();
            let is_standby = places.iter().take(2).any(|p| p == me);
            if !is_standby || other.membership.list().epoch != list.epoch {
                continue;
            }
            let stable = [me, router.membership.me()].map(|p| now.since(self.lists_since[p]));
            let heard = self.linked_for(Node::Router(owner), Node::Router(i), now);
            let heard = heard.min(now.since(self.bus_down)).min(now.since(since));
            let repaired = self.repaired.get(&(me.clone(), pool.clone()));
            let whole = now.since(repaired.copied().unwrap_or_default());
            if heard.min(stable[0]).min(stable[1]).min(whole) < IN_STEP_AFTER {
                continue;
            }
            let Some((_, then)) = self.seqs[pool].front() else { continue };
            let position = other.pools[pool].pool.position();
            let in_step =
                position.as_ref().is_some_and(|p| p.stream == then.stream && p.seq >= then.seq);
            assert!(in_step, "{me:?} is at {position:?}, r{owner} was at {then:?}");
        }
    }

    /// Leases are the streams that live, but for what is under way or out of reach.
    fn leases(&mut self, world: &World, pool: &PoolId, owner: usize, since: Moment) {
        let now = world.now;
        // One that stands still ends nothing.
        if self.linked_for(Node::Router(owner), Node::Router(owner), now) < LAG {
            return;
        }
        let router = world.routers[owner].as_ref().unwrap();
        let book = &router.pools[pool].pool.state().book;
        let mut found = BTreeSet::new();
        for (key, _) in book.iter() {
            if !holds(world, pool, &key.edge, key.lease) {
                found.insert((pool.clone(), key.clone(), Kind::LeaseWithoutStream));
            }
        }
        for (edge, lease) in world.engines.iter().flat_map(|engine| engine.streams.keys()) {
            let key = LeaseKey { edge: edge.clone(), lease: *lease };
            if holds(world, pool, edge, *lease) && book.get(&key).is_none() {
                found.insert((pool.clone(), key, Kind::StreamWithoutLease));
            }
        }
        self.differs.retain(|key, _| key.0 != *pool || found.contains(key));
        for key in found {
            let began = *self.differs.entry(key.clone()).or_insert(now);
            let age = now.since(began).min(now.since(since));
            let (_, LeaseKey { edge, .. }, kind) = &key;
            let node = Node::of(edge);
            let lives = world.is_up(node) && world.process(node) == *edge;
            let Node::Edge(i) = node else { unreachable!() };
            let edge = world.edges[i].as_ref().filter(|_| lives);
            let knows = edge.is_some_and(|edge| {
                let mut routers = edge.membership.list().routers();
                routers.any(|p| p == router.membership.me())
            });
            let linked = self.linked_for(node, Node::Router(owner), now);
            let linked = if knows { linked.min(age) } else { Duration::ZERO };
            assert!(linked < ORPHAN_TIME, "{key:?} for {linked:?} at r{owner}");
            // Counted from when it was last there to be heard.
            let heard = self.in_reach.get(&(key.1.edge.clone(), owner)).copied();
            let age = age.min(now.since(heard.unwrap_or_default()));
            let most = SESSION_SILENCE + ORPHAN_TIME + Duration::from_secs(1);
            assert!(*kind == Kind::StreamWithoutLease || age < most, "{key:?} for {age:?}");
        }
    }

    // --- at the end -------------------------------------------------------------------------

    pub(crate) fn at_rest(&mut self, world: &World) {
        let list = world.telemetry.as_ref().unwrap().list();
        assert_eq!(list.members.len(), world.edges.len() + world.routers.len(), "{list:?}");
        let edges = world.edges.iter().map(|e| &e.as_ref().unwrap().membership);
        let routers = world.routers.iter().map(|r| &r.as_ref().unwrap().membership);
        for membership in edges.chain(routers) {
            assert_eq!(membership.list(), list, "{:?}", membership.me());
        }
        for pool in pools() {
            let places = order(&pool, list);
            let at_place = |place: usize| {
                let Node::Router(i) = Node::of(&places[place]) else { unreachable!() };
                &world.routers[i].as_ref().unwrap().pools[&pool].pool
            };
            let (owner, standby) = (at_place(0), at_place(1));
            assert!(owner.is_serving(), "{owner:?} should own it");
            assert_eq!(owner.position(), standby.position());
            assert_eq!(owner.state().content(), standby.state().content());
            assert_eq!(owner.state().checksums(), standby.state().checksums(), "damage stays");
            assert_eq!(at_place(2).position(), None, "only owner and standby hold the state");
            assert_eq!(owner.state().book.iter().count(), 0, "{owner:?} holds leases");
            for rank in owner.state().book.ranks() {
                assert_eq!(owner.state().book.load(rank), Some(RankLoad::default()));
            }
        }
        for edge in world.edges.iter().flatten() {
            assert!(edge.requests.is_empty());
        }
        for engine in &world.engines {
            assert!(engine.streams.is_empty());
        }
    }
}

/// Whether a living process of an edge holds that lease, or waits for it.
fn holds(world: &World, pool: &PoolId, process: &Process, lease: LeaseId) -> bool {
    let node = Node::of(process);
    let Node::Edge(i) = node else { return false };
    world.process(node) == *process
        && world.edges[i]
            .as_ref()
            .is_some_and(|edge| edge.holdings.held_in(pool).any(|(id, _)| id == lease))
}

/// No counter is negative, or anything else than what the leases add up to.
fn counters_are_sums(state: &crate::state::PoolState) {
    for rank in state.book.ranks() {
        let on_it = || state.book.iter().filter(|(_, lease)| lease.rank == *rank);
        let sums = RankLoad {
            leases: on_it().count() as u32,
            waiting: on_it().filter(|(_, lease)| lease.phase == Phase::Waiting).count() as u32,
            blocks: on_it().map(|(_, lease)| u64::from(lease.blocks)).sum(),
        };
        assert_eq!(state.book.load(rank), Some(sums), "{rank}");
    }
}
