//! The edge's side of the leases: which it holds at which pool's owner, and what it says of
//! them.

use std::collections::{BTreeMap, BTreeSet};

use domain::{LeaseId, Moment};

use crate::leases::{Lease, LeaseKey, Phase, mark};
use crate::member::{MemberList, Process};
use crate::ownership::{PoolId, Reign, order};
use crate::sessions::{AUDIT_EVERY, Audit, AuditReply, LeaseReport, Resume};

/// Leases in one [`Resume`] at most, so that it stays well below the size of a message.
pub const RESUME_BATCH: usize = 1000;

/// What an edge does with a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is the answer that was waited for.
    Now,
    /// It was used before.
    Again,
    /// The edge has put the lease somewhere by itself meanwhile, or closed it, or the owner is
    /// one no longer. It is told so by this report.
    Report(LeaseReport),
}

/// The leases of one process of an edge, over all pools, and whom to ask for each pool.
#[derive(Debug)]
pub struct Holdings {
    me: Process,
    list: MemberList,
    next_lease: u64,
    serial: u64,
    pools: BTreeMap<PoolId, PoolHoldings>,
}

#[derive(Debug, Default)]
struct PoolHoldings {
    open: BTreeMap<LeaseId, Lease>,
    pending: BTreeSet<LeaseId>,
    /// Whom to ask first, if it is another than the list says.
    preferred: Option<Process>,
    /// The highest reign that ever answered.
    reign: Option<Reign>,
    next_audit: Moment,
    /// The audit that said that nothing is held, if the last one did.
    empty_audit: Option<u64>,
    /// Whether the owner has agreed to that: there is nothing to say any more.
    settled: bool,
}

impl Holdings {
    /// An edge that holds nothing.
    pub fn new(me: Process) -> Self {
        let list = MemberList::default();
        Self { me, list, next_lease: 0, serial: 0, pools: BTreeMap::new() }
    }

    /// The member list is another.
    pub fn set_list(&mut self, list: &MemberList) {
        self.list.replace_if_newer(list);
    }

    /// The routers to ask for a pool, in this order: who served it last or was named, then the
    /// list's owner, its standby, and the others.
    pub fn ask_order(&self, pool: &PoolId) -> Vec<Process> {
        let mut routers = order(pool, &self.list);
        if let Some(preferred) = self.pools.get(pool).and_then(|held| held.preferred.clone()) {
            routers.retain(|router| router.id != preferred.id);
            routers.insert(0, preferred);
        }
        routers
    }

    /// A router said that it does not own the pool, and perhaps who does.
    pub fn not_owner(&mut self, pool: &PoolId, from: &Process, named: Option<Process>) {
        let held = self.pools.entry(pool.clone()).or_default();
        if named.is_some() || held.preferred.as_ref() == Some(from) {
            held.preferred = named.filter(|named| named != from);
        }
    }

    /// The list's owners of pools for which another router is preferred.
    pub fn passed_over(&self) -> Vec<Process> {
        let held = self.pools.iter();
        let preferred = held.filter_map(|(pool, held)| Some((pool, held.preferred.as_ref()?)));
        preferred
            .filter_map(|(pool, preferred)| {
                order(pool, &self.list).into_iter().next().filter(|first| first.id != preferred.id)
            })
            .collect()
    }

    /// A router that was [passed over](Self::passed_over) can be reached: it is asked first again
    /// for what the list gives it. A router that stood in while it was away would otherwise be
    /// asked for good, and both would serve. If it does not serve, its answer names who does.
    pub fn ask_again(&mut self, router: &Process) {
        for (pool, held) in &mut self.pools {
            if order(pool, &self.list).first() == Some(router) {
                held.preferred = None;
            }
        }
    }

    /// A router could not be reached, or did not answer.
    pub fn unreachable(&mut self, router: &Process) {
        for held in self.pools.values_mut().filter(|h| h.preferred.as_ref() == Some(router)) {
            held.preferred = None;
        }
    }

    /// An owner answered. Returns what is to be sent to it first if it is a new one: all that
    /// is held there.
    pub fn heard_owner(&mut self, pool: &PoolId, reign: &Reign) -> Vec<Resume> {
        let held = self.pools.entry(pool.clone()).or_default();
        if held.reign.as_ref().is_some_and(|known| known > reign) {
            return Vec::new();
        }
        held.preferred = Some(reign.stream.owner.clone());
        let before = held.reign.replace(reign.clone());
        if before.is_some_and(|before| before.stream == reign.stream) {
            return Vec::new();
        }
        self.resume(pool)
    }

    /// Whether a higher reign than this has answered: what this owner says is refused.
    pub fn is_deposed(&self, pool: &PoolId, reign: &Reign) -> bool {
        let known = self.pools.get(pool).and_then(|held| held.reign.as_ref());
        known.is_some_and(|known| known > reign)
    }

    /// Names a lease that a Route will ask for.
    pub fn ask(&mut self, pool: &PoolId) -> LeaseId {
        self.next_lease += 1;
        let lease = LeaseId(self.next_lease);
        self.held(pool).pending.insert(lease);
        lease
    }

    /// The full name of a lease.
    pub fn key(&self, lease: LeaseId) -> LeaseKey {
        LeaseKey { edge: self.me.clone(), lease }
    }

