//! An edge: asks, opens streams, reports, audits; decides by itself when nobody answers.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{BlockKey, LeaseId, Moment, RankId};
use replication::{
    Audit, EpochOrder, FallbackRank, Holdings, Lease, LeaseReport, Member, Membership,
    OwnDecisions, Phase, PoolId, Process, Resume, Role, Use,
};

use crate::messages::{Fleet, Message, Node, ToEdge, ToRouter};
use crate::router::Sent;

/// No answer to a Route within this: the edge decides.
const ANSWER_WITHIN: Duration = Duration::from_millis(50);
const AUDIT_ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// A router that did not answer is asked last for so long.
const SUSPECT_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Edge {
    pub(crate) membership: Membership,
    pub(crate) holdings: Holdings,
    pub(crate) fleet: Fleet,
    own: OwnDecisions,
    suspects: BTreeMap<Process, Moment>,
    audits: BTreeMap<PoolId, Asked>,
    pub(crate) requests: BTreeMap<LeaseId, Request>,
    /// Streams to open and to abort, for the world to do.
    pub(crate) opens: Vec<(LeaseId, RankId)>,
    pub(crate) sent: Sent,
    /// Choices made without a router, for the checks.
    pub(crate) own_choices: Vec<RankId>,
}

/// An audit on its way.
#[derive(Clone)]
struct Asked {
    audit: Audit,
    tried: Vec<Process>,
    at: Moment,
}

pub(crate) struct Request {
    pub(crate) pool: PoolId,
    pub(crate) keys: Vec<BlockKey>,
    excluded: Vec<RankId>,
    attempt: u32,
    asked_at: Moment,
    asked: Option<Process>,
    tried: Vec<Process>,
    /// Where it runs.
    pub(crate) rank: Option<RankId>,
}

impl Edge {
    pub(crate) fn new(me: Process) -> Self {
        Self {
            membership: Membership::new(Member {
                process: me.clone(),
                role: Role::Edge,
                address: "".into(),
            }),
            holdings: Holdings::new(me),
            fleet: Fleet::default(),
            own: OwnDecisions::new(64),
            suspects: BTreeMap::new(),
            audits: BTreeMap::new(),
            requests: BTreeMap::new(),
            opens: Vec::new(),
            sent: Sent::new(),
            own_choices: Vec::new(),
        }
    }

    /// The router to ask: the first that is not suspected.
    fn target(&self, pool: &PoolId, tried: &[Process]) -> Option<Process> {
        let order: Vec<_> = self.holdings.ask_order(pool);
        let mut left = order.iter().filter(|router| !tried.contains(router));
        let trusted = left.clone().find(|router| !self.suspects.contains_key(router));
        trusted.or_else(|| left.next()).cloned()
    }

    fn send(&mut self, to: &Process, pool: &PoolId, message: ToRouter) {
        let epoch = self.membership.list().epoch;
        let message = Message::ToRouter { epoch, pool: pool.clone(), message };
        self.sent.push((Node::of(to), message));
    }

    fn report(&mut self, pool: &PoolId, lease: LeaseId, report: LeaseReport) {
        if let Some(owner) = self.target(pool, &[]) {
            let key = self.holdings.key(lease);
            self.send(&owner, pool, ToRouter::Report { key, report });
        }
    }

    fn resume(&mut self, to: &Process, pool: &PoolId, resumes: Vec<Resume>) {
        for resume in resumes {
            self.send(to, pool, ToRouter::Resume(resume));
        }
    }

    pub(crate) fn unreachable(&mut self, router: &Process, now: Moment) {
        self.suspects.insert(router.clone(), now + SUSPECT_FOR);
        self.holdings.unreachable(router);
    }

