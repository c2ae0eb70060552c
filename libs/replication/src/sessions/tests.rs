use domain::RankId;
use proptest::prelude::*;

use super::*;
use crate::holdings::{Holdings, Use};
use crate::member::Epoch;
use crate::ownership::{PoolId, Reign, Stream};

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn edge(incarnation: u64) -> Process {
    Process { id: "e".into(), incarnation: Incarnation(incarnation) }
}

fn key(lease: u64) -> LeaseKey {
    LeaseKey { edge: edge(1), lease: LeaseId(lease) }
}

fn rank(incarnation: u64) -> RankId {
    RankId { backend: "b".into(), incarnation: Incarnation(incarnation), rank: 0 }
}

fn lease() -> Lease {
    Lease { rank: rank(1), blocks: 3, phase: Phase::Waiting }
}

/// An owner: its book and its sessions.
#[derive(Default)]
struct Owner {
    book: LeaseBook,
    sessions: Sessions,
}

impl Owner {
    fn apply(&mut self, changes: Vec<LeaseChange>) {
        for change in &changes {
            self.book.apply(change);
        }
    }

    fn route(&mut self, key: &LeaseKey, now: Moment) -> Admission {
        let (admission, changes) = self.sessions.route(key, &self.book, now);
        self.apply(changes);
        if admission == Admission::New {
            self.apply(vec![LeaseChange::Opened { key: key.clone(), lease: lease() }]);
        }
        admission
    }

    fn report(&mut self, key: LeaseKey, report: LeaseReport, now: Moment) {
        let changes = self.sessions.report(key, report, &self.book, now);
        self.apply(changes);
    }

    fn audit(&mut self, audit: &Audit, now: Moment) -> Option<AuditReply> {
        let (reply, changes) = self.sessions.audit(audit, &self.book, now);
        self.apply(changes);
        reply
    }

    fn resume(&mut self, resume: &Resume, now: Moment) {
        let changes = self.sessions.resume(resume, &self.book, now);
        self.apply(changes);
    }

    fn tick(&mut self, now: Moment) {
        let changes = self.sessions.tick(&self.book, now);
        self.apply(changes);
    }

    fn take_over(&mut self, now: Moment) {
        self.sessions = Sessions::take_over(&self.book, now);
    }

    fn leases(&self) -> Vec<u64> {
        self.book.iter().map(|(key, _)| key.lease.0).collect()
    }
}

fn resume(serial: u64, upto: u64, open: &[u64]) -> Resume {
    Resume {
        edge: edge(1),
        serial,
        from: LeaseId(0),
        upto: LeaseId(upto),
        open: open.iter().map(|id| (LeaseId(*id), lease())).collect(),
        pending: Vec::new(),
    }
}

fn audit(serial: u64, upto: u64, open: &[u64], pending: &[u64]) -> Audit {
    let marks = open.iter().map(|id| mark(LeaseId(*id), &rank(1)));
    Audit {
        edge: edge(1),
        serial,
        upto: LeaseId(upto),
        open: open.len() as u32,
        digest: marks.fold(0, u64::wrapping_add),
        pending: pending.iter().map(|id| LeaseId(*id)).collect(),
    }
}

#[test]
fn asking_twice_books_once_and_answers_the_same() {
    let mut owner = Owner::default();
    assert_eq!(owner.route(&key(1), at(0)), Admission::New);
    assert_eq!(owner.route(&key(1), at(1)), Admission::Known(lease()));
    assert_eq!(owner.leases(), [1]);
}

