//! Sessions that are cut, refused, misused, and that lose their routers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bus::Delivery;
use domain::{
    BlockKey, BlockUnit, Decision, DecisionReason, FailureClass, KeyList, LeaseId, Prompt,
    RejectReason, Report, Route, RoutingClient,
};
use events::DecisionEvent;
use futures_util::{StreamExt, stream};
use integration_tests::wait::{PATIENCE, eventually};
use integration_tests::wire::Wire;
use lifecycle::Lifecycle;
use proto::Asked;
use proto::routing::v1::edge_message::Kind as FromEdge;
use proto::routing::v1::router_message::Kind;
use proto::routing::v1::routing_client::RoutingClient as Wires;
use proto::routing::v1::{EdgeFrame, EdgeMessage, Hello, RouterFrame, refused};
use session::RawConfig;
use settings::HumanDuration;
use tonic::Streaming;

use crate::kit::{
    EdgeNode, MODEL, Region, RouterNode, fingerprint, list, process, region_name, route,
};

/// An edge that soon decides by itself.
fn impatient(region: &Region, name: &str) -> EdgeNode {
    let answer_deadline = HumanDuration::from_millis(100);
    let raw = RawConfig { answer_deadline, ..RawConfig::default() };
    EdgeNode::with(
        raw,
        process(name, 1),
        "secret",
        region.fleet.subscribe(),
        region.members.subscribe(),
    )
}

fn finish(edge: &EdgeNode, decision: &Decision) {
    let lease = decision.lease;
    edge.client.report(Report::FirstToken { lease });
    edge.client.report(Report::Progress { lease, generated: 40 });
    edge.client.report(Report::Finished { lease, usage: None, output_keys: Vec::new() });
}

