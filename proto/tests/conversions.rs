//! What goes over the wire and back is the same; what is odd is refused with its name.

use std::time::Duration;

use domain::{
    BlockKey, BlockUnit, Candidate, Decision, DecisionReason, Evidence, EvidenceLevel,
    FailureClass, Incarnation, KeyList, LeaseId, Prompt, RankId, RejectReason, Rejected, Report,
    Route, ScoreParts, Usage,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use proto::common::v1 as common;
use proto::routing::v1;
use proto::{Asked, Decided, MAX_NAME_BYTES, Reported, What, WireError};
use replication::{
    Audit, Epoch, Lease, Member, MemberList, Phase, Process, Reign, Resume, Role, Stream,
};

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9:/._-]{1,24}"
}

fn process() -> impl Strategy<Value = Process> {
    (name(), any::<u64>()).prop_map(|(id, incarnation)| Process {
        id: id.as_str().into(),
        incarnation: Incarnation(incarnation),
    })
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (any::<u64>(), any::<u64>()).prop_map(|(term, number)| Epoch { term, number })
}

fn rank() -> impl Strategy<Value = RankId> {
    (name(), any::<u64>(), any::<u16>()).prop_map(|(backend, incarnation, rank)| RankId {
        backend: backend.as_str().into(),
        incarnation: Incarnation(incarnation),
        rank,
    })
}

fn lease() -> impl Strategy<Value = Lease> {
    (rank(), any::<u32>(), any::<bool>()).prop_map(|(rank, blocks, generating)| Lease {
        rank,
        blocks,
        phase: if generating { Phase::Generating } else { Phase::Waiting },
    })
}

fn key_list() -> impl Strategy<Value = KeyList> {
    let unit = prop_oneof![
        (1..5000_u32).prop_map(BlockUnit::Tokens),
        (1..5000_u32).prop_map(BlockUnit::Bytes),
    ];
    (unit, vec(any::<u64>(), 0..40))
        .prop_map(|(unit, keys)| KeyList { unit, keys: keys.into_iter().map(BlockKey).collect() })
}

fn candidate() -> impl Strategy<Value = Candidate> {
    (rank(), name(), any::<bool>()).prop_map(|(rank, url, pin_rank)| Candidate {
        rank,
        url: url.into(),
        pin_rank,
    })
}

prop_compose! {
    fn asked()(
        (pool, request, tenant, model) in (name(), name(), name(), name()),
        (lease, attempt, stream) in (any::<u64>(), any::<u32>(), any::<bool>()),
        prompt in option::of((any::<u32>(), any::<u32>(), vec(key_list(), 0..3))),
        (max_output_tokens, client_request) in (option::of(any::<u32>()), option::of(name())),
        excluded in vec(rank(), 0..4),
        hold in 0..100_000_u64,
    ) -> Asked {
        Asked {
            pool: pool.as_str().into(),
            lease: LeaseId(lease),
            route: Route {
                request: request.as_str().into(),
                client_request: client_request.as_deref().map(Into::into),
                attempt,
                tenant: tenant.as_str().into(),
                model: model.as_str().into(),
                prompt: prompt.map(|(tokens, text_bytes, keys)| Prompt { tokens, text_bytes, keys }),
                max_output_tokens,
                stream,
                excluded,
                hold: Duration::from_millis(hold),
                ranked: Vec::new(),
            },
        }
    }
}

prop_compose! {
    fn decided()(
        (epoch, owner, turn) in (epoch(), process(), any::<u64>()),
        (lease, blocks, matched, cached) in (any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>()),
        (chosen, others) in (candidate(), vec(candidate(), 0..4)),
        seconds in proptest::array::uniform7(0.0..1e6_f64),
        level in 0..EvidenceLevel::ALL.len(),
        reason in 0..DecisionReason::ALL.len(),
    ) -> Decided {
        Decided {
            reign: Reign { epoch, stream: Stream { turn, owner } },
            blocks,
            decision: Decision {
                lease: LeaseId(lease),
                chosen,
                others,
                evidence: Evidence {
                    matched_blocks: matched,
                    predicted_cached_tokens: cached,
                    predicted_ttft: Duration::from_millis(seconds[0] as u64),
                    parts: ScoreParts {
                        network_seconds: seconds[1],
                        queue_delay_seconds: seconds[2],
                        prefill_seconds: seconds[3],
                        eviction_cost_seconds: seconds[4],
                        others_delay_seconds: seconds[5],
                        hot_prefix_seconds: seconds[6],
                    },
                    level: EvidenceLevel::ALL[level],
                    reason: DecisionReason::ALL[reason],
                },
            },
        }
    }
}

fn report(lease: LeaseId) -> impl Strategy<Value = What> {
    let usage = option::of((any::<u64>(), any::<u64>(), option::of(any::<u64>())));
    prop_oneof![
        any::<u32>()
            .prop_map(move |blocks| What::Report { report: Report::FirstToken { lease }, blocks }),
        (any::<u32>(), any::<u32>()).prop_map(move |(generated, blocks)| What::Report {
            report: Report::Progress { lease, generated },
            blocks,
        }),
        (usage, vec(key_list(), 0..3)).prop_map(move |(usage, output_keys)| {
            let usage = usage.map(|(prompt_tokens, completion_tokens, cached_tokens)| Usage {
                prompt_tokens,
                completion_tokens,
                cached_tokens,
            });
            What::Report { report: Report::Finished { lease, usage, output_keys }, blocks: 0 }
        }),
        (0..FailureClass::ALL.len(), option::of(any::<u32>())).prop_map(move |(class, millis)| {
            let retry_after = millis.map(|millis| Duration::from_millis(millis.into()));
            let class = FailureClass::ALL[class];
            What::Report { report: Report::Failed { lease, class, retry_after }, blocks: 0 }
        }),
        Just(What::Report { report: Report::Cancelled { lease }, blocks: 0 }),
        self::lease().prop_map(What::Moved),
    ]
}

