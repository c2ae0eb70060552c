//! Leases that edges in other processes hold.
//!
//! They have two sides. The pool's own leases say what each does on its rank. The book says who
//! holds what, in the words of the protocol; [`Sessions`] alone decide its changes, and every
//! change of the book is made to the pool's leases too. So the book is what is compared with the
//! edges, and what follows from it is one place: [`State::apply`].

use std::collections::HashMap;
use std::time::Duration;

use domain::{
    BlockUnit, Decision, DecisionReason, Evidence, LeaseId, Moment, Prompt, RejectReason, Report,
    Route, ScoreParts,
};
use proto::What;
use replication::{
    Admission, Audit, AuditReply, Lease as EdgeLease, LeaseBook, LeaseChange, LeaseKey,
    LeaseReport, Phase, Process, Resume, Sessions,
};

use super::change::{Change, Progress};
use super::lease::{BookedBlocks, Forecast, Lease, Size};
use super::measure::Measure;
use super::report::Closing;
use super::{State, start};
use crate::explain::{Ending, Outcome, Trace};

/// What happened to leases, for the explanations.
type Outcomes = Vec<(LeaseId, Outcome)>;

/// What edges in other processes hold here.
#[derive(Default)]
pub(super) struct Remote {
    pub(super) sessions: Sessions,
    pub(super) book: LeaseBook,
    by_key: HashMap<LeaseKey, Named>,
}

/// A lease under the name that its edge gave it.
struct Named {
    id: LeaseId,
    /// What was answered, for when it is asked again. Dropped at the first report: the answer
    /// has arrived.
    answer: Option<Box<Decision>>,
}

impl Remote {
    /// The pool's lease of that name.
    pub(super) fn id(&self, key: &LeaseKey) -> Option<LeaseId> {
        self.by_key.get(key).map(|named| named.id)
    }

    /// The pool's lease of that name is closed.
    pub(super) fn forget(&mut self, key: &LeaseKey) -> Option<LeaseId> {
        self.by_key.remove(key).map(|named| named.id)
    }

    /// A lease of the pool has that name.
    pub(super) fn name(&mut self, key: LeaseKey, id: LeaseId, answer: Option<Box<Decision>>) {
        self.by_key.insert(key, Named { id, answer });
    }

    /// Leases of the book that the pool has no lease for: their ranks are not here, or were not
    /// when they came.
    pub(super) fn without_rank(&self) -> impl Iterator<Item = (&LeaseKey, &EdgeLease)> {
        self.book.iter().filter(|(key, _)| !self.by_key.contains_key(key))
    }
}

/// What a Route of an edge elsewhere comes to.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is booked, and holds so many blocks. The decision's lease is the edge's number.
    Decided(Box<Decision>, u32),
    /// It is not.
    Rejected(RejectReason),
    /// The lease is over, or its edge's process: nobody waits.
    Nothing,
    /// The pool is served by another router.
    Elsewhere,
}

/// The answer; and if it was made now, how it came about, with the pool's own lease.
pub(crate) type RoutedFor = (Answer, Option<(Trace, Option<LeaseId>)>);

impl State {
    pub(super) fn route_for(&mut self, key: &LeaseKey, route: &Route, now: Moment) -> RoutedFor {
        let (admission, changes) = self.remote.sessions.route(key, &self.remote.book, now);
        self.apply(changes, now);
        match admission {
            Admission::Over => (Answer::Nothing, None),
            Admission::Known(edge_lease) => (self.answer_again(key, &edge_lease), None),
            Admission::New => {
                let (result, trace) = self.route(route, now);
                match result {
                    Ok(decision) => {
                        let id = decision.lease;
                        (self.name(key, decision, route), Some((trace, Some(id))))
                    }
                    Err(reason) => (Answer::Rejected(reason), Some((trace, None))),
                }
            }
        }
    }

