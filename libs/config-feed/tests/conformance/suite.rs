//! What every way to telemetry does.

use std::sync::Arc;

use config_feed::{ConfigFeed, FeedError};
use domain::{BackendState, Fleet, Incarnation};
use futures_util::StreamExt;
use replication::{Epoch, Member, Renew};

use crate::bed::{
    Follower, Telemetry, Way, backend, deleted, fleet, position, region, router, tenant, within,
};

const READY: BackendState = BackendState::Ready;

async fn everything_is_told_and_then_every_change(way: Way) {
    let telemetry = Telemetry::start(way, 1).await;
    let hub = &telemetry.hub;
    hub.replace(position("s", 2), [tenant("a", 1), tenant("b", 2)]);
    hub.fleet(&fleet(1, &[backend("x", BackendState::Joining, 0)]));
    let follower = Follower::start(telemetry.feed(), None);
    follower.tenants(&["a", "b"]).await;
    follower.backends(&[("x", BackendState::Joining)]).await;

    hub.document(tenant("c", 3));
    hub.document(deleted("a", 4));
    follower.tenants(&["b", "c"]).await;
    hub.fleet(&fleet(2, &[backend("x", READY, 0), backend("y", READY, 0)]));
    follower.backends(&[("x", READY), ("y", READY)]).await;
    hub.fleet(&fleet(3, &[backend("y", BackendState::Draining, 0)]));
    follower.backends(&[("y", BackendState::Draining)]).await;
    let documents = follower.feed.documents();
    assert_eq!(documents.borrow().position, position("s", 4));

    hub.replace(position("t", 1), [tenant("z", 1)]);
    follower.tenants(&["z"]).await;
    follower.stop().await;
    telemetry.stop().await;
}

async fn loads_are_told_with_their_age_and_nothing_else_of_the_backend(way: Way) {
    let telemetry = Telemetry::start(way, 1).await;
    let hub = &telemetry.hub;
    hub.fleet(&fleet(1, &[backend("x", READY, 1), backend("y", READY, 1)]));
    let follower = Follower::start(telemetry.feed(), None);
    follower.backends(&[("x", READY), ("y", READY)]).await;
    let kept = follower.feed.fleet().borrow().backends[1].clone();
    hub.fleet(&fleet(2, &[backend("x", READY, 7), kept.clone()]));
    let mut seen = follower.feed.fleet();
    let load = |f: &Arc<Fleet>| f.backends[0].ranks[0].load.expect("it has one");
    let after = within("its load", seen.wait_for(|f| load(f).running == 7)).await.clone();
    let age = lifecycle::monotonic().since(load(&after).at);
    assert!(age < std::time::Duration::from_secs(20), "{age:?}");
    assert_eq!(load(&after).prefix_cache, Some((9, 4)));
    assert_eq!(after.backends[0].models, kept.models);
    follower.stop().await;
    telemetry.stop().await;
}

async fn members_are_listed_once_all_had_the_time_to_say_so(way: Way) {
    let telemetry = Telemetry::start(way, 1).await;
    let followers = ["r1", "r2"].map(|id| Follower::start(telemetry.feed(), Some(router(id))));
    for follower in &followers {
        let mut members = follower.feed.members();
        let both = members.wait_for(|list| list.members.len() == 2);
        within("both on the list", both).await;
    }
    let [first, second] = followers;
    second.stop().await;
    let mut members = first.feed.members();
    let left = within("one on the list", members.wait_for(|l| l.members.len() == 1)).await.clone();
    assert_eq!(left.members[0], router("r1"));
    first.stop().await;
    telemetry.stop().await;
}

async fn of_two_processes_of_one_name_the_later_is_the_member_and_the_other_is_told(way: Way) {
    let telemetry = Telemetry::start(way, 1).await;
    let feed = telemetry.feed();
    let first = router("r");
    let mut later = first.clone();
    later.process.incarnation = Incarnation(first.process.incarnation.0 + 1);
    let renew = |member: &Member| Renew { member: member.clone(), known: Epoch::ZERO };
    within("a lease", feed.renew(renew(&first))).await;
    within("a lease", feed.renew(renew(&later))).await;
    for _ in 0..2 {
        let refused = feed.renew(renew(&first)).await;
        assert!(matches!(refused, Err(FeedError::NameTaken)), "{refused:?}");
        within("a lease", feed.renew(renew(&later))).await;
    }
    within("gone", feed.leave(later.process)).await;
    within("the name is free", feed.renew(renew(&first))).await;
    telemetry.stop().await;
}

async fn staleness_is_how_long_telemetry_was_not_heard(way: Way) {
    let telemetry = Telemetry::start(way, 1).await;
    telemetry.hub.replace(position("s", 1), [tenant("a", 1)]);
    let follower = Follower::start(telemetry.feed(), None);
    assert!(!follower.feed.staleness().heard_ever());
    follower.tenants(&["a"]).await;
    let heard = async {
        while !follower.feed.staleness().heard_ever() {
            tokio::task::yield_now().await;
        }
        Ok::<_, ()>(())
    };
    within("a heartbeat", heard).await;
    follower.stop().await;
    telemetry.stop().await;
}

