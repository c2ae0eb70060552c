//! What a run measured, request by request. Hits and times are the engines', never the gateway's.

use std::ops::Range;

use domain::Moment;

/// One request's way through the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Record {
    /// When it was sent.
    pub sent: Moment,
    /// The engine that got it.
    pub rank: usize,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Full blocks of its prompt.
    pub prompt_blocks: u32,
    /// Leading blocks that the engine found in its cache.
    pub hit_blocks: u32,
    /// Prompt tokens in them.
    pub cached_tokens: u32,
    /// Leading blocks that the gateway believed to be there when it chose.
    pub believed_blocks: u32,
    /// The time to first token that the gateway expected.
    pub expected_ttft_seconds: f64,
    /// When its first token came.
    pub first_token: Option<Moment>,
    /// When it ended.
    pub finished: Option<Moment>,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// Its engine refused it: it could never fit there.
    pub rejected: bool,
}

impl Record {
    /// From sending to the first token.
    pub fn ttft_seconds(&self) -> Option<f64> {
        Some(self.first_token?.seconds_since(self.sent))
    }

    /// The mean time of the tokens after the first; 0 for an answer of one token.
    pub fn tpot_seconds(&self) -> Option<f64> {
        let seconds = self.finished?.seconds_since(self.first_token?);
        let further = self.output_tokens.saturating_sub(1);
        Some(if further == 0 { 0.0 } else { seconds / f64::from(further) })
    }
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The requests, in the order of the set.
    pub records: Vec<Record>,
    /// Ranks there were.
    pub ranks: usize,
    /// Requests preempted, in all engines.
    pub preemptions: u64,
    /// What each rank's prefill was believed to cost in the end.
    pub learned: Vec<scheduling::Coefficients>,
}

impl Outcome {
    /// The share of full prompt blocks that engines found in their caches, 0 to 1.
    pub fn block_hit_rate(&self, requests: Range<usize>) -> f64 {
        self.share(requests, |record| record.hit_blocks)
    }

    /// The share that the gateway believed they would find.
    pub fn believed_hit_rate(&self, requests: Range<usize>) -> f64 {
        self.share(requests, |record| record.believed_blocks)
    }

    /// Requests that each rank got.
    pub fn requests_per_rank(&self, requests: Range<usize>) -> Vec<u64> {
        let mut counts = vec![0; self.ranks];
        self.records[requests].iter().for_each(|record| counts[record.rank] += 1);
        counts
    }

    fn share(&self, requests: Range<usize>, part: impl Fn(&Record) -> u32) -> f64 {
        let records = || self.records[requests.clone()].iter().filter(|record| !record.rejected);
        let all: u64 = records().map(|record| u64::from(record.prompt_blocks)).sum();
        let some: u64 = records().map(|record| u64::from(part(record))).sum();
        if all == 0 { 0.0 } else { some as f64 / all as f64 }
    }
}
