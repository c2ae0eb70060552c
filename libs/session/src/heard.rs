//! What routers say.

use std::sync::Arc;

use domain::{LeaseId, Rejected};
use proto::routing::v1::edge_message::Kind;
use proto::routing::v1::router_message::Kind as FromRouter;
use proto::routing::v1::{self, NotOwner};
use proto::{Decided, WireError};
use replication::{AuditReply, MemberList, PoolId, Process, Reign, Resume};

use crate::client::Shared;
use crate::links::{self, Open};
use crate::state::Answer;

impl Shared {
    /// A router said something on a stream.
    pub(crate) fn heard(self: &Arc<Self>, stream: &Open, message: FromRouter) {
        if let Err(error) = self.take(stream, message)
            && let Some(held_back) = self.lines.pass()
        {
            let router = &stream.router;
            tracing::warn!(%router, %error, held_back, "a router's message makes no sense");
        }
    }

    fn take(self: &Arc<Self>, stream: &Open, message: FromRouter) -> Result<(), WireError> {
        match message {
            FromRouter::Decision(decision) => self.decided(stream, decision.try_into()?),
            FromRouter::Rejected(rejected) => {
                let lease = LeaseId(rejected.lease);
                let rejected = Rejected::from(rejected);
                self.state.lock().tell(lease, Answer::Rejected(rejected));
            }
            FromRouter::Queued(queued) => {
                self.state.lock().tell(LeaseId(queued.lease), Answer::Queued);
            }
            FromRouter::NotOwner(not_owner) => self.not_owner(stream, not_owner)?,
            FromRouter::AuditReply(reply) => self.audited(stream, reply)?,
            FromRouter::RouteError(error) => {
                if let Some(held_back) = self.lines.pass() {
                    let (router, reason) = (&stream.router, &error.message);
                    tracing::error!(%router, reason, held_back, "a Route failed");
                }
                let rejected = crate::ask::rejected(domain::RejectReason::NotTaken);
                self.state.lock().tell(LeaseId(error.lease), Answer::Rejected(rejected));
            }
            FromRouter::Members(list) => links::set_list(self, &MemberList::try_from(list)?),
            FromRouter::WantMembers(_) => {
                let list = self.state.lock().list();
                stream.outbox.push(Kind::Members((&list).into()));
            }
            FromRouter::Welcome(_) | FromRouter::Refused(_) => {
                let value = "not at the beginning".to_owned();
                return Err(WireError::NotAllowed { field: "welcome", value });
            }
        }
        Ok(())
    }

    fn decided(&self, stream: &Open, decided: Decided) {
        let mut state = self.state.lock();
        // Of a lease that is over nobody knows the pool, and nobody has to: the next audit ends it.
        let Some(pool) = state.pool_of(decided.decision.lease) else {
            self.metrics.moved.inc();
            return;
        };
        let resumes = state.holdings.heard_owner(&pool, &decided.reign);
        let told = state.decided(&pool, decided);
        drop(state);
        self.send_resumes(stream, &pool, resumes);
        if let Some(told) = told {
            self.metrics.moved.inc();
            stream.outbox.push(Kind::Report((&told).into()));
        }
    }

    fn not_owner(&self, stream: &Open, told: NotOwner) -> Result<(), WireError> {
        let owner = told.owner.map(Process::try_from).transpose()?;
        let pool = PoolId::new(told.pool);
        let mut state = self.state.lock();
        if !state.pools.contains(&pool) {
            return Ok(());
        }
        let order = state.holdings.ask_order(&pool);
        if let Some(from) = order.into_iter().find(|process| process.id == stream.router) {
            state.holdings.not_owner(&pool, &from, owner);
        }
        state.tell(LeaseId(told.lease), Answer::NotOwner);
        Ok(())
    }

    fn audited(&self, stream: &Open, reply: v1::AuditReply) -> Result<(), WireError> {
        let reign = Reign::try_from(reply.reign.ok_or(WireError::Missing("audit_reply.reign"))?)?;
        let pool = PoolId::new(reply.pool);
        let mut state = self.state.lock();
        if !state.pools.contains(&pool) || state.holdings.is_deposed(&pool, &reign) {
            return Ok(());
        }
        let mut resumes = state.holdings.heard_owner(&pool, &reign);
        let serial = reply.serial;
        let reply = if reply.agreed {
            AuditReply::Agreed { serial }
        } else {
            AuditReply::Differs { serial }
        };
        // What a new owner is told anyway it need not be told twice.
        if resumes.is_empty() {
            resumes = state.holdings.audited(&pool, reply);
        }
        drop(state);
        self.send_resumes(stream, &pool, resumes);
        Ok(())
    }

    /// There is a session to a router that there was none to.
    pub(crate) fn resume(&self, stream: &Open) {
        let resumes = {
            let mut state = self.state.lock();
            state.resume(&stream.router, |order| self.links.first_reachable(order))
        };
        for (pool, resume) in resumes {
            self.send_resumes(stream, &pool, vec![resume]);
        }
    }

    fn send_resumes(&self, stream: &Open, pool: &PoolId, resumes: Vec<Resume>) {
        for resume in resumes {
            self.metrics.resumed.inc_by(resume.open.len() as u64);
            stream.outbox.push(Kind::Resume(v1::Resume::new(pool, &resume)));
        }
    }
}
