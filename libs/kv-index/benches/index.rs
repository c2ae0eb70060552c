//! Cost of one match, of one request's life, and of one under eviction.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use domain::BlockKey;
use kv_index::{KvIndex, Matches, Slot};

const RANKS: usize = 10;
const SHARED: u64 = 4;
const PROMPT: u64 = 24;

/// A well spread key.
fn key(n: u64) -> BlockKey {
    let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    BlockKey((n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9))
}

/// A prompt of 24 blocks, the first four of which all prompts share.
fn prompt(n: u64) -> Vec<BlockKey> {
    (0..SHARED).chain((0..PROMPT - SHARED).map(|at| 1000 + n * PROMPT + at)).map(key).collect()
}

fn serve(index: &mut KvIndex, slot: Slot, prompt: &[BlockKey]) -> u32 {
    let mut booking = index.book(slot, prompt, 1);
    let started = index.start(&mut booking);
    index.finish(booking, 0);
    started.cached_blocks
}

/// Ranks that have room for 10,000 blocks each, filled twice over.
fn filled() -> (KvIndex, Vec<Slot>, Vec<Vec<BlockKey>>) {
    let mut index = KvIndex::new();
    let slots: Vec<Slot> = (0..RANKS).map(|_| index.add_rank(10_000)).collect();
    let prompts: Vec<_> = (0..10_000).map(prompt).collect();
    for (n, prompt) in prompts.iter().enumerate() {
        serve(&mut index, slots[n % RANKS], prompt);
    }
    (index, slots, prompts)
}

fn matching(c: &mut Criterion) {
    let (index, _, prompts) = filled();
    let resident = &prompts[prompts.len() - 2_000..];
    let strange: Vec<BlockKey> = (0..PROMPT).map(|n| key(n + (1 << 40))).collect();
    let mut into = Matches::default();
    let mut at = 0;
    c.bench_function("match/hit of 24 blocks, 10 ranks", |b| {
        b.iter(|| {
            at = (at + 1) % resident.len();
            index.match_prefix(black_box(&resident[at]), &mut into);
            into.listed().len()
        });
    });
    c.bench_function("match/miss", |b| {
        b.iter(|| index.match_prefix(black_box(&strange), &mut into));
    });
}

fn requests(c: &mut Criterion) {
    let (mut index, slots, prompts) = filled();
    let resident = prompts.len() - 2_000;
    let mut at = 0;
    c.bench_function("book, start, finish/all blocks resident", |b| {
        b.iter(|| {
            at = resident + (at + 1) % 2_000;
            serve(&mut index, slots[at % RANKS], black_box(&prompts[at]))
        });
    });
    let mut at = 0;
    c.bench_function("book, start, finish/20 of 24 blocks new, 20 evicted", |b| {
        b.iter(|| {
            at = (at + 1) % prompts.len();
            serve(&mut index, slots[at % RANKS], black_box(&prompts[at]))
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1))
        .without_plots();
    targets = matching, requests
}
criterion_main!(benches);