    /// An owner decided.
    pub fn decided(&mut self, pool: &PoolId, reign: &Reign, id: LeaseId, lease: Lease) -> Use {
        if self.is_deposed(pool, reign) {
            return Use::Report(LeaseReport::Closed);
        }
        let held = self.held(pool);
        if held.pending.remove(&id) {
            held.open.insert(id, lease);
            return Use::Now;
        }
        match held.open.get(&id) {
            Some(open) if open.rank == lease.rank => Use::Again,
            Some(open) => Use::Report(LeaseReport::Moved { lease: open.clone() }),
            None => Use::Report(LeaseReport::Closed),
        }
    }

    /// No router answered, or none with a rank that can be reached: the edge puts it there
    /// itself. Returns what the owner is told as soon as there is one.
    pub fn moved(&mut self, pool: &PoolId, id: LeaseId, lease: Lease) -> LeaseReport {
        let held = self.held(pool);
        held.pending.remove(&id);
        held.open.insert(id, lease.clone());
        LeaseReport::Moved { lease }
    }

    /// A leased request is further; `None` if it is not held.
    pub fn progress(
        &mut self,
        pool: &PoolId,
        id: LeaseId,
        phase: Phase,
        blocks: u32,
    ) -> Option<LeaseReport> {
        let lease = self.pools.get_mut(pool)?.open.get_mut(&id)?;
        lease.phase = lease.phase.max(phase);
        lease.blocks = lease.blocks.max(blocks);
        Some(LeaseReport::Progress { phase: lease.phase, blocks: lease.blocks })
    }

    /// A leased request is over, or one that waits for a decision is given up. Returns what the
    /// owner is told.
    pub fn close(&mut self, pool: &PoolId, id: LeaseId) -> LeaseReport {
        let held = self.held(pool);
        held.pending.remove(&id);
        held.open.remove(&id);
        LeaseReport::Closed
    }

    /// Time has passed. Returns the audits that are due, each for the first of
    /// [`ask_order`](Self::ask_order) that can be reached.
    pub fn tick(&mut self, now: Moment) -> Vec<(PoolId, Audit)> {
        let (edge, upto) = (&self.me, LeaseId(self.next_lease + 1));
        let mut audits = Vec::new();
        for (pool, held) in &mut self.pools {
            if held.settled || now < held.next_audit {
                continue;
            }
            held.next_audit = now + AUDIT_EVERY;
            self.serial += 1;
            let is_empty = held.open.is_empty() && held.pending.is_empty();
            held.empty_audit = is_empty.then_some(self.serial);
            let marks = held.open.iter().map(|(id, lease)| mark(*id, &lease.rank));
            let audit = Audit {
                edge: edge.clone(),
                serial: self.serial,
                upto,
                open: held.open.len() as u32,
                digest: marks.fold(0, u64::wrapping_add),
                pending: held.pending.iter().copied().collect(),
            };
            audits.push((pool.clone(), audit));
        }
        audits
    }

    /// An owner answered an audit. Returns what is to be sent to it.
    pub fn audited(&mut self, pool: &PoolId, reply: AuditReply) -> Vec<Resume> {
        let Some(held) = self.pools.get_mut(pool) else { return Vec::new() };
        match reply {
            AuditReply::Agreed { serial } => {
                held.settled |= held.empty_audit == Some(serial);
                Vec::new()
            }
            AuditReply::Differs { .. } => self.resume(pool),
        }
    }

    /// The session to the pool's owner is a new one. Returns what is to be sent on it first.
    pub fn resume(&mut self, pool: &PoolId) -> Vec<Resume> {
        let upto = LeaseId(self.next_lease + 1);
        let held = self.pools.entry(pool.clone()).or_default();
        let open: Vec<(LeaseId, Lease)> =
            held.open.iter().map(|(id, lease)| (*id, lease.clone())).collect();
        let mut from = LeaseId(0);
        let mut resumes = Vec::new();
        let mut rest = &open[..];
        loop {
            let (batch, after) = rest.split_at(rest.len().min(RESUME_BATCH));
            let until = after.first().map_or(upto, |(id, _)| *id);
            self.serial += 1;
            resumes.push(Resume {
                edge: self.me.clone(),
                serial: self.serial,
                from,
                upto: until,
                open: batch.to_vec(),
                pending: held.pending.range(from..until).copied().collect(),
            });
            (from, rest) = (until, after);
            if rest.is_empty() {
                return resumes;
            }
        }
    }

    /// The leases that are held in a pool, and those that were asked for.
    pub fn held_in(&self, pool: &PoolId) -> impl Iterator<Item = (LeaseId, Option<&Lease>)> {
        let held = self.pools.get(pool);
        let open = held.into_iter().flat_map(|h| h.open.iter().map(|(id, l)| (*id, Some(l))));
        open.chain(held.into_iter().flat_map(|h| h.pending.iter().map(|id| (*id, None))))
    }

    /// The holdings of a pool that something is about to happen to.
    fn held(&mut self, pool: &PoolId) -> &mut PoolHoldings {
        let held = self.pools.entry(pool.clone()).or_default();
        (held.settled, held.empty_audit) = (false, None);
        held
    }
}

#[cfg(test)]
mod tests;
