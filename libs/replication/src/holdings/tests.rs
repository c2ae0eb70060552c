use domain::{Incarnation, RankId};

use super::*;
use crate::member::{Epoch, Member, Role};
use crate::ownership::Stream;

fn process(name: &str) -> Process {
    Process { id: name.into(), incarnation: Incarnation(1) }
}

fn reign(turn: u64, owner: &str) -> Reign {
    Reign { epoch: Epoch::ZERO, stream: Stream { turn, owner: process(owner) } }
}

fn lease(backend: &str) -> Lease {
    let rank = RankId { backend: backend.into(), incarnation: Incarnation(1), rank: 0 };
    Lease { rank, blocks: 2, phase: Phase::Waiting }
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn holdings() -> (Holdings, PoolId) {
    let mut holdings = Holdings::new(process("edge"));
    let member = |name| Member { process: process(name), role: Role::Router, address: "".into() };
    let members = ["r0", "r1", "r2"].map(member).to_vec().into();
    holdings.set_list(&MemberList { epoch: Epoch { term: 1, number: 1 }, members });
    (holdings, "p".into())
}

fn names(holdings: &Holdings, pool: &PoolId) -> Vec<String> {
    holdings.ask_order(pool).iter().map(|p| p.id.to_string()).collect()
}

#[test]
fn the_owner_that_answered_is_asked_first_until_it_is_out_of_reach() {
    let (mut holdings, pool) = holdings();
    let listed = names(&holdings, &pool);
    let last = listed[2].clone();
    holdings.heard_owner(&pool, &reign(1, &last));
    assert_eq!(names(&holdings, &pool), [&last, &listed[0], &listed[1]].map(String::clone));
    holdings.unreachable(&process(&last));
    assert_eq!(names(&holdings, &pool), listed);
}

#[test]
fn the_lists_owner_is_asked_again_once_it_can_be_reached() {
    let (mut holdings, pool) = holdings();
    let listed = names(&holdings, &pool);
    assert_eq!(holdings.passed_over(), []);
    holdings.heard_owner(&pool, &reign(1, &listed[1]));
    assert_eq!(holdings.passed_over(), [process(&listed[0])]);
    holdings.ask_again(&process(&listed[2]));
    assert_eq!(names(&holdings, &pool)[0], listed[1], "it is not the owner");
    holdings.ask_again(&process(&listed[0]));
    assert_eq!(names(&holdings, &pool), listed);
}

#[test]
fn a_router_that_names_another_sends_the_edge_there() {
    let (mut holdings, pool) = holdings();
    let listed = names(&holdings, &pool);
    holdings.not_owner(&pool, &process(&listed[0]), Some(process(&listed[1])));
    assert_eq!(names(&holdings, &pool)[0], listed[1]);
    holdings.not_owner(&pool, &process(&listed[1]), None);
    assert_eq!(names(&holdings, &pool), listed, "it does not own it either");
}

#[test]
fn a_new_owner_is_told_all_that_is_held_and_the_same_one_nothing() {
    let (mut holdings, pool) = holdings();
    assert_eq!(holdings.heard_owner(&pool, &reign(1, "r0")).len(), 1);
    let (held, pending) = (holdings.ask(&pool), holdings.ask(&pool));
    assert_eq!(holdings.decided(&pool, &reign(1, "r0"), held, lease("b")), Use::Now);
    assert!(holdings.heard_owner(&pool, &reign(1, "r0")).is_empty());
    let resumes = holdings.heard_owner(&pool, &reign(2, "r1"));
    let [resume] = &resumes[..] else { panic!("{resumes:?}") };
    assert_eq!(resume.open, [(held, lease("b"))]);
    assert_eq!(resume.pending, [pending]);
    assert_eq!((resume.from, resume.upto), (LeaseId(0), LeaseId(3)));
}

#[test]
fn an_owner_of_an_older_reign_is_refused() {
    let (mut holdings, pool) = holdings();
    holdings.heard_owner(&pool, &reign(2, "r1"));
    let id = holdings.ask(&pool);
    let answer = holdings.decided(&pool, &reign(1, "r0"), id, lease("b"));
    assert_eq!(answer, Use::Report(LeaseReport::Closed));
    assert!(holdings.heard_owner(&pool, &reign(1, "r0")).is_empty());
    assert_eq!(holdings.ask_order(&pool)[0], process("r1"));
    assert_eq!(holdings.decided(&pool, &reign(2, "r1"), id, lease("b")), Use::Now);
}

#[test]
fn a_decision_that_comes_late_is_corrected() {
    let (mut holdings, pool) = holdings();
    let reign = reign(1, "r0");
    let (moved, closed) = (holdings.ask(&pool), holdings.ask(&pool));
    holdings.moved(&pool, moved, lease("own"));
    holdings.close(&pool, closed);
    let answer = holdings.decided(&pool, &reign, moved, lease("b"));
    assert_eq!(answer, Use::Report(LeaseReport::Moved { lease: lease("own") }));
    assert_eq!(holdings.decided(&pool, &reign, moved, lease("own")), Use::Again);
    let answer = holdings.decided(&pool, &reign, closed, lease("b"));
    assert_eq!(answer, Use::Report(LeaseReport::Closed));
}

#[test]
fn audits_go_on_until_the_owner_agrees_that_nothing_is_held() {
    let (mut holdings, pool) = holdings();
    assert!(holdings.tick(at(0)).is_empty(), "nothing was ever asked for");
    let id = holdings.ask(&pool);
    assert_eq!(holdings.tick(at(1000)).len(), 1);
    assert!(holdings.tick(at(1999)).is_empty());
    holdings.close(&pool, id);
    let [(_, empty)] = &holdings.tick(at(2000))[..] else { panic!() };
    assert_eq!((empty.open, empty.digest, empty.pending.len()), (0, 0, 0));
    let agreed = AuditReply::Agreed { serial: empty.serial };
    let more = holdings.ask(&pool);
    holdings.audited(&pool, agreed);
    assert_eq!(holdings.tick(at(3000)).len(), 1, "something is held since");
    holdings.close(&pool, more);
    let [(_, empty)] = &holdings.tick(at(4000))[..] else { panic!() };
    holdings.audited(&pool, AuditReply::Agreed { serial: empty.serial });
    assert!(holdings.tick(at(9000)).is_empty());
}

#[test]
fn many_leases_are_re_asserted_in_messages_that_follow_each_other() {
    let (mut holdings, pool) = holdings();
    let total = 2 * RESUME_BATCH as u64 + 10;
    for _ in 0..total {
        let id = holdings.ask(&pool);
        holdings.moved(&pool, id, lease("b"));
    }
    let waits = holdings.ask(&pool);
    let resumes = holdings.resume(&pool);
    assert_eq!(resumes.iter().map(|r| r.open.len()).collect::<Vec<_>>(), [1000, 1000, 10]);
    assert_eq!(resumes[0].from, LeaseId(0));
    for pair in resumes.windows(2) {
        assert_eq!(pair[0].upto, pair[1].from);
        assert!(pair[0].serial < pair[1].serial);
    }
    for resume in &resumes {
        assert!(resume.open.iter().all(|(id, _)| (resume.from..resume.upto).contains(id)));
    }
    assert_eq!(resumes[2].upto, LeaseId(total + 2));
    assert_eq!(resumes[2].pending, [waits]);
}
