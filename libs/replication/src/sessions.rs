//! The serving owner's side of the leases: whose session lives, what is orphaned, what must
//! not be opened again.
//!
//! An edge numbers its leases upwards and says with every [`Audit`] and [`Resume`] up to which
//! number it speaks of. What lies below and is not named is over: it is not held any longer,
//! and a Route that comes late cannot open it again. So neither loss nor delay nor repetition
//! of a message leaves a lease behind; the next audit finds the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{Incarnation, LeaseId, Moment};

use crate::leases::{Lease, LeaseBook, LeaseChange, LeaseKey, Phase, mark};
use crate::member::{MemberId, Process};

/// Leases of a broken session that were not re-asserted end after this time.
pub const ORPHAN_TIME: Duration = Duration::from_secs(10);

/// An edge says this often what it holds.
pub const AUDIT_EVERY: Duration = Duration::from_secs(1);

/// An edge that was not heard for so long has a broken session, even if nothing broke.
pub const SESSION_SILENCE: Duration = Duration::from_secs(3);

/// What became of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseReport {
    /// It is further.
    Progress {
        /// How far.
        phase: Phase,
        /// Blocks so far.
        blocks: u32,
    },
    /// The edge has put it somewhere by itself.
    Moved {
        /// Where, and how far it is.
        lease: Lease,
    },
    /// It is over: finished, failed or cancelled.
    Closed,
}

/// An edge's leases in a range of numbers, one by one. Leases of the range that are not named
/// are over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The edge.
    pub edge: Process,
    /// Grows with every audit and resume of the process.
    pub serial: u64,
    /// First number of the range.
    pub from: LeaseId,
    /// First number after it.
    pub upto: LeaseId,
    /// Leases that live.
    pub open: Vec<(LeaseId, Lease)>,
    /// Leases that were asked for and not answered.
    pub pending: Vec<LeaseId>,
}

/// The same in short, for all numbers below `upto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The edge.
    pub edge: Process,
    /// Grows with every audit and resume of the process.
    pub serial: u64,
    /// First number it does not speak of.
    pub upto: LeaseId,
    /// Number of leases that live.
    pub open: u32,
    /// Sum over them of a hash of number and rank.
    pub digest: u64,
    /// Leases that were asked for and not answered.
    pub pending: Vec<LeaseId>,
}

/// An owner's answer to an [`Audit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditReply {
    /// The owner holds just those.
    Agreed {
        /// The audit's.
        serial: u64,
    },
    /// It holds others: it wants a [`Resume`].
    Differs {
        /// The audit's.
        serial: u64,
    },
}

/// Whether a Route may open its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is new: choose, and open it.
    New,
    /// It was answered before: answer the same.
    Known(Lease),
    /// It is over, or comes from a process that is: no answer.
    Over,
}

/// The sessions of a serving owner. Their changes are the caller's to make and publish, in
/// order and before the next call.
#[derive(Debug, Default)]
pub struct Sessions {
    edges: BTreeMap<MemberId, Session>,
}

#[derive(Debug)]
struct Session {
    incarnation: Incarnation,
    heard: Moment,
    /// Of the last audit or resume.
    serial: u64,
    /// Numbers below it are over, but for `pending` and those in the book.
    floor: LeaseId,
    pending: BTreeSet<LeaseId>,
    /// Closed since the last audit.
    over: BTreeSet<LeaseId>,
    /// Leases that wait to be re-asserted, since when.
    orphans: BTreeMap<LeaseId, Moment>,
}

impl Session {
    fn new(incarnation: Incarnation, now: Moment) -> Self {
        Self {
            incarnation,
            heard: now,
            serial: 0,
            floor: LeaseId(0),
            pending: BTreeSet::new(),
            over: BTreeSet::new(),
            orphans: BTreeMap::new(),
        }
    }

    fn is_over(&self, lease: LeaseId) -> bool {
        self.over.contains(&lease) || (lease < self.floor && !self.pending.contains(&lease))
    }

