//! One message after the other.

use std::sync::Arc;
use std::time::Duration;

use domain::{LeaseId, Moment, RejectReason, Rejected};
use prost::Message as _;
use proto::routing::v1::edge_message::Kind as FromEdge;
use proto::routing::v1::router_message::Kind;
use proto::routing::v1::{self, AuditReply, NotOwner, Queued, RouteError};
use proto::{Asked, Decided, Reported, WireError};
use replication::{AuditReply as Reply, LeaseKey, MemberList, PoolId, Process, Reign};

use super::Shared;
use super::hold::Holds;
use super::stream::Frames;
use crate::pool::{Answer, Ownership};

/// A stream of an edge that was let in.
pub(super) struct Session {
    shared: Arc<Shared>,
    edge: Process,
    frames: Frames,
    holds: Holds,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, edge: Process, frames: Frames) -> Self {
        Self { shared, edge, frames, holds: Holds::default() }
    }

    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// What is answered at once.
    pub(super) fn answer(&self, message: FromEdge, now: Moment) -> Vec<Kind> {
        let answered = match message {
            FromEdge::Hello(_) => {
                Err(WireError::NotAllowed { field: "hello", value: "a second one".to_owned() })
            }
            FromEdge::Route(route) => Ok(self.route(route, now)),
            FromEdge::Report(report) => self.report(report, now),
            FromEdge::Audit(audit) => self.audit(audit, now),
            FromEdge::Resume(resume) => self.resume(resume, now),
            FromEdge::Members(list) => MemberList::try_from(list).map(|list| {
                self.shared.router.set_list(&list, now);
                Vec::new()
            }),
            FromEdge::WantMembers(_) => {
                Ok(vec![Kind::Members((&self.shared.router.members()).into())])
            }
        };
        answered.unwrap_or_else(|error| {
            self.shared.metrics.malformed.inc();
            if let Some(held_back) = self.shared.lines.pass() {
                let edge = &self.edge.id;
                tracing::warn!(%edge, %error, held_back, "a message makes no sense");
            }
            Vec::new()
        })
    }

    fn route(&self, route: v1::Route, now: Moment) -> Vec<Kind> {
        let lease = route.lease;
        let fault = |message: String| {
            self.shared.metrics.malformed.inc();
            if let Some(held_back) = self.shared.lines.pass() {
                tracing::warn!(edge = %self.edge.id, %message, held_back, "a Route is not taken");
            }
            vec![Kind::RouteError(RouteError { lease, message })]
        };
        let size = route.encoded_len();
        if size > rpc::MAX_MESSAGE_BYTES {
            let limit = rpc::MAX_MESSAGE_BYTES;
            return fault(format!("the message has {size} bytes, {limit} are allowed"));
        }
        let asked = match Asked::try_from(route) {
            Ok(asked) => asked,
            Err(error) => return fault(error.to_string()),
        };
        match self.shared.decide(&self.edge, &asked, now) {
            Step::Answer(kind) => vec![*kind],
            Step::Nothing => Vec::new(),
            Step::Wait(reason) if asked.route.hold.is_zero() => {
                vec![self.shared.reject(asked.lease, reason)]
            }
            wait => {
                let wait = match wait {
                    Step::Vacant => OWNER_WAIT,
                    _ => asked.route.hold.min(LONGEST_HOLD),
                };
                let until = now + wait;
                if !self.holds.hold(&self.shared, &self.edge, asked, &self.frames, until) {
                    return fault("too many Routes of this stream wait already".to_owned());
                }
                vec![Kind::Queued(Queued { lease })]
            }
        }
    }

    fn report(&self, report: v1::Report, now: Moment) -> Result<Vec<Kind>, WireError> {
        let Reported { pool, lease, what } = report.try_into()?;
        // Whatever it says, nobody waits for a decision any more.
        self.holds.end(lease);
        Ok(self.at_owner(&pool, now, |_| {
            let key = LeaseKey { edge: self.edge.clone(), lease };
            self.shared.router.hear(&pool, key, &what, now);
            None
        }))
    }

    fn audit(&self, audit: v1::Audit, now: Moment) -> Result<Vec<Kind>, WireError> {
        let (pool, audit) = audit.read(self.edge.clone())?;
        Ok(self.at_owner(&pool, now, |reign| {
            let reply = self.shared.router.audit(&pool, &audit, now)?;
            Some(Kind::AuditReply(audit_reply(&pool, reply, &reign)))
        }))
    }

    fn resume(&self, resume: v1::Resume, now: Moment) -> Result<Vec<Kind>, WireError> {
        let (pool, resume) = resume.read(self.edge.clone())?;
        Ok(self.at_owner(&pool, now, |_| {
            self.shared.router.resume(&pool, &resume, now);
            None
        }))
    }

    /// What the pool's owner says; another tells who that is. Nothing for a pool that is not here:
    /// it may be soon, and the next audit finds what was missed.
    fn at_owner(
        &self,
        pool: &PoolId,
        now: Moment,
        answer: impl FnOnce(Reign) -> Option<Kind>,
    ) -> Vec<Kind> {
        match self.shared.router.ownership(pool, now) {
            None => Vec::new(),
            Some(Ownership::Vacant) => vec![self.shared.not_owner(pool, LeaseId(0), None)],
            Some(Ownership::Elsewhere(owner)) => {
                vec![self.shared.not_owner(pool, LeaseId(0), owner)]
            }
            Some(Ownership::Here(reign)) => answer(reign).into_iter().collect(),
        }
    }
}

