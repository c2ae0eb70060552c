//! Cost of the event stream on the hot path: cutting it into events, and reading one event.
//! Per token, so it is to be compared with a few microseconds of work per event elsewhere.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use openai_api::{BodyView, ChunkView, RouteKind, SseSplitter};

const CONTENT: &str = r#"{"id":"chatcmpl-8fc3d40e6c5f6d5f","object":"chat.completion.chunk","created":1795967078,"model":"smollm2","choices":[{"index":0,"delta":{"content":" glad"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#;
const USAGE: &str = r#"{"id":"chatcmpl-8fc3d40e6c5f6d5f","object":"chat.completion.chunk","created":1795967078,"model":"smollm2","choices":[],"usage":{"prompt_tokens":37,"total_tokens":49,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":32,"created_cache_tokens":0}},"system_fingerprint":"vllm-0.32.0-02f71710"}"#;

fn chunks(c: &mut Criterion) {
    c.bench_function("chunk/content", |b| {
        b.iter(|| ChunkView::parse(black_box(CONTENT.as_bytes())))
    });
    c.bench_function("chunk/usage", |b| b.iter(|| ChunkView::parse(black_box(USAGE.as_bytes()))));
}

/// 1,000 events, one event per read as engines send them.
fn splitter(c: &mut Criterion) {
    let event = Bytes::from(format!("data: {CONTENT}\n\n"));
    let mut group = c.benchmark_group("splitter");
    group.throughput(Throughput::Elements(1000));
    group.bench_function("1000_events", |b| {
        b.iter(|| {
            let mut splitter = SseSplitter::default();
            (0..1000).map(|_| splitter.feed(event.clone()).count()).sum::<usize>()
        });
    });
    group.finish();
}

/// One event of many megabytes in small reads: time per byte must not grow with its size.
fn large_event(c: &mut Criterion) {
    let read = Bytes::from(vec![b'x'; 1024]);
    let mut group = c.benchmark_group("large_event");
    group.sample_size(10);
    for megabytes in [1_usize, 20] {
        group.throughput(Throughput::Bytes((megabytes << 20) as u64));
        group.bench_function(format!("{megabytes}_mib_in_1_kib_reads"), |b| {
            b.iter(|| {
                let mut splitter = SseSplitter::new(usize::MAX);
                for _ in 0..megabytes << 10 {
                    assert_eq!(splitter.feed(read.clone()).count(), 0);
                }
                splitter.finish().map(|frame| frame.bytes.len())
            });
        });
    }
    group.finish();
}

fn body(c: &mut Criterion) {
    let text = "All work and no play makes a dull \\\"day\\\".\\n".repeat(700);
    let body = format!(
        r#"{{"model":"smollm2","messages":[{{"role":"user","content":"{text}"}}],"stream":true}}"#
    );
    let mut group = c.benchmark_group("body");
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("view_of_32_kb", |b| {
        b.iter(|| BodyView::parse(black_box(body.as_bytes()), RouteKind::Chat).is_ok());
    });
    group.finish();
}

criterion_group!(benches, chunks, splitter, large_event, body);
criterion_main!(benches);
