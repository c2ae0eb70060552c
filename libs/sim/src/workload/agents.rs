//! Sessions that grow turn by turn.

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockKey, Moment};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

use super::{Span, limits};
use crate::Error;
use crate::request::{Chain, Request, RequestSet, Start};

/// Agents at work: sessions that grow by some blocks with every turn, of which the answer is a
/// part, and go on a little after the last turn has ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct AgentSessions {
    /// Sessions, all at once.
    pub sessions: usize,
    /// Turns of each.
    pub turns: usize,
    /// Blocks that all prompts share.
    pub shared_blocks: u32,
    /// Blocks that a turn adds, the last answer's included.
    pub turn_blocks: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Tokens of an answer: a call of a tool.
    pub output_tokens: u32,
    /// Shortest and longest pause between two turns, in seconds.
    pub pause_seconds: Span,
}

impl Default for AgentSessions {
    fn default() -> Self {
        Self {
            sessions: 24,
            turns: 14,
            shared_blocks: 2,
            turn_blocks: 8,
            block_tokens: super::BLOCK_TOKENS,
            output_tokens: 32,
            pause_seconds: Span { low: 0.05, high: 0.5 },
        }
    }
}

impl AgentSessions {
    /// # Errors
    /// [`Error::Config`] names the first field that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        let turns = (self.turns as u64).saturating_mul(self.turn_blocks.into());
        let blocks = turns.saturating_add(self.shared_blocks.into());
        Error::first_broken([
            limits::count("sessions", self.sessions),
            limits::count("turns", self.turns),
            limits::requests("turns", self.sessions as f64 * self.turns as f64),
            (self.turn_blocks > 0, "turn_blocks", "at least 1"),
            limits::block_tokens(self.block_tokens),
            limits::blocks("turn_blocks", [self.sessions as u64, blocks]),
            limits::tokens("turn_blocks", blocks.saturating_mul(self.block_tokens.into())),
            limits::tokens("output_tokens", self.output_tokens.into()),
            limits::time("pause_seconds", self.pause_seconds.high),
            (self.pause_seconds.is_in_order(), "pause_seconds", "the shortest, then the longest"),
        ])
    }

    /// The requests of one seed. Sessions begin within the first longest pause.
    pub fn generate(&self, seed: u64) -> RequestSet {
        let mut random = StdRng::seed_from_u64(seed);
        let Span { low: shortest, high: longest } = self.pause_seconds;
        let mut begins: Vec<f64> =
            (0..self.sessions).map(|_| longest * random.random::<f64>()).collect();
        begins.sort_by(f64::total_cmp);
        let keys: Vec<Arc<[BlockKey]>> =
            (0..self.sessions as u64).map(|session| self.keys(session)).collect();
        let mut requests = Vec::with_capacity(self.sessions * self.turns);
        for turn in 0..self.turns {
            for session in 0..self.sessions {
                let start = if turn == 0 {
                    Start::At(Moment::from_secs_f64(begins[session]))
                } else {
                    let pause = shortest + (longest - shortest) * random.random::<f64>();
                    let gap = Duration::from_secs_f64(pause);
                    Start::After { parent: requests.len() - self.sessions, gap }
                };
                let blocks = self.shared_blocks + self.turn_blocks * (turn as u32 + 1);
                requests.push(Request {
                    start,
                    keys: keys[session].clone(),
                    prompt_tokens: blocks * self.block_tokens,
                    output_tokens: self.output_tokens,
                });
            }
        }
        RequestSet { block_tokens: self.block_tokens, requests, callers: 0 }
    }

    /// All that a session will ever hold; a turn's prompt is the beginning of it, and goes on
    /// with its answer.
    fn keys(&self, session: u64) -> Arc<[BlockKey]> {
        let mut chain = Chain::default();
        chain.push(u64::MAX, self.shared_blocks);
        chain.push(session, self.turn_blocks * self.turns as u32);
        chain.push(u64::MAX - 1 - session, self.output_tokens.div_ceil(self.block_tokens));
        chain.keys()
    }
}