    /// Takes the edge's word for the numbers in a range: `named` live, `pending` wait.
    fn settle(
        &mut self,
        range: std::ops::Range<LeaseId>,
        named: &BTreeSet<LeaseId>,
        pending: &[LeaseId],
    ) {
        let spoken_of = |lease: &LeaseId| range.contains(lease);
        self.pending.retain(|lease| !spoken_of(lease));
        self.pending.extend(pending);
        let waits = &self.pending;
        self.over.retain(|l| !spoken_of(l) || named.contains(l) || waits.contains(l));
        self.orphans.retain(|l, _| !spoken_of(l));
        if range.start <= self.floor {
            self.floor = self.floor.max(range.end);
        }
    }

    fn orphan(&mut self, leases: impl Iterator<Item = LeaseId>, now: Moment) {
        for lease in leases {
            self.orphans.entry(lease).or_insert(now);
        }
    }
}

impl Sessions {
    /// The sessions of an owner that has just taken over: none lives, every lease is orphaned.
    pub fn take_over(book: &LeaseBook, now: Moment) -> Self {
        let mut sessions = Self::default();
        for (LeaseKey { edge, lease }, _) in book.iter() {
            let new = || Session::new(edge.incarnation, now);
            let session = sessions.edges.entry(edge.id.clone()).or_insert_with(new);
            // The book is ordered by process: the last one is the youngest. The next tick ends
            // what its elders left.
            if session.incarnation < edge.incarnation {
                *session = new();
            }
            session.orphan(std::iter::once(*lease), now);
        }
        sessions
    }

    /// Lets a process in; ends what processes before it left. `None` if it is one of those.
    fn hear(
        &mut self,
        edge: &Process,
        book: &LeaseBook,
        now: Moment,
    ) -> Option<(&mut Session, Vec<LeaseChange>)> {
        let new = || Session::new(edge.incarnation, now);
        let session = self.edges.entry(edge.id.clone()).or_insert_with(new);
        if session.incarnation > edge.incarnation {
            return None;
        }
        if session.incarnation < edge.incarnation {
            *session = new();
        }
        session.heard = now;
        let left = book.of_processes_before(&edge.id, edge.incarnation);
        let changes = left.map(|key| LeaseChange::Ended { key: key.clone() }).collect();
        Some((session, changes))
    }

    /// A Route came. Its lease is opened by the caller: by an [`LeaseChange::Opened`] after the
    /// changes that are returned.
    pub fn route(
        &mut self,
        key: &LeaseKey,
        book: &LeaseBook,
        now: Moment,
    ) -> (Admission, Vec<LeaseChange>) {
        let Some((session, changes)) = self.hear(&key.edge, book, now) else {
            return (Admission::Over, Vec::new());
        };
        let admission = match book.get(key) {
            Some(lease) => Admission::Known(lease.clone()),
            None if session.is_over(key.lease) => Admission::Over,
            None => Admission::New,
        };
        (admission, changes)
    }

    /// A report came.
    pub fn report(
        &mut self,
        key: LeaseKey,
        report: LeaseReport,
        book: &LeaseBook,
        now: Moment,
    ) -> Vec<LeaseChange> {
        let Some((session, mut changes)) = self.hear(&key.edge, book, now) else {
            return Vec::new();
        };
        // Who reports of a lease has it.
        session.orphans.remove(&key.lease);
        let is_known = book.get(&key).is_some();
        match report {
            LeaseReport::Progress { phase, blocks } if is_known => {
                changes.push(LeaseChange::Progressed { key, phase, blocks });
            }
            // Without its rank nothing can be booked; the next audit tells it.
            LeaseReport::Progress { .. } => {}
            LeaseReport::Moved { lease } if is_known || !session.is_over(key.lease) => {
                changes.push(LeaseChange::Opened { key, lease });
            }
            LeaseReport::Moved { .. } => {}
            LeaseReport::Closed => {
                session.over.insert(key.lease);
                changes.push(LeaseChange::Ended { key });
            }
        }
        changes
    }

