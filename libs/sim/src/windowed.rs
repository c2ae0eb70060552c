//! The published documents workload, which has no clock.
//!
//! Requests are sent one after the other; once more than a fixed number of them are in flight, each
//! new one makes the oldest leave. Caches are plain and used at the moment of sending. For a gateway that
//! reckons in seconds, a request that leaves moves time on by its service divided by the number of
//! nodes, as if all were always busy: unless told otherwise, 1 ms for each request and 0.05 ms for
//! each uncached token.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use domain::{BlockKey, LeaseId, Moment};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::gateway::policy::{Chooser, ReferenceRule, RoutePolicy};
use crate::gateway::{Gateway, GatewayConfig, MirrorKind, Prompt};
use crate::lru::{Evict, PlainLru};
use crate::outcome::{Outcome, Record};
use crate::workload::{BLOCK_TOKENS, limits};

/// The workload's shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Windowed {
    /// Nodes.
    #[serde(skip)]
    pub nodes: usize,
    /// Blocks that each node's cache has room for.
    #[serde(skip)]
    pub blocks: u32,
    /// Blocks that the gateway believes it to have room for.
    #[serde(skip)]
    pub believed_blocks: u32,
    /// Which end of a prompt the caches lose first; the gateway's mirror is told.
    pub evict: Evict,
    /// Requests in flight at once.
    pub window: usize,
    /// Blocks that all prompts share.
    pub shared_blocks: u32,
    /// Blocks of a document.
    pub document_blocks: u32,
    /// Tokens of the question at the end of a prompt: less than a block, so no cache keeps it.
    pub question_tokens: u32,
    /// Tokens that a block of 64 characters stands for.
    pub block_tokens: u32,
    /// What every request takes, in milliseconds …
    pub service_ms: f64,
    /// … beside its uncached tokens, of which a second computes so many.
    #[serde(skip)]
    pub prefill_tokens_per_second: f64,
    /// The production choice's settings.
    #[serde(skip)]
    pub selection: scheduling::Config,
    /// Whether the gateway looks for hot prefixes.
    #[serde(skip)]
    pub hot_prefixes: bool,
    /// Of everything random in a policy.
    #[serde(skip)]
    pub seed: u64,
}

impl Default for Windowed {
    fn default() -> Self {
        Self {
            nodes: 3,
            blocks: 600,
            believed_blocks: 600,
            evict: Evict::Head,
            window: 48,
            shared_blocks: 2,
            document_blocks: 96,
            question_tokens: 8,
            block_tokens: BLOCK_TOKENS,
            service_ms: 1.0,
            prefill_tokens_per_second: 20_000.0,
            selection: scheduling::Config::default(),
            hot_prefixes: true,
            seed: 1,
        }
    }
}

struct InFlight {
    request: usize,
    lease: LeaseId,
    service: Duration,
}

impl Windowed {
    /// # Errors
    /// [`Error::Config`] names the first field that makes no sense for so many documents.
    pub fn check(&self, documents: usize) -> Result<(), Error> {
        let blocks = u64::from(self.shared_blocks) + u64::from(self.document_blocks);
        Error::first_broken([
            limits::count("documents", documents),
            limits::blocks("document_blocks", [documents as u64, self.document_blocks.into()]),
            limits::blocks("shared_blocks", [blocks, 1]),
            limits::block_tokens(self.block_tokens),
            (self.question_tokens < self.block_tokens, "question_tokens", "less than a block"),
            limits::tokens("block_tokens", (blocks + 1) * u64::from(self.block_tokens)),
            limits::time("service_ms", self.service_ms),
        ])
    }

    /// The blocks of a prompt about `document`.
    pub fn prompt(&self, document: usize) -> Vec<u32> {
        let first = self.shared_blocks + document as u32 * self.document_blocks;
        (0..self.shared_blocks).chain(first..first + self.document_blocks).collect()
    }

    /// Runs the requests, each about the document that `draws` names.
    pub fn run(&self, policy: RoutePolicy, draws: &[usize]) -> Outcome {
        let mut run = Run::new(self, policy);
        for document in draws {
            run.send(*document);
            if run.window.len() > self.window {
                run.let_one_go();
            }
        }
        while !run.window.is_empty() {
            run.let_one_go();
        }
        Outcome {
            records: run.records,
            ranks: self.nodes,
            preemptions: 0,
            learned: run.gateway.learned(),
        }
    }

