//! Leases that edges in other processes hold: named by them, re-asserted, orphaned.

use domain::{Decision, FailureClass, Incarnation, LeaseId, RankId, Report};
use proto::What;
use replication::{
    Audit, AuditReply, Lease, LeaseKey, ORPHAN_TIME, Phase, PoolId, Process, Resume,
    SESSION_SILENCE,
};

use super::kit::{Bench, doc, fleet_of};
use crate::pool::Answer;

fn edge(incarnation: u64) -> Process {
    Process { id: "edge".into(), incarnation: Incarnation(incarnation) }
}

fn key(lease: u64) -> LeaseKey {
    LeaseKey { edge: edge(1), lease: LeaseId(lease) }
}

fn pool() -> PoolId {
    "model".into()
}

impl Bench {
    fn ask(&mut self, key: &LeaseKey) -> Answer {
        let route = self.request(Some(doc(1, 10)));
        self.router.ask(&pool(), key, &route, self.now)
    }

    fn booked(&mut self, key: &LeaseKey) -> (Decision, u32) {
        match self.ask(key) {
            Answer::Decided(decision, blocks) => (*decision, blocks),
            other => panic!("{other:?}"),
        }
    }

    fn hear(&self, lease: u64, report: Report) {
        let what = What::Report { report, blocks: 12 };
        self.router.hear(&pool(), key(lease), &what, self.now);
    }

    fn total(&self) -> u64 {
        self.ranks().iter().map(|rank| rank["in_flight"].as_u64().unwrap()).sum()
    }

    fn held(&self) -> Vec<(LeaseKey, Lease)> {
        self.router.booked(&pool())
    }
}

fn on(backend: &str, phase: Phase) -> Lease {
    let rank = RankId { backend: backend.into(), incarnation: Incarnation(1), rank: 0 };
    Lease { rank, blocks: 12, phase }
}

fn resume(serial: u64, open: Vec<(LeaseId, Lease)>) -> Resume {
    let (from, upto) = (LeaseId(0), LeaseId(100));
    Resume { edge: edge(1), serial, from, upto, open, pending: Vec::new() }
}

#[test]
fn a_lease_asked_for_twice_is_booked_once_and_answered_alike_until_it_is_over() {
    let mut bench = Bench::new(fleet_of(3));
    let (first, blocks) = bench.booked(&key(1));
    assert_eq!((first.lease, blocks), (LeaseId(1), 11));
    let (again, _) = bench.booked(&key(1));
    assert_eq!(format!("{again:?}"), format!("{first:?}"));
    assert_eq!(bench.total(), 1);
    bench.hear(1, Report::FirstToken { lease: LeaseId(1) });
    let (told, _) = bench.booked(&key(1));
    assert_eq!(told.chosen, first.chosen, "where it is, if nothing else");
    bench.hear(
        1,
        Report::Failed { lease: LeaseId(1), class: FailureClass::Timeout, retry_after: None },
    );
    assert_eq!(bench.total(), 0);
    assert!(matches!(bench.ask(&key(1)), Answer::Nothing), "it is over");
    assert!(bench.held().is_empty());
}

#[test]
fn leases_of_two_edges_with_one_number_are_two() {
    let mut bench = Bench::new(fleet_of(3));
    let other = LeaseKey { edge: Process { id: "other".into(), ..edge(1) }, lease: LeaseId(1) };
    bench.booked(&key(1));
    bench.booked(&other);
    assert_eq!(bench.total(), 2);
    bench.hear(1, Report::Cancelled { lease: LeaseId(1) });
    assert_eq!(bench.total(), 1);
}

#[test]
fn leases_of_a_broken_session_live_as_long_as_it_takes_to_re_assert_them() {
    let mut bench = Bench::new(fleet_of(3));
    let (first, _) = bench.booked(&key(1));
    bench.booked(&key(2));
    bench.router.broken(&edge(1), bench.now);
    bench.wait(ORPHAN_TIME.as_secs_f64() - 0.1);
    bench.router.tick(bench.now);
    assert_eq!(bench.total(), 2);
    let lease = Lease { rank: first.chosen.rank, blocks: 12, phase: Phase::Generating };
    // One is re-asserted; the range ends before the other.
    let upto = LeaseId(2);
    let resume = Resume { upto, ..resume(1, vec![(LeaseId(1), lease)]) };
    bench.router.resume(&pool(), &resume, bench.now);
    bench.wait(0.2);
    bench.router.tick(bench.now);
    assert_eq!(bench.held().len(), 1);
    assert_eq!(bench.total(), 1);
    assert!(bench.metrics().contains("warmpath_router_leases_reaped_total{model=\"model\"} 1"));
}

