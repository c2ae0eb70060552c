//! One message of every kind of the session protocol, as version 1 sent them.

use proto::common::v1 as common;
use proto::routing::v1::{
    Audit, AuditReply, Cancelled, Candidate, Decision, EdgeFrame, EdgeMessage, Evidence, Failed,
    Finished, FirstToken, Hello, Moved, NotOwner, OpenLease, Progress, Prompt, Queued, Refused,
    Rejected, Report, Resume, Route, RouteError, RouterFrame, RouterMessage, Usage, WantMembers,
    Welcome, edge_message, refused, report, router_message,
};

pub(crate) fn process(id: &str) -> common::Process {
    common::Process { id: id.to_owned(), incarnation: 7 }
}

pub(crate) fn epoch() -> common::Epoch {
    common::Epoch { term: 1_764_400_000, number: 12 }
}

pub(crate) fn reign() -> common::Reign {
    let stream = common::Stream { turn: 3, owner: Some(process("router-1")) };
    common::Reign { epoch: Some(epoch()), stream: Some(stream) }
}

pub(crate) fn rank(backend: &str) -> common::Rank {
    common::Rank { backend: backend.to_owned(), incarnation: 2, rank: 1 }
}

pub(crate) fn lease() -> common::Lease {
    let phase = common::Phase::Generating.into();
    common::Lease { rank: Some(rank("b0")), blocks: 40, phase }
}

pub(crate) fn keys() -> common::KeyList {
    let unit = Some(common::key_list::Unit::Tokens(16));
    common::KeyList { unit, keys: vec![1, 0xdead_beef_0000_0001, u64::MAX] }
}

pub(crate) fn members() -> common::MemberList {
    let member = |id: &str, role: common::Role, address: &str| common::Member {
        process: Some(process(id)),
        role: role.into(),
        address: address.to_owned(),
    };
    common::MemberList {
        epoch: Some(epoch()),
        members: vec![
            member("edge-1", common::Role::Edge, ""),
            member("router-1", common::Role::Router, "https://router-1:7001"),
        ],
    }
}

fn report(kind: report::Kind) -> edge_message::Kind {
    edge_message::Kind::Report(Report { pool: "m".to_owned(), lease: 9, kind: Some(kind) })
}

fn route() -> Route {
    Route {
        lease: 9,
        pool: "m".to_owned(),
        request: "req-1".to_owned(),
        attempt: 1,
        tenant: "t".to_owned(),
        model: "m:adapter".to_owned(),
        prompt: Some(Prompt { tokens: 53, text_bytes: 212, keys: vec![keys()] }),
        max_output_tokens: Some(256),
        stream: true,
        excluded: vec![rank("b1")],
        hold_millis: 5000,
        client_request: String::new(),
    }
}

fn decision() -> Decision {
    let candidate = |backend: &str| Candidate {
        rank: Some(rank(backend)),
        url: format!("http://{backend}:8000"),
        pin_rank: true,
    };
    Decision {
        lease: 9,
        reign: Some(reign()),
        chosen: Some(candidate("b0")),
        others: vec![candidate("b2")],
        evidence: Some(Evidence {
            matched_blocks: 3,
            predicted_cached_tokens: 48,
            predicted_ttft_seconds: 0.125,
            network_seconds: 0.001,
            queue_delay_seconds: 0.02,
            prefill_seconds: 0.104,
            eviction_cost_seconds: 0.003,
            others_delay_seconds: 0.5,
            hot_prefix_seconds: 0.0,
            level: "feedback".to_owned(),
            reason: "warm_prefix".to_owned(),
        }),
        blocks: 4,
    }
}