    /// Gives a lease that was just booked the name that its edge knows it by.
    fn name(&mut self, key: &LeaseKey, mut decision: Decision, route: &Route) -> Answer {
        let id = std::mem::replace(&mut decision.lease, key.lease);
        let Some(lease) = self.leases.get_mut(&id) else { return Answer::Nothing };
        lease.key = Some(key.clone());
        let blocks = lease.blocks.as_ref().map_or(0, |b| b.measure.prompt_blocks());
        let edge_lease =
            EdgeLease { rank: decision.chosen.rank.clone(), blocks, phase: Phase::Waiting };
        self.remote
            .book
            .apply(&LeaseChange::Opened { key: key.clone(), lease: edge_lease.clone() });
        let answer = Some(Box::new(decision.clone()));
        self.remote.name(key.clone(), id, answer);
        self.tell_opened(key, &edge_lease, Some(route));
        Answer::Decided(Box::new(decision), blocks)
    }

    /// The answer that a lease had, or one that says no more than where it is.
    fn answer_again(&self, key: &LeaseKey, edge_lease: &EdgeLease) -> Answer {
        let known = self.remote.by_key.get(key);
        if let Some(answer) = known.and_then(|named| named.answer.as_ref()) {
            return Answer::Decided(answer.clone(), edge_lease.blocks);
        }
        let Some(rank) = self.ranks.iter().find(|rank| rank.id == edge_lease.rank) else {
            return Answer::Nothing;
        };
        let evidence = Evidence {
            matched_blocks: 0,
            predicted_cached_tokens: 0,
            predicted_ttft: Duration::ZERO,
            parts: ScoreParts::default(),
            level: rank.level,
            reason: DecisionReason::OnlyCandidate,
        };
        let chosen = rank.candidate();
        let decision = Decision { lease: key.lease, chosen, others: Vec::new(), evidence };
        Answer::Decided(Box::new(decision), edge_lease.blocks)
    }

    pub(super) fn hear(&mut self, key: LeaseKey, what: &What, now: Moment) -> Outcomes {
        let mut outcomes = Outcomes::new();
        let told = match what {
            What::Moved(lease) => LeaseReport::Moved { lease: lease.clone() },
            What::Report { report, blocks } => {
                if let Some(named) = self.remote.by_key.get_mut(&key) {
                    named.answer = None;
                    let id = named.id;
                    let report = renamed(report, id);
                    outcomes.extend(self.report(&report, now).map(|outcome| (id, outcome)));
                }
                in_short(report, *blocks)
            }
        };
        let mut changes = self.remote.sessions.report(key, told, &self.remote.book, now);
        // How far it is was said above, in tokens.
        let further = |change: &LeaseChange| matches!(change, LeaseChange::Progressed { .. });
        for change in changes.extract_if(.., |change| further(change)) {
            self.remote.book.apply(&change);
            if let LeaseChange::Progressed { key, .. } = &change {
                self.tell_progress(key);
            }
        }
        outcomes.extend(self.apply(changes, now));
        outcomes
    }

    pub(super) fn audit(&mut self, audit: &Audit, now: Moment) -> Option<AuditReply> {
        let (reply, changes) = self.remote.sessions.audit(audit, &self.remote.book, now);
        self.apply(changes, now);
        reply
    }

    pub(super) fn resume(&mut self, resume: &Resume, now: Moment) -> Outcomes {
        let changes = self.remote.sessions.resume(resume, &self.remote.book, now);
        self.apply(changes, now)
    }

    pub(super) fn broken(&mut self, edge: &Process, now: Moment) {
        self.remote.sessions.broken(edge, &self.remote.book, now);
    }

    /// Ends what nobody re-asserted in time.
    pub(super) fn end_orphans(&mut self, now: Moment) -> Outcomes {
        let changes = self.remote.sessions.tick(&self.remote.book, now);
        self.apply(changes, now)
    }

