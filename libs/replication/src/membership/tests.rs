use domain::{Incarnation, Moment};
use proptest::prelude::*;

use super::*;
use crate::member::Role;

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn member(name: &str, incarnation: u64) -> Member {
    let process = Process { id: name.into(), incarnation: Incarnation(incarnation) };
    Member { process, role: Role::Router, address: "".into() }
}

fn renew(name: &str, incarnation: u64, known: Epoch) -> Renew {
    Renew { member: member(name, incarnation), known }
}

fn names(list: &MemberList) -> Vec<String> {
    list.members.iter().map(|m| format!("{:?}", m.process)).collect()
}

/// A registrar that has published a list of these, each renewed at 2.9 s.
fn with_members(members: &[&str]) -> Registrar {
    let mut registrar = Registrar::new(1, at(0));
    for name in members {
        registrar.renew(renew(name, 1, Epoch::ZERO), at(2900));
    }
    registrar.tick(at(3000)).expect("the first list");
    registrar
}

#[test]
fn a_term_that_was_never_telemetrys_raises_nothing_and_one_that_may_have_been_is_outdone() {
    let now = 1_800_000_000_000;
    let mut registrar = Registrar::new(now, at(0));
    for term in [u64::MAX, u64::MAX - 1, now + MOST_AHEAD + 1] {
        let forged = renew("evil", 1, Epoch { term, number: u64::MAX });
        assert_eq!(registrar.objection(&forged), Some(Objection::ForeignEpoch));
        assert_eq!(registrar.renew(forged, at(2900)), None);
    }
    // However often it is raised by who is let in, a later start is still above or outdoes it.
    for _ in 0..3 {
        let known = Epoch { term: now + MOST_AHEAD, number: 7 };
        registrar.renew(renew("a", 1, known), at(2900));
    }
    let list = registrar.tick(at(3000)).expect("a list");
    assert_eq!(names(&list), ["a.1"]);
    assert_eq!(list.epoch.term, now + MOST_AHEAD + 1);
    let mut later = Registrar::new(now + 1000, at(10_000));
    later.renew(renew("a", 1, list.epoch), at(12_900));
    let list = later.tick(at(13_000)).expect("a list");
    assert_eq!(list.epoch.term, now + MOST_AHEAD + 2);
    // A start without a clock wraps nothing either.
    let mut last = Registrar::new(u64::MAX, at(0));
    last.renew(renew("a", 1, Epoch { term: u64::MAX, number: 1 }), at(2900));
    assert_eq!(last.tick(at(3000)).expect("a list").epoch.term, u64::MAX);
}

#[test]
fn so_many_members_and_no_more() {
    let mut registrar = Registrar::new(1, at(0));
    for n in 0..MOST_MEMBERS {
        registrar.renew(renew(&format!("m{n}"), 1, Epoch::ZERO), at(2900));
    }
    let late = renew("late", 1, Epoch::ZERO);
    assert_eq!(registrar.objection(&late), Some(Objection::Full));
    registrar.renew(late.clone(), at(2900));
    assert_eq!(registrar.objection(&renew("m0", 2, Epoch::ZERO)), None, "who is one stays one");
    assert_eq!(registrar.tick(at(3000)).expect("a list").members.len(), MOST_MEMBERS);
    registrar.leave(&member("m7", 1).process, at(3000));
    assert_eq!(registrar.objection(&late), None);
}

#[test]
fn the_first_list_waits_until_everyone_had_time_to_renew() {
    let mut registrar = Registrar::new(1, at(0));
    assert_eq!(registrar.renew(renew("a", 1, Epoch::ZERO), at(100)), None);
    assert_eq!(registrar.tick(at(2999)), None);
    registrar.renew(renew("b", 1, Epoch::ZERO), at(2999));
    registrar.renew(renew("a", 1, Epoch::ZERO), at(2999));
    let list = registrar.tick(at(3000)).expect("a list");
    assert_eq!(names(&list), ["a.1", "b.1"]);
    assert_eq!(list.epoch, Epoch { term: 1, number: 1 });
    assert_eq!(registrar.tick(at(3100)), None, "it is published once");
}