/// What edges send, each under its name.
pub(crate) fn edge_frames() -> Vec<(&'static str, EdgeFrame)> {
    let hello = Hello {
        version: 1,
        features: vec!["a".to_owned()],
        edge: Some(process("edge-1")),
        epoch: Some(epoch()),
        secret_fingerprint: vec![5; 32].into(),
        software: "0.1.0".to_owned(),
    };
    let usage = Usage { prompt_tokens: 53, completion_tokens: 20, cached_tokens: Some(48) };
    let audit =
        Audit { pool: "m".to_owned(), serial: 4, upto: 10, open: 1, digest: 77, pending: vec![8] };
    let resume = Resume {
        pool: "m".to_owned(),
        serial: 5,
        from: 0,
        upto: 10,
        open: vec![OpenLease { lease: 9, held: Some(lease()) }],
        pending: vec![8],
    };
    let finished = Finished { usage: Some(usage), output_keys: vec![keys()] };
    let named = Route { client_request: "client-1".to_owned(), ..route() };
    let failed = Failed { class: "back_pressure".to_owned(), retry_after_millis: None };
    let full = Failed { retry_after_millis: Some(2000), ..failed.clone() };
    let kinds = vec![
        ("hello", edge_message::Kind::Hello(hello)),
        ("route", edge_message::Kind::Route(route())),
        ("named_route", edge_message::Kind::Route(named)),
        ("first_token", report(report::Kind::FirstToken(FirstToken { blocks: 4 }))),
        ("progress", report(report::Kind::Progress(Progress { generated: 20, blocks: 5 }))),
        ("finished", report(report::Kind::Finished(finished))),
        ("failed", report(report::Kind::Failed(failed))),
        ("full", report(report::Kind::Failed(full))),
        ("cancelled", report(report::Kind::Cancelled(Cancelled {}))),
        ("moved", report(report::Kind::Moved(Moved { lease: Some(lease()) }))),
        ("audit", edge_message::Kind::Audit(audit)),
        ("resume", edge_message::Kind::Resume(resume)),
        ("members", edge_message::Kind::Members(members())),
        ("want_members", edge_message::Kind::WantMembers(WantMembers {})),
    ];
    let frame = |kind| EdgeFrame { messages: vec![EdgeMessage { kind: Some(kind) }] };
    kinds.into_iter().map(|(name, kind)| (name, frame(kind))).collect()
}

/// What routers send, each under its name.
pub(crate) fn router_frames() -> Vec<(&'static str, RouterFrame)> {
    let welcome = Welcome {
        version: 1,
        features: vec!["a".to_owned()],
        router: Some(process("router-1")),
        epoch: Some(epoch()),
        route_credit: 1024,
        max_message_bytes: 4 << 20,
        software: "0.1.0".to_owned(),
    };
    let refused = Refused {
        reason: refused::Reason::OtherRegion.into(),
        message: "another region's secret".to_owned(),
    };
    let rejected = Rejected {
        lease: 9,
        reason: "no_ready_backend".to_owned(),
        retry_after_millis: Some(1500),
    };
    let not_owner = NotOwner { pool: "m".to_owned(), lease: 9, owner: Some(process("router-2")) };
    let reply = AuditReply { pool: "m".to_owned(), serial: 4, agreed: true, reign: Some(reign()) };
    let error = RouteError { lease: 9, message: "`prompt.keys` is missing".to_owned() };
    let kinds = vec![
        ("welcome", router_message::Kind::Welcome(welcome)),
        ("refused", router_message::Kind::Refused(refused)),
        ("decision", router_message::Kind::Decision(decision())),
        ("rejected", router_message::Kind::Rejected(rejected)),
        ("queued", router_message::Kind::Queued(Queued { lease: 9 })),
        ("not_owner", router_message::Kind::NotOwner(not_owner)),
        ("audit_reply", router_message::Kind::AuditReply(reply)),
        ("router_members", router_message::Kind::Members(members())),
        ("router_want_members", router_message::Kind::WantMembers(WantMembers {})),
        ("route_error", router_message::Kind::RouteError(error)),
    ];
    let frame = |kind| RouterFrame { messages: vec![RouterMessage { kind: Some(kind) }] };
    kinds.into_iter().map(|(name, kind)| (name, frame(kind))).collect()
}
