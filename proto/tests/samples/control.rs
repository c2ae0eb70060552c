//! One message of every kind that telemetry, its members and its watchers send each other, as
//! version 1 sent them.

use proto::control::v1::{
    Backend, BackendLoad, Base, Cache, Document, FleetChange, FleetLoads, Heartbeat, LeaveRequest,
    Load, Prefills, RankLoad, RankState, RenewReply, RenewRequest, Restart, ServedModel, Synced,
    WatchEvent, WatchFrame, WatchRequest, watch_event::Kind,
};

use crate::messages::{epoch, members, process};

pub(crate) fn renew() -> RenewRequest {
    let member = members().members.into_iter().next();
    RenewRequest { member, known: Some(epoch()) }
}

pub(crate) fn renewed() -> RenewReply {
    RenewReply { list: Some(members()) }
}

pub(crate) fn leave() -> LeaveRequest {
    LeaveRequest { process: Some(process("edge-1")) }
}

pub(crate) fn watch() -> WatchRequest {
    WatchRequest { process: Some(process("edge-1")), store: store(), revision: 41 }
}

/// A frame of one event of each kind, each under its name.
pub(crate) fn frames() -> Vec<(&'static str, WatchFrame)> {
    let document = |json: Option<&str>| Document {
        kind: "tenants".to_owned(),
        id: "team-a".to_owned(),
        revision: 40,
        json: json.map(|json| json.as_bytes().to_vec().into()),
        schema_major: 1,
        schema_minor: 2,
    };
    let fleet = FleetChange {
        start: 1_764_400_000_000,
        revision: 7,
        whole: false,
        changed: vec![backend()],
        removed: vec!["b9".to_owned()],
        more: true,
    };
    let loads = vec![BackendLoad { id: "b0".to_owned(), ranks: vec![rank_load()] }];
    let heartbeat = Heartbeat {
        store: store(),
        revision: 41,
        start: 1_764_400_000_000,
        fleet_revision: 7,
        epoch: Some(epoch()),
    };
    let events = [
        ("restart", Kind::Restart(Restart { store: store() })),
        ("document", Kind::Document(document(Some(r#"{"requests_per_minute":60}"#)))),
        ("deletion", Kind::Document(document(None))),
        ("synced", Kind::Synced(Synced { store: store(), revision: 41 })),
        ("fleet", Kind::Fleet(fleet)),
        ("watched_members", Kind::Members(members())),
        ("watch_heartbeat", Kind::Heartbeat(heartbeat)),
        ("loads", Kind::Loads(FleetLoads { start: 1_764_400_000_000, revision: 8, loads })),
    ];
    let framed = events.map(|(name, kind)| {
        let event = prost::Message::encode_to_vec(&WatchEvent { kind: Some(kind) });
        (name, WatchFrame { events: vec![event.into()] })
    });
    framed.into()
}

fn store() -> String {
    "2f1c".to_owned()
}

fn backend() -> Backend {
    let model = ServedModel {
        id: "m".to_owned(),
        max_model_len: Some(32_768),
        listing: "{}".to_owned(),
        parity: Some(true),
        base: Some(Base { model: "base".to_owned(), adapter: true }),
    };
    let rank = RankState {
        rank: 1,
        cache: Some(Cache { block_size: 16, usable_blocks: 5_000, prefix_caching: true }),
        slots: Some(4),
        load: rank_load().load,
    };
    Backend {
        id: "b0".to_owned(),
        incarnation: 2,
        url: "http://10.0.0.7:8000".to_owned(),
        engine: "vllm".to_owned(),
        state: "draining".to_owned(),
        models: vec![model],
        ranks: vec![rank],
        network_seconds: 0.001,
        credential: Some("shared".to_owned()),
    }
}

fn rank_load() -> RankLoad {
    let load = Load {
        age_millis: 120,
        running: 3,
        waiting: 2,
        kv_usage: Some(0.5),
        preemptions: Some(1),
        prefix_queries: Some(900),
        prefix_hits: Some(600),
        prefills: Some(Prefills { requests: 30, tokens: 4_000, seconds: 1.5 }),
    };
    RankLoad { rank: 1, load: Some(load) }
}