    /// An edge says what it holds. No answer to one that is late.
    pub fn audit(
        &mut self,
        audit: &Audit,
        book: &LeaseBook,
        now: Moment,
    ) -> (Option<AuditReply>, Vec<LeaseChange>) {
        let Some((session, changes)) = self.hear(&audit.edge, book, now) else {
            return (None, Vec::new());
        };
        let serial = audit.serial;
        if serial <= session.serial {
            return (None, changes);
        }
        session.serial = serial;
        let pending: BTreeSet<LeaseId> = audit.pending.iter().copied().collect();
        let (mut open, mut digest) = (0, 0_u64);
        for (id, lease) in book.of_edge(&audit.edge).take_while(|(id, _)| *id < audit.upto) {
            if !pending.contains(&id) {
                open += 1;
                digest = digest.wrapping_add(mark(id, &lease.rank));
            }
        }
        if (open, digest) != (audit.open, audit.digest) {
            return (Some(AuditReply::Differs { serial }), changes);
        }
        session.settle(LeaseId(0)..audit.upto, &BTreeSet::new(), &audit.pending);
        (Some(AuditReply::Agreed { serial }), changes)
    }

    /// An edge re-asserts its leases of a range; those that it does not name end.
    pub fn resume(&mut self, resume: &Resume, book: &LeaseBook, now: Moment) -> Vec<LeaseChange> {
        let edge = &resume.edge;
        let Some((session, mut changes)) = self.hear(edge, book, now) else {
            return Vec::new();
        };
        if resume.serial <= session.serial {
            return changes;
        }
        session.serial = resume.serial;
        let key = |lease| LeaseKey { edge: edge.clone(), lease };
        let named: BTreeSet<LeaseId> = resume.open.iter().map(|(id, _)| *id).collect();
        let range = resume.from..resume.upto;
        for (id, _) in book.of_edge(edge).filter(|(id, _)| range.contains(id)) {
            if !named.contains(&id) && !resume.pending.contains(&id) {
                changes.push(LeaseChange::Ended { key: key(id) });
            }
        }
        for (id, lease) in &resume.open {
            let (key, lease) = (key(*id), lease.clone());
            match book.get(&key) {
                Some(known) if known.rank == lease.rank => {
                    let Lease { phase, blocks, .. } = lease;
                    changes.push(LeaseChange::Progressed { key, phase, blocks });
                }
                // Closed after the edge had said this.
                _ if session.over.contains(id) => {}
                _ => changes.push(LeaseChange::Opened { key, lease }),
            }
        }
        session.settle(range, &named, &resume.pending);
        changes
    }

    /// The session of an edge broke: its leases are orphaned.
    pub fn broken(&mut self, edge: &Process, book: &LeaseBook, now: Moment) {
        if let Some(session) = self.edges.get_mut(&edge.id)
            && session.incarnation == edge.incarnation
        {
            session.orphan(book.of_edge(edge).map(|(id, _)| id), now);
        }
    }

    /// Time has passed: sessions fall silent, orphans end. Call it a few times a second.
    pub fn tick(&mut self, book: &LeaseBook, now: Moment) -> Vec<LeaseChange> {
        let mut changes = Vec::new();
        self.edges.retain(|id, session| {
            let edge = Process { id: id.clone(), incarnation: session.incarnation };
            let is_silent = now.since(session.heard) >= SESSION_SILENCE;
            if is_silent {
                session.orphan(book.of_edge(&edge).map(|(id, _)| id), now);
            }
            session.orphans.retain(|&lease, since| {
                let is_due = now.since(*since) >= ORPHAN_TIME;
                if is_due {
                    let key = LeaseKey { edge: edge.clone(), lease };
                    changes.push(LeaseChange::Ended { key });
                }
                !is_due
            });
            let elders = book.of_processes_before(id, session.incarnation);
            changes.extend(elders.map(|key| LeaseChange::Ended { key: key.clone() }));
            let is_gone = now.since(session.heard) >= SESSION_SILENCE + ORPHAN_TIME;
            !is_gone || !session.orphans.is_empty()
        });
        changes
    }
}

#[cfg(test)]
mod tests;
