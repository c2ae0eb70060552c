//! Pools on several routers, message by message: deltas, gaps, snapshots, handover, takeover.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use domain::{Incarnation, Moment, RankId};
use proptest::prelude::*;
use replication::{
    CLAIM_WAIT, Epoch, HEARTBEAT_EVERY, Member, MemberId, MemberList, MessageOf, Output, OutputOf,
    Pool, PoolId, PoolMessage, Process, Replicated, ResyncReason, RingLimits, Role, To, order,
};

/// A register of numbers; a delta sets one.
#[derive(Clone, Debug, Default, PartialEq)]
struct Numbers(BTreeMap<u64, u64>);

impl Replicated for Numbers {
    type Delta = (u64, u64);
    type Chunk = Vec<(u64, u64)>;

    fn apply(&mut self, (at, value): &(u64, u64)) {
        self.0.insert(*at, *value);
    }

    fn weight(_: &(u64, u64)) -> usize {
        16
    }

    fn snapshot(&self) -> Vec<Self::Chunk> {
        let all: Vec<_> = self.0.iter().map(|(at, value)| (*at, *value)).collect();
        all.chunks(3).map(<[_]>::to_vec).collect()
    }

    fn empty(&self) -> Self {
        Self::default()
    }

    fn load(&mut self, chunk: Self::Chunk) {
        self.0.extend(chunk);
    }

    fn checksums(&self) -> Vec<(RankId, u64)> {
        let rank = RankId { backend: "b".into(), incarnation: Incarnation(1), rank: 0 };
        let sum = self.0.iter().fold(0_u64, |sum, (at, value)| {
            sum.wrapping_add((at << 32 | value).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        });
        vec![(rank, sum)]
    }
}

type Wire = (MemberId, MemberId, MessageOf<Numbers>);

/// Routers and the line between them. A message that `loses` is true for is lost.
struct Routers {
    now: Moment,
    pools: BTreeMap<MemberId, Pool<Numbers>>,
    list: MemberList,
    wire: VecDeque<Wire>,
    resyncs: Vec<ResyncReason>,
    loses: Box<dyn FnMut(&Wire) -> bool>,
    limits: RingLimits,
}

const POOL: &str = "p";

fn process(id: &MemberId, incarnation: u64) -> Process {
    Process { id: id.clone(), incarnation: Incarnation(incarnation) }
}

impl Routers {
    fn new(count: usize) -> Self {
        let limits = RingLimits { deltas: 8, bytes: 1 << 20 };
        let mut routers = Self {
            now: Moment::ZERO,
            pools: BTreeMap::new(),
            list: MemberList::default(),
            wire: VecDeque::new(),
            resyncs: Vec::new(),
            loses: Box::new(|_| false),
            limits,
        };
        let ids: Vec<MemberId> = (0..count).map(|i| MemberId::new(format!("r{i}"))).collect();
        for id in &ids {
            routers.start(id, 1);
        }
        routers.publish(&ids);
        routers
    }

    /// A new process of a router.
    fn start(&mut self, id: &MemberId, incarnation: u64) {
        let me = process(id, incarnation);
        let pool = Pool::new(me, POOL.into(), Numbers::default(), self.limits);
        self.pools.insert(id.clone(), pool);
    }

    /// A new list of these.
    fn publish(&mut self, ids: &[MemberId]) {
        let member = |id: &MemberId| Member {
            process: process(id, 1),
            role: Role::Router,
            address: "".into(),
        };
        let number = self.list.epoch.number + 1;
        let epoch = Epoch { term: 1, number };
        self.list = MemberList { epoch, members: ids.iter().map(member).collect() };
        for id in self.pools.keys().cloned().collect::<Vec<_>>() {
            let outputs = self.pools.get_mut(&id).unwrap().set_list(&self.list, self.now);
            self.carry_out(&id, outputs);
        }
    }

    /// The routers in the order of owners.
    fn order(&self) -> Vec<MemberId> {
        order(&PoolId::new(POOL), &self.list).into_iter().map(|p| p.id).collect()
    }

    fn carry_out(&mut self, from: &MemberId, outputs: Vec<OutputOf<Numbers>>) {
        for output in outputs {
            match output {
                Output::Send(To::One(to), message) => {
                    self.wire.push_back((from.clone(), to.id, message));
                }
                Output::Send(To::Routers, message) => {
                    for to in self.pools.keys() {
                        self.wire.push_back((from.clone(), to.clone(), message.clone()));
                    }
                }
                Output::Resync(reason) => self.resyncs.push(reason),
                Output::TookOver { .. } | Output::SteppedDown => {}
            }
        }
    }