/// Requests that were answered, and not.
#[derive(Default)]
struct Load {
    answered: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    /// One request after the other until told to stop.
    async fn run(self: Arc<Self>, edge: Arc<EdgeNode>, document: u64) {
        while !self.stop.load(Ordering::Relaxed) {
            match edge.route(route(document)).await {
                Ok(decision) => {
                    finish(&edge, &decision);
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_cut_a_hundred_times_loses_no_request_and_no_booking() {
    const HELD: usize = 40;
    let region = Region::new(1);
    let router = &region.routers[0];
    let wire = Wire::to(&router.address).await;
    region.members.send_replace(list(2, vec![router.member(&wire.address)]));
    let edge = Arc::new(region.edge("edge"));
    edge.connected(2).await;
    let mut held = Vec::new();
    for document in 0..HELD {
        held.push(edge.route(route(document as u64)).await.unwrap());
    }
    let (load, lifecycle) = (Arc::new(Load::default()), Lifecycle::new());
    let tasks: Vec<_> = (0..8)
        .map(|i| lifecycle.spawn("load", Arc::clone(&load).run(Arc::clone(&edge), 100 + i)))
        .collect();
    for _ in 0..100 {
        wire.cut();
        let goal = load.answered.load(Ordering::Relaxed) + 20;
        eventually(PATIENCE, "requests go on", || {
            let booked = router.series.leases();
            assert!(booked >= HELD as f64, "{booked} leases are booked, {HELD} are held");
            std::future::ready(load.answered.load(Ordering::Relaxed) >= goal)
        })
        .await;
    }
    load.stop.store(true, Ordering::Relaxed);
    let ended = || std::future::ready(tasks.iter().all(|task| task.is_finished()));
    eventually(PATIENCE, "the load ends", ended).await;
    router.series.reaches("what is held is booked", |s| s.leases() == HELD as f64).await;
    assert_eq!(load.failed.load(Ordering::Relaxed), 0, "no request fails");
    held.iter().for_each(|decision| finish(&edge, decision));
    router.series.reaches("nothing is booked", |s| s.leases() == 0.0).await;
    assert!(edge.series.sum("warmpath_session_connects_total", &[]) >= 100.0);
}

fn long_prompt(bytes: usize) -> Prompt {
    let keys = (0..bytes as u64 / 8).map(BlockKey).collect();
    let keys = vec![KeyList { unit: BlockUnit::Tokens(16), keys }];
    Prompt { tokens: bytes as u32 * 2, text_bytes: 1, keys }
}

#[tokio::test]
async fn a_route_of_ten_megabytes_fails_alone() {
    let region = Region::new(1);
    let edge = region.edge("edge");
    edge.connected(2).await;
    let held = edge.route(route(1)).await.unwrap();
    let huge = Route { prompt: Some(long_prompt(10 << 20)), ..route(2) };
    let (huge, fine) = tokio::join!(edge.route(huge), edge.route(route(3)));
    assert_eq!(huge.unwrap_err().reason, RejectReason::TooLarge);
    finish(&edge, &fine.unwrap());
    finish(&edge, &held);
    region.routers[0].series.reaches("nothing is booked", |s| s.leases() == 0.0).await;
    assert_eq!(edge.series.sum("warmpath_session_connects_total", &[]), 2.0, "no stream broke");
}

/// A session by hand.
async fn say(region: &Region, messages: Vec<FromEdge>) -> Streaming<RouterFrame> {
    let client = rpc::ClientConfig::new(rpc::RawClientConfig::default()).unwrap();
    let channel = client.channel(&region.routers[0].address).unwrap();
    let message = |kind| EdgeMessage { kind: Some(kind) };
    let frame = EdgeFrame { messages: messages.into_iter().map(message).collect() };
    let frames = stream::once(std::future::ready(frame));
    let open = futures_util::StreamExt::chain(frames, stream::pending());
    let mut wires = Wires::new(channel).max_encoding_message_size(64 << 20);
    wires.session(open).await.unwrap().into_inner()
}

fn hello(secret: &str) -> FromEdge {
    FromEdge::Hello(Hello {
        version: 1,
        edge: Some((&process("by-hand", 1)).into()),
        secret_fingerprint: fingerprint(secret).as_bytes().to_vec().into(),
        ..Hello::default()
    })
}

fn asked(lease: u64, route: Route) -> FromEdge {
    FromEdge::Route((&Asked { pool: MODEL.into(), lease: LeaseId(lease), route }).into())
}

async fn kinds(session: &mut Streaming<RouterFrame>, n: usize) -> Vec<Kind> {
    let mut kinds = Vec::new();
    while kinds.len() < n {
        let frame = tokio::time::timeout(PATIENCE, session.message()).await.unwrap().unwrap();
        let Some(frame) = frame else { return kinds };
        kinds.extend(frame.messages.into_iter().filter_map(|message| message.kind));
    }
    kinds
}

#[tokio::test]
async fn a_router_refuses_a_message_that_is_too_large_and_answers_the_next() {
    let region = Region::new(1);
    let huge = Route { prompt: Some(long_prompt(10 << 20)), ..route(2) };
    let nameless = Route { tenant: "t".repeat(5000).as_str().into(), ..route(2) };
    let messages = vec![hello("secret"), asked(1, huge), asked(2, nameless), asked(3, route(1))];
    let mut session = say(&region, messages).await;
    let answers = kinds(&mut session, 4).await;
    let [Kind::Welcome(welcome), Kind::RouteError(huge), Kind::RouteError(nameless), last] =
        &answers[..]
    else {
        panic!("{answers:?}");
    };
    assert_eq!(welcome.max_message_bytes as usize, rpc::MAX_MESSAGE_BYTES);
    assert!(huge.lease == 1 && huge.message.contains("bytes"), "{huge:?}");
    assert!(nameless.lease == 2 && nameless.message.contains("tenant"), "{nameless:?}");
    assert!(matches!(last, Kind::Decision(decision) if decision.lease == 3), "{last:?}");
}

#[tokio::test]
async fn a_route_asked_twice_is_booked_once_and_answered_the_same() {
    let region = Region::new(1);
    let once = route(1);
    let messages = vec![hello("secret"), asked(1, once.clone()), asked(1, once)];
    let mut session = say(&region, messages).await;
    let answers = kinds(&mut session, 3).await;
    let [_, Kind::Decision(first), Kind::Decision(second)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(first, second);
    assert_eq!(region.routers[0].series.leases(), 1.0);
}

#[tokio::test]
async fn strangers_are_refused_and_told_why() {
    let region = Region::new(1);
    for (messages, reason, word) in [
        (vec![hello("another")], refused::Reason::OtherRegion, "region.secret"),
        (vec![asked(1, route(1))], refused::Reason::Protocol, "Hello"),
        (vec![FromEdge::Hello(Hello::default())], refused::Reason::Version, "version"),
    ] {
        let mut session = say(&region, messages).await;
        let answers = kinds(&mut session, 2).await;
        let [Kind::Refused(refused)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(refused.reason(), reason);
        assert!(refused.message.contains(word), "{refused:?}");
    }
    let members = region.members.subscribe();
    let edge = EdgeNode::start("edge", "another", region.fleet.subscribe(), members);
    let refused = |s: &crate::kit::Series| {
        s.sum("warmpath_session_connect_failures_total", &[("reason", "refused")]) >= 1.0
    };
    edge.series.reaches("it is refused", refused).await;
    assert_eq!(edge.series.sum("warmpath_session_streams", &[]), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pools_of_a_dead_router_go_to_the_next() {
    let mut region = Region::new(2);
    let owner = region.owner();
    let edge = impatient(&region, "edge");
    edge.connected(4).await;
    let mut held = Vec::new();
    for document in 0..10 {
        held.push(edge.route(route(document)).await.unwrap());
    }
    assert_eq!(region.routers[owner].series.leases(), 10.0);
    region.routers[owner].kill();
    // No list says so; the edge finds out, and nothing fails meanwhile.
    let next = &region.routers[1 - owner];
    let mut reason = DecisionReason::EdgeAlone;
    while reason == DecisionReason::EdgeAlone {
        let decision = edge.route(route(50)).await.expect("no request fails");
        reason = decision.evidence.reason;
        held.push(decision);
    }
    let open = held.len() as f64;
    next.series.reaches("the next router has every lease", |s| s.leases() == open).await;
    held.iter().for_each(|decision| finish(&edge, decision));
    next.series.reaches("nothing is booked", |s| s.leases() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_told_of_every_decision_once() {
    let region = Region::new(1);
    let bus = region.bus.clone().unwrap();
    let room = bus::Room { messages: 64, bytes: 1 << 20 };
    let pattern = bus::Pattern::new(region_name().decisions(MODEL).as_str()).unwrap();
    let mut heard = bus.subscribe(pattern, room).await;
    let edge = region.edge("edge");
    edge.connected(2).await;
    for document in 0..3 {
        let request = route(document);
        let decision = edge.route(request.clone()).await.unwrap();
        finish(&edge, &decision);
        let Some(Delivery::Message(message)) = heard.next().await else { panic!("it is told") };
        let event: DecisionEvent = events::decode(&message.payload).unwrap();
        assert_eq!(event.request, request.request.as_str());
        assert_eq!(event.backend, decision.chosen.rank.backend.as_str());
        assert_eq!((event.prompt_tokens, event.stands_for), (Some(325), 1));
    }
}

/// How many of these documents are taken to be cached where they are sent.
async fn warm(edge: &EdgeNode, documents: std::ops::Range<u64>) -> usize {
    let mut warm = 0;
    for document in documents {
        let decision = edge.route(route(document)).await.expect("no request fails");
        edge.client.report(Report::FirstToken { lease: decision.lease });
        finish(edge, &decision);
        warm += usize::from(decision.evidence.matched_blocks == 20);
    }
    warm
}

async fn the_next_router_knows_what_is_cached(mut region: Region) {
    let owner = region.owner();
    let edge = impatient(&region, "edge");
    edge.connected(4).await;
    assert_eq!(warm(&edge, 0..30).await, 0);
    let next = region.routers[1 - owner].series.clone();
    next.reaches("a copy is in step", |s| s.sum("warmpath_router_pools_followed", &[]) == 1.0)
        .await;
    region.routers[owner].kill();
    let mut alone = true;
    while alone {
        let decision = edge.route(route(100)).await.expect("no request fails");
        finish(&edge, &decision);
        alone = decision.evidence.reason == DecisionReason::EdgeAlone;
    }
    assert_eq!(next.sum("warmpath_router_takeovers_total", &[("state", "warm")]), 1.0);
    // The last changes may have been on their way.
    let warm = warm(&edge, 0..30).await;
    assert!(warm >= 25, "{warm} of 30");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_router_has_a_copy_of_the_map() {
    the_next_router_knows_what_is_cached(Region::new(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bus_the_next_router_has_a_copy_all_the_same() {
    the_next_router_knows_what_is_cached(Region::with_bus(2, None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_comes_back_gets_its_pools_and_their_leases() {
    let mut region = Region::new(2);
    let owner = region.owner();
    let edge = impatient(&region, "edge");
    edge.connected(4).await;
    region.routers[owner].kill();
    let mut held = vec![edge.route(route(1)).await.unwrap()];
    while held.last().unwrap().evidence.reason == DecisionReason::EdgeAlone {
        held.push(edge.route(route(1)).await.unwrap());
    }
    let name = region.routers[owner].process.id.as_str().to_owned();
    let back = RouterNode::start(
        process(&name, 2),
        crate::kit::any_port(),
        "secret",
        region.fleet.subscribe(),
        region.members.subscribe(),
        region.bus.clone(),
    );
    let other = &region.routers[1 - owner];
    let members = vec![back.member(&back.address), other.member(&other.address)];
    region.members.send_replace(list(2, members));
    let open = held.len() as f64;
    back.series.reaches("it has every lease", |s| s.leases() == open).await;
    other.series.reaches("the other one lets go", |s| s.leases() == 0.0).await;
    let decision = edge.route(route(1)).await.unwrap();
    assert_ne!(decision.evidence.reason, DecisionReason::EdgeAlone);
    held.push(decision);
    held.iter().for_each(|decision| finish(&edge, decision));
    back.series.reaches("nothing is booked", |s| s.leases() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_router_the_edge_decides_and_the_next_router_agrees_with_it() {
    let mut region = Region::new(1);
    let edge = impatient(&region, "edge");
    edge.connected(2).await;
    let known = edge.route(route(1)).await.unwrap();
    finish(&edge, &known);
    region.routers[0].kill();

    // The prefix goes where it went; what is new goes where least is open.
    let mut held = vec![edge.route(route(1)).await.unwrap()];
    assert_eq!(held[0].chosen.rank, known.chosen.rank);
    assert_eq!(held[0].evidence.reason, DecisionReason::EdgeAlone);
    assert_eq!(held[0].evidence.matched_blocks, 16, "the deepest remembered depth");
    for document in 10..12 {
        held.push(edge.route(route(document)).await.unwrap());
    }
    let mut backends: Vec<_> = held.iter().map(|d| d.chosen.rank.backend.to_string()).collect();
    backends.sort_unstable();
    assert_eq!(backends, ["b0", "b1", "b2"]);
    assert_eq!(edge.series.sum("warmpath_session_alone", &[]), 1.0);
    assert_eq!(
        edge.series.sum("warmpath_session_decided_alone_total", &[("attempt", "first")]),
        3.0
    );

    let (fleet, members) = (region.fleet.subscribe(), region.members.subscribe());
    let me = process("router-0", 2);
    let back = RouterNode::start(me, crate::kit::any_port(), "secret", fleet, members, None);
    region.members.send_replace(list(2, vec![back.member(&back.address)]));
    back.series.reaches("it is told of every lease", |s| s.leases() == 3.0).await;
    for backend in backends {
        assert_eq!(back.series.in_flight(&backend), 1.0, "{backend}");
    }
    let decision = edge.route(route(20)).await.unwrap();
    assert_ne!(decision.evidence.reason, DecisionReason::EdgeAlone);
    held.push(decision);
    // Once none went unanswered for a while.
    let alone = || edge.series.sum("warmpath_session_alone", &[]) == 1.0;
    let again = async {
        while alone() {
            finish(&edge, &edge.route(route(21)).await.unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("it is not alone any more");
    held.iter().for_each(|decision| finish(&edge, decision));
    back.series.reaches("nothing is booked", |s| s.leases() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_router_a_failed_attempt_goes_to_the_next_that_was_ranked() {
    let mut region = Region::new(1);
    let edge = impatient(&region, "edge");
    edge.connected(2).await;
    let first = edge.route(route(1)).await.unwrap();
    region.routers[0].kill();
    edge.client.report(Report::Failed {
        lease: first.lease,
        class: FailureClass::Connection,
        retry_after: None,
    });
    let mut excluded = vec![first.chosen.rank.clone()];
    for (attempt, expected) in first.others.iter().enumerate() {
        let again = Route {
            attempt: attempt as u32 + 1,
            excluded: excluded.clone(),
            ranked: first.others.clone(),
            ..route(1)
        };
        let decision = edge.route(again).await.unwrap();
        assert_eq!(decision.chosen, *expected);
        let failed = Report::Failed {
            lease: decision.lease,
            class: FailureClass::ServerError,
            retry_after: None,
        };
        edge.client.report(failed);
        excluded.push(decision.chosen.rank);
    }
    let last = Route { attempt: 3, excluded, ranked: first.others, ..route(1) };
    assert_eq!(edge.route(last).await.unwrap_err().reason, RejectReason::AllExcluded);
    assert_eq!(
        edge.series.sum("warmpath_session_decided_alone_total", &[("attempt", "again")]),
        2.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_does_not_answer_is_not_waited_for() {
    let region = Region::new(1);
    let wire = Wire::to(&region.routers[0].address).await;
    region.members.send_replace(list(2, vec![region.routers[0].member(&wire.address)]));
    let edge = impatient(&region, "edge");
    edge.connected(2).await;
    finish(&edge, &edge.route(route(1)).await.unwrap());
    // What is said goes nowhere, and nobody says so.
    wire.stall();
    let decision = edge.route(route(1)).await.unwrap();
    assert_eq!(decision.evidence.reason, DecisionReason::EdgeAlone);
    wire.resume();
    // Its late answer is corrected.
    let books_it =
        |s: &crate::kit::Series| s.in_flight(decision.chosen.rank.backend.as_str()) == 1.0;
    region.routers[0].series.reaches("it is told", books_it).await;
    region.routers[0].series.reaches("it is booked once", |s| s.leases() == 1.0).await;
    finish(&edge, &decision);
    region.routers[0].series.reaches("nothing is booked", |s| s.leases() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_an_edge_that_is_gone_end() {
    let region = Region::new(1);
    let edge = region.edge("edge");
    edge.connected(2).await;
    for document in 0..5 {
        edge.route(route(document)).await.unwrap();
    }
    drop(edge);
    // A later process of the same edge says that nothing is held any more.
    let again = region.edge_again("edge", 2);
    again.connected(2).await;
    let held = again.route(route(9)).await.unwrap();
    region.routers[0].series.reaches("only its own is left", |s| s.leases() == 1.0).await;
    finish(&again, &held);
    let limit = replication::ORPHAN_TIME + Duration::from_secs(30);
    let gone = || std::future::ready(region.routers[0].series.leases() == 0.0);
    eventually(limit, "nothing is booked", gone).await;
}