    /// Adopts leases whose ranks have come since.
    pub(super) fn adopt_leases_without_rank(&mut self, now: Moment) {
        let is_here =
            |edge_lease: &EdgeLease| self.ranks.iter().any(|rank| rank.id == edge_lease.rank);
        let come = self.remote.without_rank().filter(|(_, edge_lease)| is_here(edge_lease));
        let come: Vec<_> =
            come.map(|(key, edge_lease)| (key.clone(), edge_lease.clone())).collect();
        for (key, edge_lease) in come {
            self.adopt(key, &edge_lease, now);
        }
    }

    #[cfg(test)]
    pub(super) fn booked(&self) -> Vec<(LeaseKey, EdgeLease)> {
        self.remote.book.iter().map(|(key, edge_lease)| (key.clone(), edge_lease.clone())).collect()
    }

    /// Makes changes of the book, and to the pool's leases what follows from them.
    fn apply(&mut self, changes: Vec<LeaseChange>, now: Moment) -> Outcomes {
        let mut outcomes = Outcomes::new();
        for change in changes {
            match &change {
                LeaseChange::Opened { key, lease } => {
                    self.end(key, now);
                    self.remote.book.apply(&change);
                    self.adopt(key.clone(), lease, now);
                }
                LeaseChange::Progressed { key, phase, blocks } => {
                    self.remote.book.apply(&change);
                    if let Some(id) = self.remote.id(key) {
                        self.advance_lease(id, *phase, *blocks);
                    }
                    self.tell_progress(key);
                }
                LeaseChange::Ended { key } => {
                    let Some((id, at)) = self.end(key, now) else { continue };
                    self.metrics.leases_reaped.inc();
                    let seconds = now.seconds_since(at);
                    outcomes.push((id, Outcome::Ended { ending: Ending::Reaped, seconds }));
                }
                LeaseChange::RankAdded { .. } | LeaseChange::RankRemoved { .. } => {}
            }
        }
        outcomes
    }

    /// Ends a lease, with what it has booked. Returns that, where it is on a rank that is here.
    fn end(&mut self, key: &LeaseKey, now: Moment) -> Option<(LeaseId, Moment)> {
        if let Some((id, lease)) = self.lease_named(key) {
            let at = lease.at;
            self.close(id, Closing::default(), now);
            return Some((id, at));
        }
        if self.remote.book.apply(&LeaseChange::Ended { key: key.clone() }).is_some() {
            self.changes.record(|| Change::Closed { lease: key.clone(), left: None });
        }
        None
    }

    /// The pool's lease of that name.
    pub(super) fn lease_named(&self, key: &LeaseKey) -> Option<(LeaseId, &Lease)> {
        let id = self.remote.id(key)?;
        Some((id, self.leases.get(&id)?))
    }

    /// Tells of a lease that was just opened.
    fn tell_opened(&mut self, key: &LeaseKey, edge_lease: &EdgeLease, route: Option<&Route>) {
        let mut changes = std::mem::take(&mut self.changes);
        changes.record(|| {
            let opening = match self.lease_named(key) {
                Some((_, lease)) => self.outset_of(key, edge_lease, lease, route),
                None => self.without_rank(key, edge_lease),
            };
            Change::Booked(Box::new(opening))
        });
        self.changes = changes;
    }

    /// Tells how far a lease is.
    fn tell_progress(&mut self, key: &LeaseKey) {
        let mut changes = std::mem::take(&mut self.changes);
        if let Some(edge_lease) = self.remote.book.get(key) {
            changes.record(|| Change::Progressed(self.progress_of(key, edge_lease)));
        }
        self.changes = changes;
    }

    fn progress_of(&self, key: &LeaseKey, edge_lease: &EdgeLease) -> Progress {
        let lease = self.lease_named(key).map(|(_, lease)| lease);
        let booked = lease.and_then(|lease| lease.blocks.as_ref());
        Progress {
            lease: key.clone(),
            blocks: edge_lease.blocks,
            phase: edge_lease.phase,
            first_token: lease.is_some_and(|lease| lease.first_token),
            generated: lease.map_or(0, |lease| lease.generated),
            output_blocks: booked.map_or(0, |blocks| blocks.booking.generated_blocks()),
        }
    }