/// Through bytes.
fn sent<M: Message + Default>(message: &M) -> M {
    M::decode(&message.encode_to_vec()[..]).unwrap()
}

proptest! {
    #[test]
    fn routes_come_back(asked in asked()) {
        let back = Asked::try_from(sent(&v1::Route::from(&asked))).unwrap();
        prop_assert_eq!(format!("{back:?}"), format!("{asked:?}"));
    }

    #[test]
    fn decisions_come_back(decided in decided()) {
        let back = Decided::try_from(sent(&v1::Decision::from(&decided))).unwrap();
        prop_assert_eq!(format!("{back:?}"), format!("{decided:?}"));
    }

    #[test]
    fn reports_come_back(
        (pool, (lease, what)) in (name(), any::<u64>().prop_flat_map(|n| {
            (Just(LeaseId(n)), report(LeaseId(n)))
        })),
    ) {
        let reported = Reported { pool: pool.as_str().into(), lease, what };
        prop_assert_eq!(Reported::try_from(sent(&v1::Report::from(&reported))).unwrap(), reported);
    }

    #[test]
    fn rejections_come_back(reason in 0..RejectReason::ALL.len(), wait in option::of(any::<u32>())) {
        let retry_after = wait.map(|millis| Duration::from_millis(millis.into()));
        let rejected = Rejected { reason: RejectReason::ALL[reason], retry_after };
        let wire = sent(&v1::Rejected::new(LeaseId(3), &rejected));
        prop_assert_eq!((wire.lease, Rejected::from(wire)), (3, rejected));
    }

    #[test]
    fn audits_and_resumes_come_back(
        (edge, pool) in (process(), name()),
        (serial, from, upto) in (any::<u64>(), any::<u64>(), any::<u64>()),
        (open, digest) in (any::<u32>(), any::<u64>()),
        leases in vec((any::<u64>(), lease()), 0..20),
        pending in vec(any::<u64>(), 0..20),
    ) {
        let pool = pool.as_str().into();
        let pending: Vec<LeaseId> = pending.into_iter().map(LeaseId).collect();
        let audit = Audit {
            edge: edge.clone(), serial, upto: LeaseId(upto), open, digest, pending: pending.clone(),
        };
        let back = sent(&v1::Audit::new(&pool, &audit)).read(edge.clone()).unwrap();
        prop_assert_eq!(back, (pool.clone(), audit));
        let open = leases.into_iter().map(|(id, lease)| (LeaseId(id), lease)).collect();
        let (from, upto) = (LeaseId(from), LeaseId(upto));
        let resume = Resume { edge: edge.clone(), serial, from, upto, open, pending };
        let back = sent(&v1::Resume::new(&pool, &resume)).read(edge).unwrap();
        prop_assert_eq!(back, (pool, resume));
    }

    #[test]
    fn member_lists_come_back(
        epoch in epoch(),
        members in vec((process(), any::<bool>(), name()), 0..6),
    ) {
        let member = |(process, is_edge, address): (Process, bool, String)| Member {
            process,
            role: if is_edge { Role::Edge } else { Role::Router },
            address: address.into(),
        };
        let list = MemberList { epoch, members: members.into_iter().map(member).collect() };
        let back = MemberList::try_from(sent(&common::MemberList::from(&list))).unwrap();
        prop_assert_eq!(back, list);
    }

    #[test]
    fn foreign_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(route) = v1::Route::decode(&bytes[..]) {
            let _ = Asked::try_from(route);
        }
        if let Ok(report) = v1::Report::decode(&bytes[..]) {
            let _ = Reported::try_from(report);
        }
        if let Ok(decision) = v1::Decision::decode(&bytes[..]) {
            let _ = Decided::try_from(decision);
        }
    }
}

#[test]
fn what_is_missing_or_too_much_is_named() {
    assert_eq!(
        Decided::try_from(v1::Decision::default()).unwrap_err(),
        WireError::Missing("chosen")
    );
    let empty = v1::Report { pool: "m".to_owned(), lease: 1, kind: None };
    assert_eq!(Reported::try_from(empty).unwrap_err().to_string(), "`report.kind` is missing");
    let long = v1::Route { tenant: "t".repeat(MAX_NAME_BYTES + 1), ..v1::Route::default() };
    let error = Asked::try_from(long).unwrap_err().to_string();
    assert_eq!(error, "`tenant` has 1025 entries or bytes, 1024 are allowed");
    let rank = common::Rank { backend: "b".to_owned(), incarnation: 1, rank: 70_000 };
    let error = RankId::try_from(rank).unwrap_err().to_string();
    assert_eq!(error, "`rank` is 70000, which is not allowed");
    let unit = Some(common::key_list::Unit::Tokens(0));
    let error = KeyList::try_from(common::KeyList { unit, keys: vec![] }).unwrap_err().to_string();
    assert_eq!(error, "`keys.unit` is 0, which is not allowed");
    let nobody = common::Process::default();
    assert_eq!(Process::try_from(nobody).unwrap_err(), WireError::Missing("process.id"));
    let phase = common::Lease { rank: None, blocks: 0, phase: 0 };
    assert!(Lease::try_from(phase).unwrap_err().to_string().starts_with("`lease.phase` is 0"));
}
