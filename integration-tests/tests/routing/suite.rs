//! What every adapter of the routing port does.

use std::collections::HashSet;
use std::time::Duration;

use domain::{
    BackendState, DecisionReason, FailureClass, LeaseId, RejectReason, Report, Route, Usage,
};
use futures_util::{FutureExt, StreamExt};
use integration_tests::wait::PATIENCE;

use crate::kit::{MODEL, Rig, backend, fleet, ready, route};

fn finished(lease: LeaseId) -> Report {
    let usage = Usage { prompt_tokens: 325, completion_tokens: 20, cached_tokens: Some(0) };
    Report::Finished { lease, usage: Some(usage), output_keys: Vec::new() }
}

pub(crate) async fn a_decision_is_booked_until_its_closing_report(rig: &Rig) {
    let decision = rig.route(route(1)).await.unwrap();
    assert_eq!(rig.series.leases(), 1.0);
    let backend = decision.chosen.rank.backend.to_string();
    assert_eq!(rig.series.in_flight(&backend), 1.0);
    assert_eq!(decision.others.len(), 2);
    assert_eq!(*decision.chosen.url, *format!("http://{backend}:8000"));
    let lease = decision.lease;
    rig.client.report(Report::FirstToken { lease });
    rig.client.report(Report::Progress { lease, generated: 20 });
    rig.client.report(finished(lease));
    rig.series.reaches("the booking is released", |s| s.leases() == 0.0).await;
    assert_eq!(rig.series.in_flight(&backend), 0.0);
}

pub(crate) async fn every_way_of_ending_releases_the_booking(rig: &Rig) {
    for end in 0..3 {
        let lease = rig.route(route(end)).await.unwrap().lease;
        rig.client.report(match end {
            0 => finished(lease),
            1 => Report::Failed { lease, class: FailureClass::BackPressure, retry_after: None },
            _ => Report::Cancelled { lease },
        });
        rig.series.reaches("the booking is released", |s| s.leases() == 0.0).await;
    }
}

pub(crate) async fn a_prompt_goes_where_its_beginning_is_cached(rig: &Rig) {
    let first = rig.route(route(7)).await.unwrap();
    rig.client.report(Report::FirstToken { lease: first.lease });
    rig.client.report(finished(first.lease));
    rig.series.reaches("it is over", |s| s.leases() == 0.0).await;
    for _ in 0..5 {
        let next = rig.route(route(7)).await.unwrap();
        assert_eq!(next.chosen.rank, first.chosen.rank);
        assert_eq!(next.evidence.matched_blocks, 20);
        assert_eq!(next.evidence.reason, DecisionReason::WarmPrefix);
        rig.client.report(Report::FirstToken { lease: next.lease });
        rig.client.report(finished(next.lease));
        rig.series.reaches("it is over", |s| s.leases() == 0.0).await;
    }
}

pub(crate) async fn reports_of_unknown_leases_change_nothing(rig: &Rig) {
    let held = rig.route(route(1)).await.unwrap();
    let over = rig.route(route(2)).await.unwrap();
    rig.client.report(Report::Cancelled { lease: over.lease });
    for lease in [LeaseId(u64::MAX), LeaseId(123_456), over.lease] {
        rig.client.report(Report::FirstToken { lease });
        rig.client.report(Report::Cancelled { lease });
        rig.client.report(finished(lease));
    }
    rig.series.reaches("one is left", |s| s.leases() == 1.0).await;
    // Whatever was said before is heard before this.
    rig.client.report(Report::Cancelled { lease: held.lease });
    rig.series.reaches("none is left", |s| s.leases() == 0.0).await;
}

pub(crate) async fn excluded_ranks_are_not_chosen(rig: &Rig) {
    let first = rig.route(route(3)).await.unwrap();
    let mut excluded = vec![first.chosen.rank.clone()];
    for attempt in 1..3 {
        let next = Route { attempt, excluded: excluded.clone(), ..route(3) };
        let decision = rig.route(next).await.unwrap();
        assert!(!excluded.contains(&decision.chosen.rank));
        assert!(decision.others.iter().all(|other| !excluded.contains(&other.rank)));
        excluded.push(decision.chosen.rank);
    }
    let refused = rig.route(Route { attempt: 3, excluded, ..route(3) }).await.unwrap_err();
    assert_eq!(refused.reason, RejectReason::AllExcluded);
    assert_eq!(rig.series.leases(), 3.0);
}