    /// A lease is on a rank without a decision of ours. On one that is gone it counts on nobody.
    fn adopt(&mut self, key: LeaseKey, edge_lease: &EdgeLease, now: Moment) {
        let Some(at) = self.ranks.iter().position(|rank| rank.id == edge_lease.rank) else {
            self.tell_opened(&key, edge_lease, None);
            return;
        };
        let id = self.new_lease();
        let (blocks, size) = self.adopt_blocks(at, edge_lease.blocks);
        let rank = &mut self.ranks[at];
        rank.load.adopt(id, edge_lease.blocks, now);
        rank.show_in_flight();
        let lease = Lease {
            rank: rank.key,
            at: now,
            heard: now,
            blocks,
            forecast: Forecast { cached_tokens: 0, ttft_seconds: 0.0, grain: 1, text_bytes: 0 },
            size,
            stream: true,
            trial: false,
            first_token: true,
            generated: 0,
            key: Some(key.clone()),
            adopted: true,
        };
        self.keep(id, lease);
        self.remote.name(key.clone(), id, None);
        self.tell_opened(&key, edge_lease, None);
        if let Some(lease) = self.leases.get_mut(&id) {
            start(&mut self.mirrors, lease, &mut self.changes);
        }
    }

    /// What a lease without keys takes in the index that its rank is followed in: its output. An
    /// edge alone sends a prompt where its beginning went last, so that most of it is there
    /// already; blocks taken for it once more would push out what is really cached.
    fn adopt_blocks(&mut self, at: usize, blocks: u32) -> (Option<BookedBlocks>, Size) {
        let profile = self.ranks[at].profile;
        let unit = profile.unit();
        let length = blocks.saturating_mul(unit.size());
        let tokens = match unit {
            BlockUnit::Tokens(_) => length,
            BlockUnit::Bytes(_) => (f64::from(length) / self.bytes_per_token) as u32,
        };
        let prompt = Prompt { tokens, text_bytes: length, keys: Vec::new() };
        let size = Size { tokens, text_bytes: length, uncached_tokens: 0 };
        if !profile.caches {
            return (None, size);
        }
        let measure = Measure::new(unit, &prompt, self.bytes_per_token);
        let number = self.mirror(unit);
        self.ensure_slot(at, number);
        let booked = self.ranks[at].slot(number).map(|slot| {
            let mirror = &mut self.mirrors[number];
            let sample = mirror.feedback.sample(slot, &[]);
            let booking = mirror.index.book(slot, &[], 0);
            BookedBlocks { mirror: number, booking, sample, started: false, measure, keyed: 0 }
        });
        (booked, size)
    }

    /// An edge re-asserts a lease: what was said of it meanwhile was lost.
    fn advance_lease(&mut self, id: LeaseId, phase: Phase, blocks: u32) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        if phase == Phase::Generating {
            start(&mut self.mirrors, lease, &mut self.changes);
        }
        if let Some(booked) = &mut lease.blocks {
            let output = blocks.saturating_sub(booked.measure.prompt_blocks());
            self.mirrors[booked.mirror].index.grow(&mut booked.booking, output);
        }
    }
}

/// The same report of the pool's own lease.
fn renamed(report: &Report, lease: LeaseId) -> Report {
    let mut report = report.clone();
    match &mut report {
        Report::FirstToken { lease: name }
        | Report::Progress { lease: name, .. }
        | Report::Finished { lease: name, .. }
        | Report::Failed { lease: name, .. }
        | Report::Cancelled { lease: name } => *name = lease,
    }
    report
}

/// What a report says of the lease alone.
fn in_short(report: &Report, blocks: u32) -> LeaseReport {
    match report {
        Report::FirstToken { .. } | Report::Progress { .. } => {
            LeaseReport::Progress { phase: Phase::Generating, blocks }
        }
        Report::Finished { .. } | Report::Failed { .. } | Report::Cancelled { .. } => {
            LeaseReport::Closed
        }
    }
}