    /// Delivers everything that is on its way.
    fn settle(&mut self) {
        while let Some(message) = self.wire.pop_front() {
            if (self.loses)(&message) {
                continue;
            }
            let (from, to, message) = message;
            let Some(sender) = self.pools.get(&from) else { continue };
            let sender = sender.process().clone();
            let Some(pool) = self.pools.get_mut(&to) else { continue };
            let outputs = pool.on_message(&sender, message, self.now);
            self.carry_out(&to, outputs);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(50);
            for id in self.pools.keys().cloned().collect::<Vec<_>>() {
                let outputs = self.pools.get_mut(&id).unwrap().tick(self.now);
                self.carry_out(&id, outputs);
            }
            self.settle();
        }
    }

    fn serving(&self) -> Vec<MemberId> {
        self.pools.iter().filter(|(_, p)| p.is_serving()).map(|(id, _)| id.clone()).collect()
    }

    fn change(&mut self, at: u64, value: u64) {
        let owner = self.serving()[0].clone();
        let output = self.pools.get_mut(&owner).unwrap().change((at, value));
        self.carry_out(&owner, output.into_iter().collect());
        self.settle();
    }

    fn state(&self, id: &MemberId) -> &Numbers {
        self.pools[id].state()
    }
}

fn is_delta(message: &Wire) -> bool {
    matches!(message.2, PoolMessage::Delta { .. })
}

/// Three routers with an owner that has made some changes.
fn running() -> (Routers, Vec<MemberId>) {
    let mut routers = Routers::new(3);
    routers.pass(Duration::from_secs(1));
    let order = routers.order();
    assert_eq!(routers.serving(), order[..1]);
    for at in 0..10 {
        routers.change(at, 1);
    }
    routers.resyncs.clear();
    (routers, order)
}

#[test]
fn a_router_alone_serves_at_once() {
    let mut routers = Routers::new(1);
    routers.settle();
    assert_eq!(routers.serving().len(), 1);
}

#[test]
fn the_standby_has_every_change_and_the_third_router_nothing() {
    let (routers, order) = running();
    assert_eq!(routers.state(&order[1]), routers.state(&order[0]));
    assert_eq!(routers.pools[&order[1]].position(), routers.pools[&order[0]].position());
    assert_eq!(routers.pools[&order[2]].position(), None);
}

#[test]
fn a_gap_is_filled_from_the_ring() {
    let (mut routers, order) = running();
    routers.loses = Box::new(is_delta);
    routers.change(1, 5);
    routers.change(2, 6);
    routers.loses = Box::new(|_| false);
    routers.change(3, 7);
    assert_ne!(routers.state(&order[1]), routers.state(&order[0]));
    routers.pass(HEARTBEAT_EVERY);
    assert_eq!(routers.state(&order[1]), routers.state(&order[0]));
    assert!(routers.resyncs.is_empty(), "{:?}", routers.resyncs);
}

#[test]
fn what_the_ring_no_longer_has_is_taken_as_a_snapshot() {
    let (mut routers, order) = running();
    routers.loses = Box::new(is_delta);
    for at in 0..9 {
        routers.change(at, 5);
    }
    routers.loses = Box::new(|_| false);
    routers.pass(HEARTBEAT_EVERY);
    assert_eq!(routers.resyncs, [ResyncReason::PastRing]);
    assert_eq!(routers.state(&order[1]), routers.state(&order[0]));
}

#[test]
fn parts_of_a_snapshot_that_are_lost_are_asked_for_again_while_changes_go_on() {
    let (mut routers, order) = running();
    routers.start(&order[1], 2);
    let mut parts = 0;
    routers.loses = Box::new(move |message| {
        let is_part = matches!(message.2, PoolMessage::Chunk { .. });
        parts += u32::from(is_part);
        is_part && parts % 2 == 1
    });
    routers.publish(&order);
    for value in 0..40 {
        routers.change(value % 12, value);
        routers.pass(Duration::from_millis(50));
    }
    assert_eq!(routers.resyncs[0], ResyncReason::NewStream);
    assert_eq!(routers.state(&order[1]), routers.state(&order[0]));
    assert_eq!(routers.pools[&order[1]].position(), routers.pools[&order[0]].position());
}

#[test]
fn a_checksum_that_differs_leads_to_a_snapshot() {
    let (mut routers, order) = running();
    // A change that reaches the standby wrongly.
    routers.loses = Box::new(is_delta);
    routers.change(1, 5);
    routers.loses = Box::new(|_| false);
    let position = routers.pools[&order[0]].position().unwrap();
    let wrong = PoolMessage::Delta { stream: position.stream, seq: position.seq, delta: (1, 6) };
    routers.wire.push_back((order[0].clone(), order[1].clone(), wrong));
    routers.settle();
    assert_ne!(routers.state(&order[1]), routers.state(&order[0]));
    routers.pass(HEARTBEAT_EVERY);
    assert_eq!(routers.resyncs, [ResyncReason::Checksum]);
    assert_eq!(routers.state(&order[1]), routers.state(&order[0]));
}

#[test]
fn a_standby_that_is_asked_takes_over_warm_when_the_owner_is_silent() {
    let (mut routers, order) = running();
    let last = routers.state(&order[0]).clone();
    routers.pools.remove(&order[0]);
    routers.pass(Duration::from_secs(2));
    assert!(routers.serving().is_empty(), "the list stands and nobody asks");
    routers.pools.get_mut(&order[1]).unwrap().asked(routers.now);
    routers.pass(CLAIM_WAIT + Duration::from_millis(100));
    assert_eq!(routers.serving(), order[1..2]);
    assert_eq!(*routers.state(&order[1]), last);
}

#[test]
fn a_standby_that_is_asked_leaves_an_owner_that_answers_alone_even_without_the_bus() {
    let (mut routers, order) = running();
    let owner = order[0].clone();
    let mut claims = 0;
    routers.loses = Box::new(move |(from, _, message)| {
        // Only what answers a claim passes.
        claims += i32::from(matches!(message, PoolMessage::Claim { .. }));
        let answers = matches!(message, PoolMessage::Heartbeat(_)) && claims > 0;
        claims -= i32::from(answers && *from == owner);
        *from == owner && !answers
    });
    for _ in 0..20 {
        routers.pools.get_mut(&order[1]).unwrap().asked(routers.now);
        routers.pass(Duration::from_millis(100));
    }
    assert_eq!(routers.serving(), order[..1]);
    assert_eq!(routers.pools[&order[1]].owner(routers.now).map(|p| p.id), Some(order[0].clone()));
}

#[test]
fn the_third_in_order_waits_twice_as_long() {
    let (mut routers, order) = running();
    routers.pools.remove(&order[0]);
    let standby = routers.pools.remove(&order[1]);
    assert!(standby.is_some());
    let start = routers.now;
    while routers.serving().is_empty() {
        routers.pools.get_mut(&order[2]).unwrap().asked(routers.now);
        routers.pass(Duration::from_millis(50));
    }
    let waited = routers.now - start;
    assert!((CLAIM_WAIT * 2..CLAIM_WAIT * 3).contains(&waited), "{waited:?}");
}

#[test]
fn a_router_that_comes_back_gets_its_pool_with_everything_in_it() {
    let (mut routers, order) = running();
    routers.pools.remove(&order[0]);
    routers.publish(&order[1..]);
    routers.pass(Duration::from_secs(1));
    assert_eq!(routers.serving(), order[1..2]);
    routers.change(7, 70);
    let last = routers.state(&order[1]).clone();
    routers.start(&order[0], 2);
    routers.publish(&order);
    routers.resyncs.clear();
    routers.pass(Duration::from_secs(1));
    assert_eq!(routers.serving(), order[..1]);
    assert_eq!(*routers.state(&order[0]), last);
    // Who handed over has that very state, and goes on from there.
    assert_eq!(routers.resyncs, [ResyncReason::NewStream], "the returning one's alone");
    routers.change(8, 80);
    assert_eq!(routers.state(&order[1]), routers.state(&order[0]));
    assert_eq!(routers.pools[&order[2]].position(), None, "it is aside again");
    assert!(routers.state(&order[2]).0.is_empty());
}

#[test]
fn a_handover_whose_release_is_lost_is_answered_again() {
    let (mut routers, order) = running();
    routers.pools.remove(&order[0]);
    routers.publish(&order[1..]);
    routers.pass(Duration::from_secs(1));
    routers.start(&order[0], 2);
    let mut lost = 0;
    routers.loses = Box::new(move |message| {
        let is_release = matches!(message.2, PoolMessage::Release { .. });
        lost += u32::from(is_release);
        is_release && lost <= 2
    });
    routers.publish(&order);
    for value in 0..20 {
        if !routers.serving().is_empty() {
            routers.change(value, value);
        }
        routers.pass(Duration::from_millis(50));
    }
    assert_eq!(routers.serving(), order[..1]);
    assert_eq!(routers.state(&order[1]), routers.state(&order[0]));
}

#[test]
fn of_two_owners_the_higher_reign_stays_and_the_other_follows_it() {
    let (mut routers, order) = running();
    let cut = order[0].clone();
    routers.loses = Box::new(move |(from, to, _)| *from == cut || *to == cut);
    routers.pools.get_mut(&order[1]).unwrap().asked(routers.now);
    routers.pass(Duration::from_millis(500));
    assert_eq!(routers.serving().len(), 2);
    let reign = |routers: &Routers, id| routers.pools[id].reign().cloned();
    assert!(reign(&routers, &order[1]) > reign(&routers, &order[0]));
    let output = routers.pools.get_mut(&order[1]).unwrap().change((9, 90));
    routers.carry_out(&order[1], output.into_iter().collect());
    routers.loses = Box::new(|_| false);
    routers.pass(Duration::from_secs(1));
    assert_eq!(routers.serving(), order[..1], "handed over to the one that the list names");
    let handed_over = routers.state(&order[0]).0.get(&9);
    assert_eq!(handed_over, Some(&90), "the younger reign's changes stay");
}

#[test]
fn an_owner_that_missed_lists_loses_against_one_that_serves_by_them() {
    let (mut routers, order) = running();
    let cut = order[1].clone();
    routers.loses = Box::new(move |(from, to, _)| *from == cut || *to == cut);
    routers.pools.get_mut(&order[1]).unwrap().asked(routers.now);
    routers.pass(Duration::from_millis(500));
    let stale = routers.pools.remove(&order[1]).unwrap();
    routers.publish(&[order[0].clone(), order[2].clone()]);
    routers.pools.insert(order[1].clone(), stale);
    assert_eq!(routers.serving().len(), 2);
    routers.loses = Box::new(|_| false);
    routers.pass(HEARTBEAT_EVERY * 2);
    assert_eq!(routers.serving(), order[..1]);
}

#[test]
fn whoever_does_not_serve_changes_nothing() {
    let (mut routers, order) = running();
    let before = routers.state(&order[1]).clone();
    assert!(routers.pools.get_mut(&order[1]).unwrap().change((1, 99)).is_none());
    assert_eq!(*routers.state(&order[1]), before);
}

proptest! {
    /// Whatever is lost, repeated or reordered: a quiet second later the standby is the owner's
    /// twin, and on the way it was always the owner at some change.
    #[test]
    fn a_standby_is_always_its_owner_at_an_earlier_change(
        steps in prop::collection::vec((0_u64..12, any::<u64>(), 0_u8..12), 1..120),
    ) {
        let (mut routers, order) = running();
        let mut history: BTreeMap<_, Numbers> = BTreeMap::new();
        let at = |routers: &Routers, id: &MemberId| {
            (routers.pools[id].position(), routers.state(id).clone())
        };
        let (position, state) = at(&routers, &order[0]);
        history.insert(position, state);
        for (key, value, fate) in steps {
            let output = routers.pools.get_mut(&order[0]).unwrap().change((key, value));
            let (position, state) = at(&routers, &order[0]);
            history.insert(position, state);
            let Some(Output::Send(_, delta)) = output else { panic!("it serves") };
            let message = (order[0].clone(), order[1].clone(), delta);
            match fate {
                0..3 => {}
                3 => routers.wire.push_front(message),
                4 => routers.wire.extend([message.clone(), message]),
                5 => routers.pass(Duration::from_millis(150)),
                6 => {
                    routers.wire.push_back(message);
                    routers.wire.rotate_left(1);
                }
                7 => {
                    routers.wire.push_back(message);
                    routers.settle();
                }
                _ => routers.wire.push_back(message),
            }
            let (position, state) = at(&routers, &order[1]);
            prop_assert_eq!(history.get(&position), Some(&state));
        }
        routers.pass(Duration::from_secs(1));
        prop_assert_eq!(at(&routers, &order[0]), at(&routers, &order[1]));
    }
}