#[test]
fn a_route_that_comes_after_its_end_opens_nothing() {
    let mut owner = Owner::default();
    owner.report(key(1), LeaseReport::Closed, at(0));
    assert_eq!(owner.route(&key(1), at(1)), Admission::Over, "cancelled before it came");
    owner.route(&key(2), at(2));
    owner.report(key(2), LeaseReport::Closed, at(3));
    assert_eq!(owner.route(&key(2), at(4)), Admission::Over);
    // The audit lets the owner forget both; they stay over.
    assert_eq!(owner.audit(&audit(1, 4, &[], &[3]), at(5)), Some(AuditReply::Agreed { serial: 1 }));
    assert!(owner.sessions.edges.values().all(|session| session.over.is_empty()));
    assert_eq!(owner.route(&key(2), at(6)), Admission::Over);
    assert_eq!(owner.route(&key(3), at(6)), Admission::New, "it was waited for");
    assert_eq!(owner.route(&key(4), at(6)), Admission::New, "it is younger than the audit");
}

#[test]
fn late_and_repeated_reports_change_nothing() {
    let mut owner = Owner::default();
    owner.route(&key(1), at(0));
    let progress = |blocks| LeaseReport::Progress { phase: Phase::Generating, blocks };
    owner.report(key(1), progress(9), at(1));
    owner.report(key(1), progress(5), at(2));
    assert_eq!(owner.book.get(&key(1)).map(|lease| lease.blocks), Some(9));
    owner.report(key(1), LeaseReport::Closed, at(3));
    owner.report(key(1), LeaseReport::Closed, at(4));
    owner.report(key(1), progress(12), at(5));
    owner.report(key(1), LeaseReport::Moved { lease: lease() }, at(6));
    assert!(owner.leases().is_empty());
}

#[test]
fn a_broken_session_keeps_its_leases_for_the_orphan_time() {
    let mut owner = Owner::default();
    owner.route(&key(1), at(0));
    owner.route(&key(2), at(0));
    owner.sessions.broken(&edge(1), &owner.book, at(1000));
    owner.tick(at(10_999));
    assert_eq!(owner.leases(), [1, 2]);
    owner.tick(at(11_000));
    assert!(owner.leases().is_empty());
}

#[test]
fn what_is_re_asserted_lives_and_what_is_not_ends_at_once() {
    let mut owner = Owner::default();
    for id in 1..=3 {
        owner.route(&key(id), at(0));
    }
    owner.sessions.broken(&edge(1), &owner.book, at(1000));
    owner.resume(&resume(1, 4, &[1, 3]), at(2000));
    assert_eq!(owner.leases(), [1, 3]);
    owner.resume(&resume(1, 4, &[1, 2, 3]), at(2100));
    assert_eq!(owner.leases(), [1, 3], "an older word than the last");
    for second in 3..60 {
        let audit = audit(second, 4, &[1, 3], &[]);
        assert_eq!(
            owner.audit(&audit, at(second * 1000)),
            Some(AuditReply::Agreed { serial: second })
        );
        owner.tick(at(second * 1000));
    }
    assert_eq!(owner.leases(), [1, 3], "for as long as they live");
}

#[test]
fn a_new_owner_takes_leases_that_it_never_heard_of() {
    let mut owner = Owner::default();
    owner.take_over(at(0));
    owner.resume(&resume(1, 9, &[4, 7]), at(100));
    assert_eq!(owner.leases(), [4, 7]);
    owner.resume(&resume(2, 9, &[4, 7]), at(200));
    assert_eq!(owner.leases(), [4, 7], "and once only");
}

#[test]
fn a_new_owner_ends_what_nobody_re_asserts() {
    let mut owner = Owner::default();
    owner.route(&key(1), at(0));
    owner.route(&key(2), at(0));
    owner.take_over(at(5000));
    owner.report(key(2), LeaseReport::Progress { phase: Phase::Generating, blocks: 4 }, at(14_000));
    owner.tick(at(14_999));
    assert_eq!(owner.leases(), [1, 2]);
    owner.tick(at(15_000));
    assert_eq!(owner.leases(), [2], "a report re-asserts its lease as well");
}

