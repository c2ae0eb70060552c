//! The published documents workload, which has no clock.
//!
//! Requests are sent one after the other; once more than a fixed number of them are in flight, each
//! new one makes the oldest leave. Caches are plain and used at the moment of sending. For a gateway that
//! reckons in seconds, a request that leaves moves time on by its service divided by the number of
//! nodes, as if all were always busy: 1 ms for each request and 0.05 ms for each uncached token.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use domain::{BlockKey, LeaseId, Moment};

use crate::gateway::policy::{Chooser, ReferenceRule, RoutePolicy};
use crate::gateway::{Gateway, GatewayConfig, MirrorKind, Prompt};
use crate::lru::{Evict, PlainLru};
use crate::outcome::{Outcome, Record};

/// Tokens that a block of 64 characters stands for.
const BLOCK_TOKENS: u32 = 16;
/// Tokens of the question at the end of a prompt: less than a block, so no cache keeps it.
const QUESTION_TOKENS: u32 = 8;
/// What every request takes …
const SERVICE_SECONDS: f64 = 0.001;
/// … and what a token adds that is not cached.
const TOKEN_SECONDS: f64 = 0.000_05;

/// The workload's shape.
#[derive(Clone, Debug)]
pub struct Windowed {
    /// Nodes.
    pub nodes: usize,
    /// Blocks that each node's cache has room for.
    pub blocks: u32,
    /// Blocks that the gateway believes it to have room for.
    pub believed_blocks: u32,
    /// Which end of a prompt the caches lose first; the gateway's mirror is told.
    pub evict: Evict,
    /// Requests in flight at once.
    pub window: usize,
    /// Blocks that all prompts share.
    pub shared_blocks: u32,
    /// Blocks of a document.
    pub document_blocks: u32,
    /// The production choice's settings.
    pub selection: scheduling::Config,
    /// Of everything random in a policy.
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
            selection: scheduling::Config::default(),
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
    /// The blocks of a prompt about `document`.
    pub fn prompt(&self, document: usize) -> Vec<u32> {
        let first = self.shared_blocks + document as u32 * self.document_blocks;
        (0..self.shared_blocks).chain(first..first + self.document_blocks).collect()
    }

    /// Runs the requests, each about the document that `draws` names.
    pub fn run(&self, policy: RoutePolicy, draws: &[usize]) -> Outcome {
        let mut gateway = Gateway::new(GatewayConfig {
            block_tokens: BLOCK_TOKENS,
            mirror: MirrorKind::PlainLru(self.evict),
            believed_blocks: vec![self.believed_blocks; self.nodes],
            priors: Vec::new(),
            selection: self.selection,
        });
        let mut chooser = Chooser::new(policy, self.nodes, ReferenceRule::BENCH, self.seed);
        let mut caches = vec![PlainLru::new(self.blocks, self.evict); self.nodes];
        let mut window: VecDeque<InFlight> = VecDeque::new();
        let mut now = Moment::ZERO;
        let mut records: Vec<Record> = Vec::with_capacity(draws.len());
        for (request, document) in draws.iter().enumerate() {
            let blocks = self.prompt(*document);
            let keys: Vec<BlockKey> = blocks.iter().map(|b| BlockKey(u64::from(*b))).collect();
            let tokens = keys.len() as u32 * BLOCK_TOKENS + QUESTION_TOKENS;
            let routed = gateway.route(Prompt { keys: &keys, tokens }, &mut chooser, None, now);
            let cache = &mut caches[routed.rank];
            let hit_blocks = cache.matched(&blocks);
            cache.access(&blocks);
            let uncached = (keys.len() as u32 - hit_blocks) * BLOCK_TOKENS;
            let seconds = SERVICE_SECONDS + TOKEN_SECONDS * f64::from(uncached);
            let service = Duration::from_secs_f64(seconds / self.nodes as f64);
            window.push_back(InFlight { request, lease: routed.lease, service });
            records.push(Record {
                sent: now,
                rank: routed.rank,
                prompt_tokens: tokens,
                prompt_blocks: keys.len() as u32,
                hit_blocks,
                cached_tokens: hit_blocks * BLOCK_TOKENS,
                believed_blocks: routed.believed_blocks,
                expected_ttft_seconds: routed.ttft_seconds,
                output_tokens: 1,
                ..Record::default()
            });
            if window.len() > self.window
                && let Some(oldest) = window.pop_front()
            {
                now = now + oldest.service;
                leave(&oldest, &mut gateway, &mut records, now);
            }
        }
        for left in window {
            now = now + left.service;
            leave(&left, &mut gateway, &mut records, now);
        }
        Outcome { records, ranks: self.nodes, preemptions: 0, learned: gateway.learned() }
    }
}

fn leave(flight: &InFlight, gateway: &mut Gateway, records: &mut [Record], now: Moment) {
    gateway.first_token(flight.lease, now);
    gateway.finished(flight.lease, 1, now);
    let record = &mut records[flight.request];
    record.first_token = Some(now);
    record.finished = Some(now);
}