    pub(crate) fn tick(&mut self, now: Moment) {
        if let Some(renew) = self.membership.tick(now) {
            self.sent.push((Node::Telemetry, Message::Renew(renew)));
        }
        self.suspects.retain(|_, until| *until > now);
        let late = |r: &Request| r.rank.is_none() && now.since(r.asked_at) >= ANSWER_WITHIN;
        let overdue: Vec<LeaseId> =
            self.requests.iter().filter(|(_, r)| late(r)).map(|(id, _)| *id).collect();
        for lease in overdue {
            if let Some(router) = self.requests[&lease].asked.clone() {
                self.unreachable(&router, now);
            }
            self.decide_alone(lease);
        }
        for (pool, asked) in self.audits.clone() {
            if now.since(asked.at) >= AUDIT_ANSWER_WITHIN {
                self.unreachable(asked.tried.last().unwrap(), now);
                self.audit(pool, asked, now);
            }
        }
        for (pool, audit) in self.holdings.tick(now) {
            self.audit(pool, Asked { audit, tried: Vec::new(), at: now }, now);
        }
    }

    /// Sends an audit to the next router that may own the pool.
    fn audit(&mut self, pool: PoolId, mut asked: Asked, now: Moment) {
        let Some(router) = self.target(&pool, &asked.tried) else {
            self.audits.remove(&pool);
            return;
        };
        self.send(&router, &pool, ToRouter::Audit(asked.audit.clone()));
        asked.tried.push(router);
        asked.at = now;
        self.audits.insert(pool, asked);
    }

    pub(crate) fn begin(&mut self, pool: PoolId, keys: Vec<BlockKey>, now: Moment) -> LeaseId {
        self.attempt(pool, keys, Vec::new(), 0, now)
    }

    fn attempt(
        &mut self,
        pool: PoolId,
        keys: Vec<BlockKey>,
        excluded: Vec<RankId>,
        attempt: u32,
        now: Moment,
    ) -> LeaseId {
        let lease = self.holdings.ask(&pool);
        let (asked, tried) = (None, Vec::new());
        let request =
            Request { pool, keys, excluded, attempt, asked_at: now, asked, tried, rank: None };
        self.requests.insert(lease, request);
        self.ask(lease);
        lease
    }

    /// Asks the next router, or decides.
    fn ask(&mut self, lease: LeaseId) {
        let Some(request) = self.requests.get(&lease).filter(|r| r.rank.is_none()) else { return };
        let pool = request.pool.clone();
        let Some(router) = self.target(&pool, &request.tried) else {
            return self.decide_alone(lease);
        };
        let key = self.holdings.key(lease);
        let (keys, excluded) = (request.keys.clone(), request.excluded.clone());
        let request = self.requests.get_mut(&lease).unwrap();
        request.tried.push(router.clone());
        request.asked = Some(router.clone());
        self.send(&router, &pool, ToRouter::Route { key, keys, excluded });
    }

    fn decide_alone(&mut self, lease: LeaseId) {
        let Some(request) = self.requests.get(&lease).filter(|r| r.rank.is_none()) else { return };
        let (pool, keys) = (request.pool.clone(), request.keys.clone());
        let mut ranks = self.fleet.ranks_of(&pool);
        ranks.retain(|rank| !request.excluded.contains(rank));
        let in_flight = |rank: &RankId| {
            self.requests.values().filter(|r| r.rank.as_ref() == Some(rank)).count() as u32
        };
        let options: Vec<_> =
            ranks.iter().map(|rank| FallbackRank { rank, in_flight: in_flight(rank) }).collect();
        let Some(choice) = self.own.choose(&keys, &options) else {
            self.end(lease);
            return;
        };
        let rank = ranks[choice.index].clone();
        self.own_choices.push(rank.clone());
        let blocks = keys.len() as u32;
        let held = Lease { rank: rank.clone(), blocks, phase: Phase::Waiting };
        let report = self.holdings.moved(&pool, lease, held);
        self.report(&pool, lease, report);
        self.open(lease, rank);
    }

    fn open(&mut self, lease: LeaseId, rank: RankId) {
        let request = self.requests.get_mut(&lease).unwrap();
        request.rank = Some(rank.clone());
        self.own.remember(&request.keys, &rank);
        self.opens.push((lease, rank));
    }

