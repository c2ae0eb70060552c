//! A router: the glue that a service puts around the machines.

use std::collections::BTreeMap;

use domain::{BlockKey, Moment, RankId};
use replication::{
    Admission, EpochOrder, Lease, LeaseChange, LeaseKey, Member, Membership, Output, OutputOf,
    Phase, Pool, PoolId, Process, ResyncReason, RingLimits, Role, Sessions, To,
};

use crate::messages::{Fleet, Message, Node, ToEdge, ToRouter};
use crate::state::{Delta, PoolState};

/// What an actor wants sent.
pub(crate) type Sent = Vec<(Node, Message)>;

pub(crate) struct Router {
    pub(crate) membership: Membership,
    pub(crate) pools: BTreeMap<PoolId, Served>,
    pub(crate) fleet: Fleet,
    /// What happened, for the checks.
    pub(crate) events: Vec<Event>,
}

pub(crate) struct Served {
    pub(crate) pool: Pool<PoolState>,
    pub(crate) sessions: Sessions,
}

pub(crate) enum Event {
    Chose { pool: PoolId, rank: RankId },
    TookOver { pool: PoolId, warm: bool },
    SteppedDown { pool: PoolId },
    Resync { pool: PoolId, reason: ResyncReason },
}

impl Router {
    pub(crate) fn new(me: Process, pools: &[PoolId]) -> Self {
        // Small, so that it is often too short.
        let limits = RingLimits { deltas: 200, bytes: 1 << 20 };
        let served = |id: &PoolId| {
            let pool = Pool::new(me.clone(), id.clone(), PoolState::default(), limits);
            (id.clone(), Served { pool, sessions: Sessions::default() })
        };
        let pools = pools.iter().map(served).collect();
        let member = Member { process: me, role: Role::Router, address: "".into() };
        let membership = Membership::new(member);
        Self { membership, pools, fleet: Fleet::default(), events: Vec::new() }
    }

    pub(crate) fn tick(&mut self, now: Moment) -> Sent {
        let mut sent = Sent::new();
        if let Some(renew) = self.membership.tick(now) {
            sent.push((Node::Telemetry, Message::Renew(renew)));
        }
        for id in self.pools.keys().cloned().collect::<Vec<_>>() {
            let outputs = self.pools.get_mut(&id).unwrap().pool.tick(now);
            self.carry_out(&id, outputs, now, &mut sent);
            self.with_sessions(&id, now, &mut sent, |sessions, pool| {
                sessions.tick(&pool.state().book, now)
            });
        }
        sent
    }

    pub(crate) fn on_message(&mut self, from: Node, message: Message, now: Moment) -> Sent {
        let mut sent = Sent::new();
        match message {
            Message::Renewed(list) => {
                if list.is_some_and(|list| self.membership.adopt(&list)) {
                    self.list_changed(now, &mut sent);
                }
            }
            Message::List(list) => {
                if self.membership.adopt(&list) {
                    self.list_changed(now, &mut sent);
                }
            }
            Message::AskList => sent.push((from, Message::List(self.membership.list().clone()))),
            Message::Fleet(fleet) => {
                if fleet.revision > self.fleet.revision {
                    self.fleet = fleet;
                    for id in self.pools.keys().cloned().collect::<Vec<_>>() {
                        self.reconcile(&id, &mut sent);
                    }
                }
            }
            Message::Pool { process, epoch, pool, message } => {
                match self.membership.order(epoch) {
                    EpochOrder::Older(list) => {
                        sent.push((from, Message::List(list)));
                        return sent;
                    }
                    EpochOrder::Newer => sent.push((from, Message::AskList)),
                    EpochOrder::Same => {}
                }
                let served = self.pools.get_mut(&pool).unwrap();
                let outputs = served.pool.on_message(&process, message, now);
                self.carry_out(&pool, outputs, now, &mut sent);
            }
            Message::ToRouter { epoch, pool, message } => {
                match self.membership.order(epoch) {
                    EpochOrder::Older(list) => sent.push((from, Message::List(list))),
                    EpochOrder::Newer => sent.push((from, Message::AskList)),
                    EpochOrder::Same => {}
                }
                self.on_edge(from, &pool, message, now, &mut sent);
            }
            Message::Renew(_) | Message::ToEdge { .. } => unreachable!("not for routers"),
        }
        sent
    }

    fn list_changed(&mut self, now: Moment, sent: &mut Sent) {
        let list = self.membership.list().clone();
        for id in self.pools.keys().cloned().collect::<Vec<_>>() {
            let outputs = self.pools.get_mut(&id).unwrap().pool.set_list(&list, now);
            self.carry_out(&id, outputs, now, sent);
        }
    }

    fn carry_out(
        &mut self,
        id: &PoolId,
        outputs: Vec<OutputOf<PoolState>>,
        now: Moment,
        sent: &mut Sent,
    ) {
        for output in outputs {
            match output {
                Output::Send(to, message) => {
                    let node = match to {
                        To::Routers => Node::Bus,
                        To::One(process) => Node::of(&process),
                    };
                    let (process, epoch) =
                        (self.membership.me().clone(), self.membership.list().epoch);
                    let pool = id.clone();
                    sent.push((node, Message::Pool { process, epoch, pool, message }));
                }
                Output::TookOver { warm } => {
                    self.events.push(Event::TookOver { pool: id.clone(), warm });
                    let served = self.pools.get_mut(id).unwrap();
                    served.sessions = Sessions::take_over(&served.pool.state().book, now);
                    self.reconcile(id, sent);
                }
                Output::SteppedDown => {
                    self.events.push(Event::SteppedDown { pool: id.clone() });
                    self.pools.get_mut(id).unwrap().sessions = Sessions::default();
                }
                Output::Resync(reason) => {
                    self.events.push(Event::Resync { pool: id.clone(), reason });
                }
            }
        }
    }