#[test]
fn an_edge_that_says_nothing_loses_its_leases_and_one_that_audits_keeps_them() {
    let mut bench = Bench::new(fleet_of(3));
    bench.booked(&key(1));
    let silent = LeaseKey { edge: Process { id: "silent".into(), ..edge(1) }, lease: LeaseId(1) };
    bench.booked(&silent);
    let steps = (SESSION_SILENCE + ORPHAN_TIME).as_secs() + 2;
    for serial in 1..=steps {
        bench.wait(1.0);
        let audit = audit(&bench, serial);
        let reply = bench.router.audit(&pool(), &audit, bench.now);
        assert_eq!(reply, Some(AuditReply::Agreed { serial }));
        bench.router.tick(bench.now);
    }
    assert_eq!(bench.held().len(), 1);
    assert_eq!(bench.total(), 1);
}

/// What an edge says that holds just what the router has booked for it.
fn audit(bench: &Bench, serial: u64) -> Audit {
    let mut holdings = replication::Holdings::new(edge(1));
    for (key, lease) in bench.held().into_iter().filter(|(key, _)| key.edge == edge(1)) {
        holdings.moved(&pool(), key.lease, lease);
    }
    while holdings.ask(&pool()) < LeaseId(99) {}
    for lease in 1..100 {
        if bench.held().iter().all(|(key, _)| key.lease != LeaseId(lease)) {
            holdings.close(&pool(), LeaseId(lease));
        }
    }
    let (_, audit) = holdings.tick(bench.now).remove(0);
    Audit { serial, pending: Vec::new(), ..audit }
}

#[test]
fn what_an_edge_placed_itself_is_in_flight_where_it_says_and_teaches_nothing() {
    let mut bench = Bench::new(fleet_of(3));
    let before = bench.ranks();
    let open = vec![
        (LeaseId(1), on("b1", Phase::Generating)),
        (LeaseId(2), on("b2", Phase::Waiting)),
        (LeaseId(3), on("gone", Phase::Waiting)),
    ];
    bench.router.resume(&pool(), &resume(1, open), bench.now);
    assert_eq!((bench.in_flight("b1"), bench.in_flight("b2"), bench.total()), (1, 1, 2));
    assert_eq!(bench.held().len(), 3, "one that is on nobody is held all the same");
    bench.wait(5.0);
    bench.hear(2, Report::FirstToken { lease: LeaseId(2) });
    bench.hear(2, Report::Progress { lease: LeaseId(2), generated: 64 });
    let usage =
        domain::Usage { prompt_tokens: 165, completion_tokens: 64, cached_tokens: Some(160) };
    bench.hear(2, Report::Finished { lease: LeaseId(2), usage: Some(usage), output_keys: vec![] });
    // It moves, and ends.
    let moved = What::Moved(on("b0", Phase::Generating));
    bench.router.hear(&pool(), key(1), &moved, bench.now);
    assert_eq!((bench.in_flight("b0"), bench.in_flight("b1")), (1, 0));
    bench.hear(1, Report::Cancelled { lease: LeaseId(1) });
    bench.hear(3, Report::Cancelled { lease: LeaseId(3) });
    assert_eq!((bench.total(), bench.held().len()), (0, 0));
    let fits = |ranks: &[serde_json::Value]| -> Vec<_> {
        ranks.iter().map(|rank| rank["prefill_fit"].clone()).collect()
    };
    assert_eq!(fits(&bench.ranks()), fits(&before));
    for line in bench.metrics().lines().filter(|l| l.contains("cached_predictions_total{")) {
        assert!(line.ends_with(" 0"), "{line}");
    }
}

#[test]
fn a_lease_on_a_rank_that_comes_later_counts_on_it_then() {
    let bench = Bench::new(fleet_of(1));
    let open =
        vec![(LeaseId(1), on("b1", Phase::Generating)), (LeaseId(2), on("b1", Phase::Waiting))];
    bench.router.resume(&pool(), &resume(1, open), bench.now);
    bench.hear(2, Report::Cancelled { lease: LeaseId(2) });
    bench.reconcile(fleet_of(2));
    bench.router.tick(bench.now);
    assert_eq!(bench.in_flight("b1"), 1);
    bench.hear(1, Report::Cancelled { lease: LeaseId(1) });
    assert_eq!((bench.in_flight("b1"), bench.held().len()), (0, 0));
}

#[test]
fn a_later_process_of_an_edge_ends_what_the_earlier_one_held() {
    let mut bench = Bench::new(fleet_of(3));
    bench.booked(&key(1));
    bench.booked(&key(2));
    let later = LeaseKey { edge: edge(2), lease: LeaseId(1) };
    bench.booked(&later);
    assert_eq!(bench.total(), 1);
    assert!(matches!(bench.ask(&key(3)), Answer::Nothing), "nobody waits for it");
}
