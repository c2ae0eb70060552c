//! What really happened in the engine: totals, one record per sequence, and histograms.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

/// Totals of one double. This is the truth that a gateway's belief is measured against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Inference requests that arrived, failed and injected ones included.
    pub requests: u64,
    /// Sequences that were scheduled: one for each prompt and choice.
    pub scheduled: u64,
    /// Sequences that got all their tokens.
    pub finished: u64,
    /// Sequences whose client went away.
    pub cancelled: u64,
    /// Full prompt blocks of the scheduled sequences.
    pub prompt_blocks: u64,
    /// Those of them that were found in the cache.
    pub hit_blocks: u64,
    /// Prompt tokens looked up in the cache.
    pub prompt_tokens: u64,
    /// Those of them that were found.
    pub cached_tokens: u64,
    /// Output tokens.
    pub generated_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Sequences that run now.
    pub running: u32,
    /// Sequences that wait now.
    pub waiting: u32,
    /// Share of blocks that live sequences hold now, 0 to 1; of several ranks the fullest's.
    pub kv_usage: f64,
    /// Different blocks in the cache now.
    pub cached_blocks: u64,
    /// Connections open now.
    pub open_sockets: u64,
}

impl Stats {
    /// Two ranks of one double as one. What belongs to the whole double stands in both.
    pub(crate) fn with(self, other: Stats) -> Stats {
        Stats {
            requests: self.requests,
            scheduled: self.scheduled + other.scheduled,
            finished: self.finished + other.finished,
            cancelled: self.cancelled + other.cancelled,
            prompt_blocks: self.prompt_blocks + other.prompt_blocks,
            hit_blocks: self.hit_blocks + other.hit_blocks,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            cached_tokens: self.cached_tokens + other.cached_tokens,
            generated_tokens: self.generated_tokens + other.generated_tokens,
            preemptions: self.preemptions + other.preemptions,
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            kv_usage: self.kv_usage.max(other.kv_usage),
            cached_blocks: self.cached_blocks + other.cached_blocks,
            open_sockets: self.open_sockets,
        }
    }
}

/// What became of one sequence. Written when it leaves the engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SequenceRecord {
    /// The client's `x-request-id`, or the engine's own id.
    pub request_id: Arc<str>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u32,
    /// Full blocks of its prompt.
    pub prompt_blocks: u32,
    /// Those of them that were found.
    pub hit_blocks: u32,
    /// Tokens it generated.
    pub output_tokens: u32,
    /// From arrival to the start of its prefill; `None` if that never began.
    pub queue_seconds: Option<f64>,
    /// From arrival to its first token; `None` if there was none.
    pub ttft_seconds: Option<f64>,
    /// Whether it got all its tokens.
    pub finished: bool,
}

/// The newest records, so many at most.
#[derive(Debug)]
pub(crate) struct RequestLog {
    records: VecDeque<SequenceRecord>,
    capacity: usize,
}

impl RequestLog {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { records: VecDeque::new(), capacity }
    }

    pub(crate) fn push(&mut self, record: SequenceRecord) {
        if self.capacity == 0 {
            return;
        }
        if self.records.len() == self.capacity {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    pub(crate) fn take(&mut self) -> Vec<SequenceRecord> {
        std::mem::take(&mut self.records).into()
    }

    pub(crate) fn copy(&self) -> Vec<SequenceRecord> {
        self.records.iter().cloned().collect()
    }
}

/// A Prometheus histogram.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    pub(crate) bounds: &'static [f64],
    /// Observations at or below each bound and above the one before.
    pub(crate) counts: Vec<u64>,
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    pub(crate) fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

/// vLLM's buckets for times to first token, in seconds.
const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's buckets for the parts of a request's time, in seconds.
const REQUEST_BOUNDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// vLLM's buckets for token counts, up to the context of the largest double worth running.
const TOKEN_BOUNDS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0,
];

/// The histograms of vLLM's page that say something about a prefill.
#[derive(Debug)]
pub(crate) struct Histograms {
    pub(crate) time_to_first_token: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) prefill_time: Histogram,
    pub(crate) e2e_latency: Histogram,
    pub(crate) prefill_kv_computed_tokens: Histogram,
}

impl Histograms {
    pub(crate) fn new() -> Self {
        Self {
            time_to_first_token: Histogram::new(TTFT_BOUNDS),
            queue_time: Histogram::new(REQUEST_BOUNDS),
            prefill_time: Histogram::new(REQUEST_BOUNDS),
            e2e_latency: Histogram::new(REQUEST_BOUNDS),
            prefill_kv_computed_tokens: Histogram::new(TOKEN_BOUNDS),
        }
    }
}