    /// Brings the ranks of a pool that is served in line with the backends as seen here.
    fn reconcile(&mut self, id: &PoolId, sent: &mut Sent) {
        let served = &self.pools[id];
        let known: Vec<RankId> = served.pool.state().book.ranks().cloned().collect();
        let wanted = self.fleet.ranks_of(id);
        let gone = known.iter().filter(|rank| !wanted.contains(rank)).cloned();
        let new = wanted.iter().filter(|rank| !known.contains(rank)).cloned();
        let removed = gone.map(|rank| LeaseChange::RankRemoved { rank });
        let changes: Vec<_> =
            removed.chain(new.map(|r| LeaseChange::RankAdded { rank: r })).collect();
        self.change(id, changes.into_iter().map(Delta::Lease).collect(), sent);
    }

    fn change(&mut self, id: &PoolId, deltas: Vec<Delta>, sent: &mut Sent) {
        for delta in deltas {
            let output = self.pools.get_mut(id).unwrap().pool.change(delta);
            self.carry_out(id, output.into_iter().collect(), Moment::ZERO, sent);
        }
    }

    fn with_sessions(
        &mut self,
        id: &PoolId,
        _now: Moment,
        sent: &mut Sent,
        decide: impl FnOnce(&mut Sessions, &Pool<PoolState>) -> Vec<LeaseChange>,
    ) {
        let served = self.pools.get_mut(id).unwrap();
        if served.pool.is_serving() {
            let changes = decide(&mut served.sessions, &served.pool);
            self.change(id, changes.into_iter().map(Delta::Lease).collect(), sent);
        }
    }

    fn on_edge(
        &mut self,
        from: Node,
        id: &PoolId,
        message: ToRouter,
        now: Moment,
        sent: &mut Sent,
    ) {
        let served = self.pools.get_mut(id).unwrap();
        if !served.pool.is_serving() {
            served.pool.asked(now);
            let lease = message.lease();
            let owner = served.pool.owner(now);
            let not_owner = ToEdge::NotOwner { lease, router: self.membership.me().clone(), owner };
            sent.push((from, self.answer(id, not_owner)));
            return;
        }
        match message {
            ToRouter::Route { key, keys, excluded } => {
                self.route(from, id, key, &keys, &excluded, now, sent);
            }
            ToRouter::Report { key, report } => {
                self.with_sessions(id, now, sent, |sessions, pool| {
                    sessions.report(key, report, &pool.state().book, now)
                });
            }
            ToRouter::Audit(audit) => {
                let mut reply = None;
                self.with_sessions(id, now, sent, |sessions, pool| {
                    let (answer, changes) = sessions.audit(&audit, &pool.state().book, now);
                    reply = answer;
                    changes
                });
                if let (Some(reply), Some(reign)) = (reply, self.pools[id].pool.reign().cloned()) {
                    sent.push((from, self.answer(id, ToEdge::Audited { reign, reply })));
                }
            }
            ToRouter::Resume(resume) => {
                self.with_sessions(id, now, sent, |sessions, pool| {
                    sessions.resume(&resume, &pool.state().book, now)
                });
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a Route in its parts")]
    fn route(
        &mut self,
        from: Node,
        id: &PoolId,
        key: LeaseKey,
        keys: &[BlockKey],
        excluded: &[RankId],
        now: Moment,
        sent: &mut Sent,
    ) {
        let served = self.pools.get_mut(id).unwrap();
        let (admission, changes) = served.sessions.route(&key, &served.pool.state().book, now);
        let number = key.lease;
        self.change(id, changes.into_iter().map(Delta::Lease).collect(), sent);
        let lease = match admission {
            Admission::Over => return,
            Admission::Known(lease) => lease,
            Admission::New => {
                let Some(rank) = self.choose(id, keys, excluded) else {
                    sent.push((from, self.answer(id, ToEdge::Rejected { lease: number })));
                    return;
                };
                self.events.push(Event::Chose { pool: id.clone(), rank: rank.clone() });
                let blocks = keys.len() as u32;
                let lease = Lease { rank: rank.clone(), blocks, phase: Phase::Waiting };
                let opened = LeaseChange::Opened { key, lease: lease.clone() };
                let cached = Delta::Cached { rank, keys: keys.to_vec() };
                self.change(id, vec![Delta::Lease(opened), cached], sent);
                lease
            }
        };
        let reign = self.pools[id].pool.reign().cloned().unwrap();
        sent.push((from, self.answer(id, ToEdge::Decision { number, lease, reign })));
    }

    /// The best match, less what is leased; from the ranks that the *state* has.
    fn choose(&self, id: &PoolId, keys: &[BlockKey], excluded: &[RankId]) -> Option<RankId> {
        let state = self.pools[id].pool.state();
        let score = |rank: &&RankId| {
            let leases = state.book.load(rank).map_or(0, |load| i64::from(load.leases));
            (2 * state.matched(rank, keys) as i64 - leases, std::cmp::Reverse((*rank).clone()))
        };
        state.book.ranks().filter(|rank| !excluded.contains(rank)).max_by_key(score).cloned()
    }

    fn answer(&self, pool: &PoolId, message: ToEdge) -> Message {
        let epoch = self.membership.list().epoch;
        Message::ToEdge { epoch, pool: pool.clone(), message }
    }
}