async fn who_nobody_could_go_by_is_no_member(way: Way) {
    let telemetry = Telemetry::start(way, 1).await;
    let follower = Follower::start(telemetry.feed(), Some(router("r1")));
    let feed = telemetry.feed();
    let renew = |id: &str, address: &str, term| {
        let member = Member { address: address.into(), ..router(id) };
        feed.renew(Renew { member, known: Epoch { term, number: 0 } })
    };
    let refused = [
        renew("no name", "http://127.0.0.1:1", 0).await,
        renew("r2", "http://127.0.0.1", 0).await,
        renew("r3", "http://127.0.0.1:1", u64::MAX - 1).await,
    ];
    for (outcome, reason) in refused.into_iter().zip(["id", "address", "list"]) {
        let error = outcome.expect_err(reason);
        assert!(matches!(error, FeedError::Refused(_)), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let mut members = follower.feed.members();
    let list = within("a list", members.wait_for(|l| !l.members.is_empty())).await.clone();
    assert_eq!(&*list.members, [router("r1")]);
    assert_eq!(list.epoch, Epoch { term: 1, number: 1 });
    follower.stop().await;
    telemetry.stop().await;
}

macro_rules! suite {
    ($way:ident: $($test:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $test() {
            super::$test(super::Way::$way).await;
        })*
    };
}

mod local {
    suite!(Local:
        everything_is_told_and_then_every_change,
        loads_are_told_with_their_age_and_nothing_else_of_the_backend,
        members_are_listed_once_all_had_the_time_to_say_so,
        of_two_processes_of_one_name_the_later_is_the_member_and_the_other_is_told,
        staleness_is_how_long_telemetry_was_not_heard,
        who_nobody_could_go_by_is_no_member,
    );
}

mod grpc {
    suite!(Grpc:
        everything_is_told_and_then_every_change,
        loads_are_told_with_their_age_and_nothing_else_of_the_backend,
        members_are_listed_once_all_had_the_time_to_say_so,
        of_two_processes_of_one_name_the_later_is_the_member_and_the_other_is_told,
        staleness_is_how_long_telemetry_was_not_heard,
        who_nobody_could_go_by_is_no_member,
    );
}

#[tokio::test]
async fn what_was_heard_last_stands_while_telemetry_is_away() {
    let telemetry = Telemetry::start(Way::Grpc, 1).await;
    telemetry.hub.replace(position("s", 2), [tenant("a", 1), tenant("b", 2)]);
    telemetry.hub.fleet(&fleet(9, &[backend("x", READY, 0)]));
    let follower = Follower::start(telemetry.feed(), None);
    follower.tenants(&["a", "b"]).await;
    follower.backends(&[("x", READY)]).await;

    let telemetry = telemetry.restart(2).await;
    // It has its documents again and has not probed yet.
    telemetry.hub.replace(position("s", 3), [tenant("b", 2), tenant("c", 3)]);
    follower.tenants(&["b", "c"]).await;
    assert_eq!(follower.feed.fleet().borrow().backends.len(), 1, "the old fleet stands");
    telemetry.hub.fleet(&fleet(1, &[backend("x", READY, 0), backend("y", READY, 0)]));
    follower.backends(&[("x", READY), ("y", READY)]).await;
    follower.stop().await;
    telemetry.stop().await;
}

#[tokio::test]
async fn who_has_not_the_regions_secret_hears_nothing_and_is_no_member() {
    let telemetry = Telemetry::start(Way::Grpc, 1).await;
    telemetry.hub.replace(position("s", 1), [tenant("a", 1)]);
    let strangers = [
        ("no_region", telemetry.stranger()),
        ("other_region", telemetry.stranger().of_region(region("another"))),
    ];
    for (reason, stranger) in strangers {
        let heard = stranger.watch(position("", 0)).next().await.expect("an answer");
        let renewed = stranger.renew(Renew { member: router("r1"), known: Epoch::ZERO }).await;
        let left = stranger.leave(router("r1").process).await;
        for error in [heard.err(), renewed.err(), left.err()] {
            let error = error.expect("a refusal");
            assert!(matches!(error, FeedError::Refused(_)), "{error}");
            assert!(error.to_string().contains("region.secret"), "{error}");
        }
        assert_eq!(telemetry.refused(reason), 3);
    }
    assert_eq!(telemetry.hub.watchers(), 0);
    let follower = Follower::start(telemetry.feed(), Some(router("r2")));
    follower.tenants(&["a"]).await;
    let mut members = follower.feed.members();
    let list = within("a list", members.wait_for(|l| !l.members.is_empty())).await.clone();
    assert_eq!(&*list.members, [router("r2")]);
    follower.stop().await;
    telemetry.stop().await;
}