pub(crate) async fn a_failed_attempt_counts_no_more_when_the_next_is_asked(rig: &Rig) {
    let first = rig.route(route(4)).await.unwrap();
    rig.client.report(Report::Failed {
        lease: first.lease,
        class: FailureClass::Connection,
        retry_after: None,
    });
    let again = Route {
        attempt: 1,
        excluded: vec![first.chosen.rank.clone()],
        ranked: first.others.clone(),
        ..route(4)
    };
    let second = rig.route(again).await.unwrap();
    assert_ne!(second.lease, first.lease);
    assert_ne!(second.chosen.rank, first.chosen.rank);
    rig.series.reaches("one is booked", |s| s.leases() == 1.0).await;
    assert_eq!(rig.series.in_flight(first.chosen.rank.backend.as_str()), 0.0);
    // A late word of the failed one changes nothing.
    rig.client.report(finished(first.lease));
    rig.client.report(finished(second.lease));
    rig.series.reaches("none is booked", |s| s.leases() == 0.0).await;
}

pub(crate) async fn a_model_that_nobody_has_is_told_from_one_that_is_not_ready(rig: &Rig) {
    let unknown = Route { model: "nobody's".into(), ..route(1) };
    assert_eq!(rig.route(unknown).await.unwrap_err().reason, RejectReason::UnknownModel);
    rig.set_down().await;
    let refused = rig.route(route(1)).await.unwrap_err();
    assert_eq!(refused.reason, RejectReason::NoReadyBackend);
}

pub(crate) async fn a_route_waits_for_a_backend_as_long_as_it_may(rig: &Rig) {
    rig.set_down().await;
    let held = Route { hold: PATIENCE, ..route(1) };
    let waiting = rig.client.route(held);
    tokio::pin!(waiting);
    let shortly = Route { hold: Duration::from_millis(50), ..route(1) };
    let refused = rig.route(shortly).await.unwrap_err();
    assert_eq!(refused.reason, RejectReason::NoReadyBackend);
    assert!(waiting.as_mut().now_or_never().is_none(), "it still waits");
    rig.set_fleet(ready(1)).await;
    let decision = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(decision.chosen.rank.backend.as_str(), "b0");
}

pub(crate) async fn a_route_that_nobody_waits_for_any_more_books_nothing(rig: &Rig) {
    rig.set_down().await;
    for _ in 0..3 {
        let held = Route { hold: PATIENCE, ..route(1) };
        let given_up = tokio::time::timeout(Duration::from_millis(30), rig.client.route(held));
        assert!(given_up.await.is_err(), "there is nothing to be had");
    }
    rig.set_fleet(ready(1)).await;
    let decision = rig.route(Route { hold: PATIENCE, ..route(2) }).await.unwrap();
    rig.series.reaches("one is booked", |s| s.leases() == 1.0).await;
    rig.client.report(Report::Cancelled { lease: decision.lease });
    rig.series.reaches("none is booked", |s| s.leases() == 0.0).await;
}

pub(crate) async fn the_fleet_is_watched(rig: &Rig) {
    assert_eq!(rig.client.fleet().backends.len(), 3);
    let mut states = rig.client.watch_fleet();
    for revision in 2..6 {
        let backends = (0..revision).map(|i| backend(&format!("b{i}"), BackendState::Ready));
        rig.fleet.send_replace(fleet(revision, backends.collect()));
    }
    loop {
        let state = tokio::time::timeout(PATIENCE, states.next()).await.unwrap().unwrap();
        if state.revision == 5 {
            assert_eq!(state.backends.len(), 5);
            break;
        }
    }
    assert_eq!(rig.client.fleet().revision, 5);
    assert!(rig.client.fleet().ready_for(&MODEL.into()).count() == 5);
}

pub(crate) async fn many_routes_at_once_are_all_answered(rig: &Rig) {
    let asked = (0..2500).map(|i| rig.client.route(route(i % 50)));
    let decisions = futures_util::future::join_all(asked).await;
    let leases: HashSet<LeaseId> = decisions.into_iter().map(|d| d.unwrap().lease).collect();
    assert_eq!(leases.len(), 2500);
    assert_eq!(rig.series.leases(), 2500.0);
    leases.into_iter().for_each(|lease| rig.client.report(finished(lease)));
    rig.series.reaches("all are released", |s| s.leases() == 0.0).await;
}
