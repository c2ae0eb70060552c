//! One message of every kind that routers send each other, as version 1 sent them.

use proto::common::v1 as common;
use proto::replication::v1::{
    Blocks, Booked, Cached, Capacity, Chunk, Claim, Closed, Delta, Deposed, Envelope, Fetch,
    Heartbeat, Learned, Left, PastRing, PoolChange, PoolChanges, PoolMessage, Position, Progressed,
    RankChecksum, Release, Repair, Run, Seated, Started, StartedAs, Unseated, cached, pool_change,
    pool_message,
};

use crate::messages::{epoch, keys, lease, members, process, rank, reign};

fn stream() -> Option<common::Stream> {
    reign().stream
}

fn position() -> Option<Position> {
    Some(Position { stream: stream(), seq: 41 })
}

fn lease_key() -> Option<common::LeaseKey> {
    Some(common::LeaseKey { edge: Some(process("edge-1")), lease: 9 })
}

/// The bytes of a `warmpath.control.v1.Backend`.
fn backend() -> bytes::Bytes {
    use proto::control::v1::{Backend, ServedModel};
    let model = ServedModel {
        id: "m".to_owned(),
        max_model_len: Some(32_768),
        listing: "{}".to_owned(),
        parity: Some(true),
        base: None,
    };
    let backend = Backend {
        id: "b0".to_owned(),
        incarnation: 2,
        url: "http://10.0.0.7:8000".to_owned(),
        engine: "vllm".to_owned(),
        state: "ready".to_owned(),
        models: vec![model],
        ranks: Vec::new(),
        network_seconds: 0.001,
        credential: None,
    };
    prost::Message::encode_to_vec(&backend).into()
}

/// Changes of a pool, each under its name.
fn changes() -> Vec<(&'static str, pool_change::Kind)> {
    let started = StartedAs { cached_blocks: 2, answer_blocks: 1, evicted_blocks: 4 };
    let blocks = Blocks {
        keys: Some(keys()),
        extra_blocks: 1,
        generated_blocks: 2,
        counts_on_answer: true,
        started: Some(started),
        holds_copy: true,
    };
    let booked = Booked {
        lease: lease_key(),
        held: Some(lease()),
        blocks: Some(blocks),
        prompt_tokens: 53,
        text_bytes: 212,
        uncached_tokens: 21,
        cached_tokens: 32,
        predicted_ttft_seconds: 0.25,
        stream: true,
        bytes_per_token: 3.5,
        first_token: true,
        generated: 20,
        adopted: false,
        grain_tokens: 16,
        homeless: false,
    };
    let progressed = Progressed {
        lease: lease_key(),
        blocks: 6,
        phase: common::Phase::Generating.into(),
        first_token: true,
        generated: 20,
        output_blocks: 2,
    };
    let left = Left {
        output_blocks: 2,
        cached_blocks: 1,
        answer_keys: vec![17],
        keep_blocks: Some(1),
        emptied: true,
        capacity_blocks: Some(599),
    };
    let unit = common::KeyList { keys: Vec::new(), ..keys() };
    let item = |item| Cached { rank: Some(rank("b0")), keys: Some(keys()), item: Some(item) };
    let learned = Learned {
        rank: Some(rank("b0")),
        latency_seconds: 0.008,
        fixed_seconds: 0.002,
        per_token_seconds: 5e-5,
        per_pair_seconds: 1e-9,
        decode_step_seconds: 0.003,
        decode_running_seconds: 1e-4,
        samples: 64,
    };
    let run = cached::Item::Run(Run { blocks: 2, asks: 1.5 });
    let capacity = Capacity { rank: Some(rank("b0")), unit: Some(unit), blocks: 599 };
    vec![
        ("seated", pool_change::Kind::Seated(Seated { backend: backend(), model: "m".to_owned() })),
        ("unseated", pool_change::Kind::Unseated(Unseated { backend: "b0".to_owned() })),
        ("booked", pool_change::Kind::Booked(booked)),
        ("started", pool_change::Kind::Started(Started { lease: lease_key() })),
        ("progressed", pool_change::Kind::Progressed(progressed)),
        ("closed", pool_change::Kind::Closed(Closed { lease: lease_key(), left: Some(left) })),
        ("capacity", pool_change::Kind::Capacity(capacity)),
        ("cached_run", pool_change::Kind::Cached(item(run))),
        ("cached_copy", pool_change::Kind::Cached(item(cached::Item::Copy(true)))),
        ("cached_output", pool_change::Kind::Cached(item(cached::Item::OutputBlocks(3)))),
        ("learned", pool_change::Kind::Learned(learned)),
    ]
}

/// What routers send each other, each under its name.
pub(crate) fn envelopes() -> Vec<(&'static str, Envelope)> {
    let change = |kind| PoolChange { kind: Some(kind) };
    let all = changes().into_iter().map(|(_, kind)| change(kind)).collect();
    let checksums = vec![RankChecksum { rank: Some(rank("b0")), checksum: u64::MAX }];
    let heartbeat = Heartbeat { reign: Some(reign()), seq: 41, since: position(), checksums };
    let chunk = Chunk {
        stream: stream(),
        snapshot: 41,
        index: 1,
        count: 2,
        changes: Some(PoolChanges { changes: all }),
    };
    let fetch = Fetch { stream: stream(), snapshot: Some(41), index: 1 };
    let mut kinds = vec![
        ("heartbeat", pool_message::Kind::Heartbeat(heartbeat)),
        ("repair", pool_message::Kind::Repair(Repair { stream: stream(), from: 40 })),
        ("past_ring", pool_message::Kind::PastRing(PastRing { stream: stream() })),
        ("fetch", pool_message::Kind::Fetch(fetch)),
        ("chunk", pool_message::Kind::Chunk(chunk)),
        ("claim", pool_message::Kind::Claim(Claim { position: position() })),
        ("release", pool_message::Kind::Release(Release { position: position() })),
        ("deposed", pool_message::Kind::Deposed(Deposed { reign: Some(reign()) })),
    ];
    for (name, kind) in changes() {
        let delta = Delta { stream: stream(), seq: 42, change: Some(change(kind)) };
        kinds.push((name, pool_message::Kind::Delta(delta)));
    }
    let envelope = || Envelope {
        from: Some(process("router-1")),
        epoch: Some(epoch()),
        secret_fingerprint: vec![7; 32].into(),
        ..Envelope::default()
    };
    let said = |kind| {
        let message = PoolMessage { pool: "m".to_owned(), kind: Some(kind) };
        Envelope { messages: vec![message], ..envelope() }
    };
    let mut envelopes: Vec<_> = kinds.into_iter().map(|(name, kind)| (name, said(kind))).collect();
    envelopes.push(("members", Envelope { members: Some(members()), ..envelope() }));
    envelopes.push(("want_members", Envelope { want_members: true, ..envelope() }));
    envelopes
}