#[test]
fn a_late_resume_does_not_bring_back_what_was_closed_after_it() {
    let mut owner = Owner::default();
    owner.take_over(at(0));
    owner.report(key(4), LeaseReport::Closed, at(50));
    owner.resume(&resume(1, 9, &[4, 7]), at(100));
    assert_eq!(owner.leases(), [7]);
}

#[test]
fn a_lease_on_a_life_of_a_rank_that_is_gone_counts_on_nobody() {
    let mut owner = Owner::default();
    owner.apply(vec![LeaseChange::RankAdded { rank: rank(2) }]);
    owner.resume(&resume(1, 9, &[4]), at(100));
    assert_eq!(owner.leases(), [4], "its stream may run to its end");
    assert_eq!(owner.book.load(&rank(1)), None);
    assert_eq!(owner.book.load(&rank(2)).map(|load| load.leases), Some(0));
    owner.report(key(4), LeaseReport::Closed, at(200));
    assert!(owner.leases().is_empty());
}

#[test]
fn a_restarted_edge_ends_what_its_earlier_process_held() {
    let mut owner = Owner::default();
    owner.route(&key(1), at(0));
    let young = LeaseKey { edge: edge(2), lease: LeaseId(1) };
    assert_eq!(owner.route(&young, at(100)), Admission::New);
    assert_eq!(owner.book.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), [young]);
    assert_eq!(owner.route(&key(5), at(200)), Admission::Over, "from the process before");
    owner.resume(&resume(9, 9, &[1]), at(300));
    assert_eq!(owner.book.iter().count(), 1);
}

#[test]
fn an_edge_that_falls_silent_is_orphaned_without_any_sign() {
    let mut owner = Owner::default();
    owner.route(&key(1), at(0));
    for now in (0..13_000).step_by(100) {
        owner.tick(at(now));
        assert_eq!(owner.leases(), [1]);
    }
    owner.tick(at(13_000));
    assert!(owner.leases().is_empty() && owner.sessions.edges.is_empty());
}

#[test]
fn an_audit_that_differs_is_answered_with_the_wish_for_a_resume() {
    let mut owner = Owner::default();
    owner.route(&key(1), at(0));
    owner.route(&key(2), at(0));
    assert_eq!(
        owner.audit(&audit(1, 3, &[1, 2], &[]), at(10)),
        Some(AuditReply::Agreed { serial: 1 })
    );
    assert_eq!(owner.audit(&audit(1, 3, &[1], &[]), at(20)), None, "it was heard before");
    let differs = owner.audit(&audit(2, 3, &[1], &[]), at(30));
    assert_eq!(differs, Some(AuditReply::Differs { serial: 2 }));
    owner.resume(&resume(3, 3, &[1]), at(40));
    assert_eq!(owner.leases(), [1]);
    // What the edge waits for counts neither way.
    owner.route(&key(3), at(50));
    let agreed = owner.audit(&audit(4, 4, &[1], &[3]), at(60));
    assert_eq!(agreed, Some(AuditReply::Agreed { serial: 4 }));
    assert_eq!(owner.leases(), [1, 3]);
}

/// A message between the edge and the owner, to be delivered late, twice or never.
#[derive(Clone, Debug)]
enum Wire {
    Route(LeaseId),
    Report(LeaseId, LeaseReport),
    Audit(Audit),
    Resume(Resume),
    Decision(LeaseId, Lease),
    Reply(AuditReply),
}

struct Link {
    pool: PoolId,
    reign: Reign,
    holdings: Holdings,
    owner: Owner,
    wire: Vec<Wire>,
}

impl Link {
    fn new() -> Self {
        let stream = Stream { turn: 1, owner: edge(0) };
        let reign = Reign { epoch: Epoch::ZERO, stream };
        let holdings = Holdings::new(edge(1));
        Self { pool: "p".into(), reign, holdings, owner: Owner::default(), wire: Vec::new() }
    }

    fn held(&self) -> Vec<(LeaseId, bool)> {
        let held = self.holdings.held_in(&self.pool);
        held.map(|(id, lease)| (id, lease.is_some())).collect()
    }