#[test]
fn a_member_that_does_not_renew_is_off_the_list_and_one_that_does_stays() {
    let mut registrar = with_members(&["a", "b"]);
    let known = registrar.list().epoch;
    for millis in [3800, 4700, 5600] {
        assert_eq!(registrar.renew(renew("a", 1, known), at(millis)), None, "nothing new");
    }
    assert_eq!(registrar.tick(at(5899)), None);
    let list = registrar.tick(at(5900)).expect("b's lease has ended");
    assert_eq!(names(&list), ["a.1"]);
    assert!(list.epoch > known);
}

#[test]
fn whoever_goes_by_another_list_is_answered_with_the_newest() {
    let mut registrar = with_members(&["a", "b"]);
    let answer = registrar.renew(renew("a", 1, Epoch::ZERO), at(3100)).expect("the list");
    assert_eq!(&answer, registrar.list());
}

#[test]
fn a_restarted_member_is_another_process_and_the_earlier_one_stays_out() {
    let mut registrar = with_members(&["a", "b"]);
    let list = registrar.renew(renew("a", 2, Epoch::ZERO), at(3100)).expect("a new list");
    assert_eq!(names(&list), ["a.2", "b.1"]);
    let epoch = list.epoch;
    registrar.renew(renew("a", 1, epoch), at(3200));
    assert_eq!((names(registrar.list()), registrar.list().epoch), (names(&list), epoch));
    registrar.leave(&member("a", 1).process, at(3300));
    assert_eq!(registrar.list().epoch, epoch, "only the process itself can leave");
    registrar.leave(&member("a", 2).process, at(3300));
    assert_eq!(names(registrar.list()), ["b.1"]);
}

#[test]
fn a_restarted_telemetry_lets_the_list_stand_and_then_publishes_a_higher_epoch() {
    let before = with_members(&["a", "b", "c"]).list().clone();
    let mut registrar = Registrar::new(2, at(10_000));
    assert_eq!(registrar.renew(renew("a", 1, before.epoch), at(10_500)), None);
    registrar.renew(renew("b", 1, before.epoch), at(11_000));
    registrar.renew(renew("a", 1, before.epoch), at(12_500));
    assert_eq!(registrar.tick(at(12_999)), None, "c still has time");
    let list = registrar.tick(at(13_000)).expect("c had its time");
    assert_eq!(names(&list), ["a.1", "b.1"]);
    assert!(list.epoch > before.epoch);
}

#[test]
fn a_term_that_was_given_before_is_raised_above_what_members_know() {
    let known = Epoch { term: 7, number: 3 };
    let mut registrar = Registrar::new(7, at(0));
    for millis in [100, 1000, 1900, 2800] {
        registrar.renew(renew("a", 1, known), at(millis));
    }
    let list = registrar.tick(at(3000)).expect("a list");
    assert!(list.epoch > known, "{list:?}");
    assert_eq!(list.epoch.term, 8);
}

#[test]
fn when_all_fall_silent_the_list_stands_until_they_had_time_again() {
    let mut registrar = with_members(&["a", "b"]);
    let before = registrar.list().clone();
    assert_eq!(registrar.tick(at(60_000)), None, "it is telemetry that is cut off");
    registrar.renew(renew("a", 1, before.epoch), at(61_000));
    assert_eq!(registrar.tick(at(63_900)), None);
    assert_eq!(registrar.list(), &before);
    registrar.renew(renew("a", 1, before.epoch), at(63_950));
    let list = registrar.tick(at(64_000)).expect("b did not come back");
    assert_eq!(names(&list), ["a.1"]);
}