    /// The request is over, whatever became of it.
    pub(crate) fn end(&mut self, lease: LeaseId) {
        let Some(request) = self.requests.remove(&lease) else { return };
        let report = self.holdings.close(&request.pool, lease);
        self.report(&request.pool, lease, report);
    }

    pub(crate) fn first_token(&mut self, lease: LeaseId) {
        let Some(request) = self.requests.get(&lease) else { return };
        let (pool, blocks) = (request.pool.clone(), request.keys.len() as u32 + 1);
        if let Some(report) = self.holdings.progress(&pool, lease, Phase::Generating, blocks) {
            self.report(&pool, lease, report);
        }
    }

    /// The engine refused, or broke.
    pub(crate) fn engine_failed(&mut self, lease: LeaseId, now: Moment) {
        let Some(request) = self.requests.get(&lease) else { return };
        let (pool, keys, attempt) = (request.pool.clone(), request.keys.clone(), request.attempt);
        let mut excluded = request.excluded.clone();
        excluded.extend(request.rank.clone());
        self.end(lease);
        if attempt < 2 {
            self.attempt(pool, keys, excluded, attempt + 1, now);
        }
    }

    pub(crate) fn on_message(&mut self, from: Node, message: Message, now: Moment) {
        match message {
            Message::Renewed(list) => {
                if let Some(list) = list {
                    self.membership.adopt(&list);
                }
            }
            Message::List(list) => {
                self.membership.adopt(&list);
            }
            Message::AskList => {
                self.sent.push((from, Message::List(self.membership.list().clone())));
            }
            Message::Fleet(fleet) => {
                if fleet.revision > self.fleet.revision {
                    self.fleet = fleet;
                }
            }
            Message::ToEdge { epoch, pool, message } => {
                match self.membership.order(epoch) {
                    EpochOrder::Older(list) => self.sent.push((from, Message::List(list))),
                    EpochOrder::Newer => self.sent.push((from, Message::AskList)),
                    EpochOrder::Same => {}
                }
                self.on_router(&pool, message, now);
            }
            _ => unreachable!("not for edges"),
        }
        self.holdings.set_list(self.membership.list());
    }

    fn on_router(&mut self, pool: &PoolId, message: ToEdge, now: Moment) {
        match message {
            ToEdge::Rejected { lease } => {
                if self.requests.get(&lease).is_some_and(|r| r.rank.is_none()) {
                    self.end(lease);
                }
            }
            ToEdge::NotOwner { lease, router, owner } => {
                self.holdings.not_owner(pool, &router, owner);
                match lease {
                    Some(lease) => self.ask(lease),
                    None => {
                        if let Some(asked) = self.audits.get(pool).cloned() {
                            self.audit(pool.clone(), asked, now);
                        }
                    }
                }
            }
            ToEdge::Audited { reign, reply } => {
                self.audits.remove(pool);
                if !self.holdings.is_deposed(pool, &reign) {
                    let owner = reign.stream.owner.clone();
                    let mut resumes = self.holdings.heard_owner(pool, &reign);
                    if resumes.is_empty() {
                        resumes = self.holdings.audited(pool, reply);
                    }
                    self.resume(&owner, pool, resumes);
                }
            }
            ToEdge::Decision { number, lease, reign } => {
                let owner = reign.stream.owner.clone();
                let resumes = self.holdings.heard_owner(pool, &reign);
                self.resume(&owner, pool, resumes);
                let rank = lease.rank.clone();
                match self.holdings.decided(pool, &reign, number, lease) {
                    Use::Now => self.open(number, rank),
                    Use::Again => {}
                    Use::Report(report) => {
                        let key = self.holdings.key(number);
                        self.send(&owner, pool, ToRouter::Report { key, report });
                        self.ask(number);
                    }
                }
            }
        }
    }
}