/// Longest wait, whatever an edge asks for: a client that still waits is none.
const LONGEST_HOLD: Duration = Duration::from_secs(600);

/// How long a Route waits for somebody to serve a pool that nobody knows anything of: a region's
/// first routers take its pools within a third of that. Edges would spread what is asked for
/// first by guess, each for itself.
const OWNER_WAIT: Duration = Duration::from_secs(1);

/// What a Route comes to for now.
pub(super) enum Step {
    Answer(Box<Kind>),
    /// Nobody waits for it.
    Nothing,
    /// It is this unless a backend becomes ready.
    Wait(RejectReason),
    /// Nobody serves the pool yet.
    Vacant,
}

impl Shared {
    pub(super) fn not_owner(&self, pool: &PoolId, lease: LeaseId, owner: Option<Process>) -> Kind {
        self.metrics.not_owner.inc();
        let owner = owner.as_ref().map(Into::into);
        Kind::NotOwner(NotOwner { pool: pool.as_str().to_owned(), lease: lease.0, owner })
    }

    pub(super) fn reject(&self, lease: LeaseId, reason: RejectReason) -> Kind {
        self.router.count_rejected(reason);
        let rejected = Rejected { reason, retry_after: None };
        Kind::Rejected(v1::Rejected::new(lease, &rejected))
    }

    pub(super) fn decide(&self, edge: &Process, asked: &Asked, now: Moment) -> Step {
        let lease = asked.lease;
        let elsewhere = |owner| Step::Answer(Box::new(self.not_owner(&asked.pool, lease, owner)));
        let reign = match self.router.ownership(&asked.pool, now) {
            // A pool that is not here is asked for in vain wherever it belongs.
            None => return Step::Wait(RejectReason::UnknownModel),
            Some(Ownership::Vacant) => return Step::Vacant,
            Some(Ownership::Elsewhere(owner)) => return elsewhere(owner),
            Some(Ownership::Here(reign)) => reign,
        };
        let key = LeaseKey { edge: edge.clone(), lease };
        match self.router.ask(&asked.pool, &key, &asked.route, now) {
            Answer::Nothing => Step::Nothing,
            // It was handed over in between.
            Answer::Elsewhere => elsewhere(None),
            Answer::Rejected(reason) if reason.may_pass() => Step::Wait(reason),
            Answer::Rejected(reason) => Step::Answer(Box::new(self.reject(lease, reason))),
            Answer::Decided(decision, blocks) => {
                let decided = Decided { reign, blocks, decision: *decision };
                Step::Answer(Box::new(Kind::Decision((&decided).into())))
            }
        }
    }
}

fn audit_reply(pool: &PoolId, reply: Reply, reign: &Reign) -> AuditReply {
    let (serial, agreed) = match reply {
        Reply::Agreed { serial } => (serial, true),
        Reply::Differs { serial } => (serial, false),
    };
    AuditReply { pool: pool.as_str().to_owned(), serial, agreed, reign: Some(reign.into()) }
}