#[test]
fn who_renewed_last_before_a_silence_does_not_become_the_list() {
    let mut registrar = with_members(&["a", "b", "c"]);
    let before = registrar.list().clone();
    for (name, millis) in [("a", 3000), ("b", 3450), ("c", 3900)] {
        registrar.renew(renew(name, 1, before.epoch), at(millis));
    }
    for millis in (3950..60_000).step_by(50) {
        assert_eq!(registrar.tick(at(millis)), None, "{millis} ms");
    }
    for (name, millis) in [("b", 60_000), ("c", 60_400), ("a", 60_900), ("b", 62_900)] {
        assert_eq!(registrar.renew(renew(name, 1, before.epoch), at(millis)), None);
    }
    assert_eq!(registrar.tick(at(63_000)), None, "all are back: nothing has changed");
    assert_eq!(registrar.list(), &before);
}

#[test]
fn a_member_renews_often_enough_to_lose_two_and_keeps_the_newest_list() {
    let mut membership = Membership::new(member("a", 1));
    let due: Vec<u64> =
        (0..3000).step_by(50).filter(|ms| membership.tick(at(*ms)).is_some()).collect();
    assert_eq!(due, [0, 900, 1800, 2700]);
    let list = |number| MemberList { epoch: Epoch { term: 1, number }, members: [].into() };
    assert!(membership.adopt(&list(5)));
    assert!(!membership.adopt(&list(5)) && !membership.adopt(&list(4)));
    assert_eq!(membership.list().epoch.number, 5);
    assert!(membership.adopt(&list(6)), "from a peer, with telemetry gone");
    assert_eq!(membership.order(Epoch { term: 1, number: 5 }), EpochOrder::Older(list(6)));
    assert_eq!(membership.order(Epoch { term: 1, number: 6 }), EpochOrder::Same);
    assert_eq!(membership.order(Epoch { term: 2, number: 0 }), EpochOrder::Newer);
}

#[test]
fn who_is_heard_first_after_a_silence_does_not_become_the_list() {
    let mut registrar = with_members(&["a", "b"]);
    let before = registrar.list().clone();
    // No tick saw the silence.
    registrar.renew(renew("a", 1, before.epoch), at(60_000));
    assert_eq!(registrar.list(), &before);
    // And it is silent again, when the others' time is over.
    assert_eq!(registrar.tick(at(63_000)), None);
    registrar.renew(renew("b", 1, before.epoch), at(64_000));
    registrar.renew(renew("a", 1, before.epoch), at(65_000));
    assert_eq!(registrar.tick(at(66_999)), None);
    assert_eq!(registrar.list(), &before);
}

proptest! {
    /// Against the definition: a list has exactly those that renewed within the last lease, as
    /// long as somebody did and everybody had the time to.
    #[test]
    fn the_list_is_who_renewed_within_the_lease(
        steps in prop::collection::vec((0_usize..4, 0_u64..400), 1..200),
    ) {
        let mut registrar = Registrar::new(1, at(0));
        let mut renewed: [Option<u64>; 4] = [None; 4];
        let (mut now, mut gathering) = (0, Some(3000));
        let mut epoch = Epoch::ZERO;
        for (who, wait) in steps {
            // Every tick in between, as a service does it.
            for step in (now..now + wait).step_by(50) {
                registrar.tick(at(step));
            }
            now += wait;
            registrar.tick(at(now));
            let live = |at: Option<u64>| at.is_some_and(|at| now < at + 3000);
            let all_silent = renewed.iter().any(Option::is_some) && !renewed.iter().any(|r| live(*r));
            if all_silent && gathering.is_none_or(|until| until <= now) {
                gathering = Some(now + 3000);
            }
            renewed[who] = Some(now);
            let name = ["a", "b", "c", "d"][who];
            registrar.renew(renew(name, 1, epoch), at(now));
            prop_assert!(registrar.list().epoch >= epoch);
            epoch = registrar.list().epoch;
            if gathering.is_none_or(|until| until <= now) {
                gathering = None;
                let live = |at: Option<u64>| at.is_some_and(|at| now < at + 3000);
                let expected: Vec<_> = (0..4).filter(|i| live(renewed[*i])).collect();
                prop_assert_eq!(registrar.list().members.len(), expected.len());
            }
        }
    }
}
