//! Messages that were recorded when version 1 was made are read for ever.

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use domain::{LeaseId, Report};
use prost::Message;
use proto::control::v1::WatchEvent;
use proto::replication::v1::Envelope;
use proto::routing::v1::{EdgeFrame, RouterFrame, edge_message::Kind, router_message};
use proto::{Asked, Decided, Reported};
use replication::{MemberList, Process};

#[path = "samples/control.rs"]
mod control;
#[path = "samples/envelopes.rs"]
mod envelopes;
#[path = "samples/messages.rs"]
mod messages;

fn recorded(name: &str) -> Vec<u8> {
    recorded_of("routing", name)
}

fn recorded_of(package: &str, name: &str) -> Vec<u8> {
    let file = format!("tests/recorded/{package}-v1-{name}.bin");
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(&file))
        .unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// A field that no version has, as a newer peer may send.
const UNKNOWN_FIELD: [u8; 5] = [0xfa, 0x3e, 2, b'h', b'i'];

#[test]
fn every_recorded_message_is_read_as_it_was_meant() {
    for (name, meant) in messages::edge_frames() {
        let mut bytes = recorded(name);
        assert_eq!(EdgeFrame::decode(&bytes[..]).unwrap(), meant, "{name}");
        bytes.extend(UNKNOWN_FIELD);
        assert_eq!(EdgeFrame::decode(&bytes[..]).unwrap(), meant, "{name} from a newer peer");
    }
    for (name, meant) in messages::router_frames() {
        let mut bytes = recorded(name);
        assert_eq!(RouterFrame::decode(&bytes[..]).unwrap(), meant, "{name}");
        bytes.extend(UNKNOWN_FIELD);
        assert_eq!(RouterFrame::decode(&bytes[..]).unwrap(), meant, "{name} from a newer peer");
    }
}

#[test]
fn every_recorded_message_between_routers_is_read_as_it_was_meant() {
    for (name, meant) in envelopes::envelopes() {
        let mut bytes = recorded_of("replication", name);
        assert_eq!(Envelope::decode(&bytes[..]).unwrap(), meant, "{name}");
        bytes.extend(UNKNOWN_FIELD);
        assert_eq!(Envelope::decode(&bytes[..]).unwrap(), meant, "{name} from a newer peer");
    }
}

#[test]
fn every_recorded_message_of_telemetry_is_read_as_it_was_meant() {
    fn is_read<M: Message + Default + PartialEq + Debug>(name: &str, meant: &M) {
        let mut bytes = recorded_of("control", name);
        assert_eq!(M::decode(&bytes[..]).as_ref(), Ok(meant), "{name}");
        bytes.extend(UNKNOWN_FIELD);
        assert_eq!(M::decode(&bytes[..]).as_ref(), Ok(meant), "{name} from a newer peer");
    }
    is_read("renew", &control::renew());
    is_read("renewed", &control::renewed());
    is_read("leave", &control::leave());
    is_read("watch", &control::watch());
    for (name, frame) in control::frames() {
        is_read(name, &frame);
        // Events lie encoded in their frame, and are read with what a newer telemetry adds.
        let mut event = frame.events[0].to_vec();
        let meant = WatchEvent::decode(&event[..]).unwrap();
        assert!(meant.kind.is_some(), "{name}");
        event.extend(UNKNOWN_FIELD);
        assert_eq!(WatchEvent::decode(&event[..]), Ok(meant), "{name} from a newer telemetry");
    }
}

#[test]
fn every_recorded_message_of_an_edge_has_a_meaning() {
    let edge: Process = Process { id: "edge-1".into(), incarnation: domain::Incarnation(7) };
    for (name, _) in messages::edge_frames() {
        let frame = EdgeFrame::decode(&recorded(name)[..]).unwrap();
        match frame.messages.into_iter().next().unwrap().kind.unwrap() {
            Kind::Hello(hello) => {
                assert_eq!(Process::try_from(hello.edge.unwrap()).unwrap(), edge);
            }
            Kind::Route(route) => {
                let asked = Asked::try_from(route).unwrap();
                assert_eq!((asked.lease, asked.route.attempt), (LeaseId(9), 1));
                assert_eq!(asked.route.prompt.unwrap().keys[0].keys.len(), 3);
                assert_eq!(asked.route.hold.as_secs(), 5);
            }
            Kind::Report(report) => {
                let reported = Reported::try_from(report).unwrap();
                assert_eq!(reported.lease, LeaseId(9));
            }
            Kind::Audit(audit) => assert_eq!(audit.read(edge.clone()).unwrap().1.open, 1),
            Kind::Resume(resume) => {
                assert_eq!(resume.read(edge.clone()).unwrap().1.open[0].0, LeaseId(9));
            }
            Kind::Members(list) => {
                assert_eq!(MemberList::try_from(list).unwrap().routers().count(), 1);
            }
            Kind::WantMembers(_) => {}
        }
    }
}

#[test]
fn every_recorded_answer_of_a_router_has_a_meaning() {
    let decision = RouterFrame::decode(&recorded("decision")[..]).unwrap();
    let Some(router_message::Kind::Decision(decision)) = decision.messages[0].kind.clone() else {
        panic!("no decision: {decision:?}");
    };
    let decided = Decided::try_from(decision).unwrap();
    assert_eq!(decided.decision.evidence.reason, domain::DecisionReason::WarmPrefix);
    assert_eq!((decided.blocks, decided.decision.others.len()), (4, 1));
    let rejected = RouterFrame::decode(&recorded("rejected")[..]).unwrap();
    let Some(router_message::Kind::Rejected(rejected)) = rejected.messages[0].kind.clone() else {
        panic!("not rejected: {rejected:?}");
    };
    let rejected = domain::Rejected::from(rejected);
    assert_eq!(rejected.reason, domain::RejectReason::NoReadyBackend);
    assert_eq!(rejected.retry_after.unwrap().as_millis(), 1500);
}

#[test]
fn a_failure_of_a_class_that_is_not_known_speaks_against_nobody() {
    let frame = EdgeFrame::decode(&recorded("failed")[..]).unwrap();
    let Some(Kind::Report(mut report)) = frame.messages[0].kind.clone() else { panic!() };
    report.kind = Some(proto::routing::v1::report::Kind::Failed(proto::routing::v1::Failed {
        class: "of_a_newer_version".to_owned(),
        retry_after_millis: None,
    }));
    let reported = Reported::try_from(report).unwrap();
    let proto::What::Report { report: Report::Failed { class, .. }, .. } = reported.what else {
        panic!("not a failure");
    };
    assert!(!class.counts_against_backend());
}

#[test]
fn when_a_full_engine_wants_to_be_asked_again_is_read_where_it_is_told() {
    let told = ["failed", "full"].map(|name| {
        let frame = EdgeFrame::decode(&recorded(name)[..]).unwrap();
        let Some(Kind::Report(report)) = frame.messages[0].kind.clone() else { panic!() };
        match Reported::try_from(report).unwrap().what {
            proto::What::Report { report: Report::Failed { retry_after, .. }, .. } => retry_after,
            _ => panic!("not a failure"),
        }
    });
    assert_eq!(told, [None, Some(std::time::Duration::from_secs(2))]);
}