    /// Runs the requests without a gateway: each document has its node.
    pub fn run_placed(&self, places: &[usize], draws: &[usize]) -> Outcome {
        let mut caches = vec![PlainLru::new(self.blocks, self.evict); self.nodes];
        let records = draws.iter().map(|document| {
            let (rank, blocks) = (places[*document], self.prompt(*document));
            let hit_blocks = caches[rank].matched(&blocks);
            caches[rank].access(&blocks);
            Record {
                believed_blocks: hit_blocks,
                ..self.record(Moment::ZERO, rank, &blocks, hit_blocks)
            }
        });
        Outcome { records: records.collect(), ranks: self.nodes, ..Outcome::default() }
    }
}

impl Windowed {
    fn prompt_tokens(&self, blocks: &[u32]) -> u32 {
        blocks.len() as u32 * self.block_tokens + self.question_tokens
    }

    fn service_seconds(&self, uncached_blocks: u32) -> f64 {
        let per_token = 1.0 / self.prefill_tokens_per_second;
        let uncached = uncached_blocks * self.block_tokens;
        self.service_ms / 1e3 + per_token * f64::from(uncached)
    }

    fn record(&self, sent: Moment, rank: usize, blocks: &[u32], hit_blocks: u32) -> Record {
        Record {
            sent,
            rank,
            prompt_tokens: self.prompt_tokens(blocks),
            prompt_blocks: blocks.len() as u32,
            hit_blocks,
            cached_tokens: hit_blocks * self.block_tokens,
            first_token: Some(sent),
            finished: Some(sent),
            output_tokens: 1,
            ..Record::default()
        }
    }
}

/// A run in progress.
struct Run<'a> {
    shape: &'a Windowed,
    gateway: Gateway,
    chooser: Chooser,
    caches: Vec<PlainLru>,
    window: VecDeque<InFlight>,
    now: Moment,
    records: Vec<Record>,
}

impl<'a> Run<'a> {
    fn new(shape: &'a Windowed, policy: RoutePolicy) -> Self {
        let gateway = Gateway::new(GatewayConfig {
            block_tokens: shape.block_tokens,
            mirror: MirrorKind::PlainLru(shape.evict),
            believed_blocks: vec![shape.believed_blocks; shape.nodes],
            priors: Vec::new(),
            selection: shape.selection,
            hot_prefixes: shape.hot_prefixes,
        });
        Self {
            shape,
            gateway,
            chooser: Chooser::new(policy, shape.nodes, ReferenceRule::BENCH, shape.seed),
            caches: vec![PlainLru::new(shape.blocks, shape.evict); shape.nodes],
            window: VecDeque::new(),
            now: Moment::ZERO,
            records: Vec::new(),
        }
    }

    fn send(&mut self, document: usize) {
        let blocks = self.shape.prompt(document);
        let keys: Vec<BlockKey> = blocks.iter().map(|b| BlockKey(u64::from(*b))).collect();
        let prompt = Prompt { keys: &keys, tokens: self.shape.prompt_tokens(&blocks) };
        let routed = self.gateway.route(prompt, &mut self.chooser, None, self.now);
        let cache = &mut self.caches[routed.rank];
        let hit_blocks = cache.matched(&blocks);
        cache.access(&blocks);
        let seconds = self.shape.service_seconds(blocks.len() as u32 - hit_blocks);
        self.window.push_back(InFlight {
            request: self.records.len(),
            lease: routed.lease,
            service: Duration::from_secs_f64(seconds / self.shape.nodes as f64),
        });
        self.records.push(Record {
            believed_blocks: routed.believed_blocks,
            expected_ttft_seconds: routed.ttft_seconds,
            ..self.shape.record(self.now, routed.rank, &blocks, hit_blocks)
        });
    }

    fn let_one_go(&mut self) {
        let Some(oldest) = self.window.pop_front() else { return };
        self.now = self.now + oldest.service;
        self.gateway.first_token(oldest.lease, self.now);
        let record = &mut self.records[oldest.request];
        self.gateway.finished(oldest.lease, 1, record.cached_tokens, self.now);
        record.first_token = Some(self.now);
        record.finished = Some(self.now);
    }
}