    /// Something happens at the edge.
    fn act(&mut self, what: u8, which: usize) {
        let held = self.held();
        let chosen = (!held.is_empty()).then(|| held[which % held.len()]);
        let pool = self.pool.clone();
        let message = match (what, chosen) {
            (0..4, _) => Wire::Route(self.holdings.ask(&pool)),
            (4..6, Some((id, true))) => {
                let report = self.holdings.progress(&pool, id, Phase::Generating, which as u32 % 9);
                Wire::Report(id, report.expect("it is held"))
            }
            (6, Some((id, false))) => Wire::Report(id, self.holdings.moved(&pool, id, lease())),
            (7..9, Some((id, _))) => Wire::Report(id, self.holdings.close(&pool, id)),
            _ => return,
        };
        self.wire.push(message);
    }

    fn deliver(&mut self, message: Wire, now: Moment) {
        let pool = self.pool.clone();
        match message {
            Wire::Route(id) => match self.owner.route(&self.holdings.key(id), now) {
                Admission::New => self.wire.push(Wire::Decision(id, lease())),
                Admission::Known(lease) => self.wire.push(Wire::Decision(id, lease)),
                Admission::Over => {}
            },
            Wire::Report(id, report) => self.owner.report(self.holdings.key(id), report, now),
            Wire::Audit(audit) => {
                let reply = self.owner.audit(&audit, now);
                self.wire.extend(reply.map(Wire::Reply));
            }
            Wire::Resume(resume) => self.owner.resume(&resume, now),
            Wire::Decision(id, lease) => {
                if let Use::Report(report) = self.holdings.decided(&pool, &self.reign, id, lease) {
                    self.wire.push(Wire::Report(id, report));
                }
            }
            Wire::Reply(reply) => {
                let resumes = self.holdings.audited(&pool, reply);
                self.wire.extend(resumes.into_iter().map(Wire::Resume));
            }
        }
    }
}

proptest! {
    /// Whatever is lost, repeated or reordered, and whether the owner changes in between: one
    /// resume on a quiet line makes the leases what the edge holds.
    #[test]
    fn one_quiet_resume_settles_everything(
        steps in prop::collection::vec((0_u8..14, any::<usize>(), 0_u8..10), 0..150),
    ) {
        let mut link = Link::new();
        let mut now = 0;
        for (what, which, fate) in steps {
            now += 10;
            match what {
                0..9 => link.act(what, which),
                9 => {
                    let audits = link.holdings.tick(at(now * 100));
                    link.wire.extend(audits.into_iter().map(|(_, audit)| Wire::Audit(audit)));
                }
                10 if fate == 0 => link.owner.take_over(at(now)),
                _ => {}
            }
            if !link.wire.is_empty() && fate < 8 {
                let chosen = which % link.wire.len();
                let message = link.wire[chosen].clone();
                // Most are taken off the line, some come again; of the others some are lost.
                if fate != 1 {
                    link.wire.remove(chosen);
                }
                if fate != 2 {
                    link.deliver(message, at(now));
                }
            }
        }
        link.wire.clear();
        // The session breaks: waiting requests are given up, and all is re-asserted.
        let pool = link.pool.clone();
        for (id, open) in link.held() {
            if !open {
                link.holdings.close(&pool, id);
            }
        }
        let resumes = link.holdings.resume(&pool);
        link.wire.extend(resumes.into_iter().map(Wire::Resume));
        while let Some(message) = link.wire.pop() {
            link.deliver(message, at(now));
        }
        let held: Vec<u64> = link.held().iter().map(|(id, _)| id.0).collect();
        prop_assert_eq!(link.owner.leases(), held);
        for (id, lease) in link.holdings.held_in(&pool) {
            prop_assert_eq!(link.owner.book.get(&link.holdings.key(id)), lease);
        }
    }
}
