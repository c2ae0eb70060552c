//! Recorded traffic: who sent how many tokens when, and which blocks of them were seen before.
//!
//! Two published schemas are read, one JSON object a line:
//!
//! - Mooncake: `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of
//!   512-token blocks; with the additions `session_id` and `delay` (milliseconds after the turn
//!   before) that load generators use.
//! - Bailian: `timestamp` in seconds, `chat_id`, `parent_chat_id` (−1 for none), and `hash_ids` of
//!   16-token blocks.
//!
//! Both have been written with other block sizes as well, which a caller may tell.
//!
//! The hash of a partial last block is dropped: engines cache whole blocks only. What is kept of a
//! line is its keys and a few numbers, so a trace is read as a stream.

mod replay;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;

use domain::BlockKey;
use serde::Deserialize;

use crate::request::Chain;
pub use replay::{Mode, Replay, Slice};

/// Tokens in a block of the Mooncake traces.
const MOONCAKE_BLOCK_TOKENS: u32 = 512;
/// Tokens in a block of the Bailian traces.
const BAILIAN_BLOCK_TOKENS: u32 = 16;

/// A line that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Not an object of either schema.
    #[error("line {line}: {source}")]
    Json {
        /// Counted from 1.
        line: usize,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// It has neither a time nor a turn before it.
    #[error("line {line}: no timestamp, and no earlier turn to follow")]
    NoTime {
        /// Counted from 1.
        line: usize,
    },
    /// It differs in schema from the lines before it.
    #[error("line {line}: Mooncake and Bailian lines in one trace")]
    Mixed {
        /// Counted from 1.
        line: usize,
    },
    /// A time that is no time.
    #[error("line {line}: the timestamp is negative or not finite")]
    BadTime {
        /// Counted from 1.
        line: usize,
    },
}

/// One line as it stands in the file.
#[derive(Deserialize)]
struct Line {
    timestamp: Option<f64>,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    chat_id: Option<i64>,
    parent_chat_id: Option<i64>,
    session_id: Option<serde_json::Value>,
    delay: Option<f64>,
}

/// The turn that a turn follows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Previous {
    /// Its place in the trace.
    entry: usize,
    /// The recorded pause after its end.
    delay_seconds: Option<f64>,
}

/// One request.
#[derive(Clone, Debug)]
struct Entry {
    /// Seconds since the trace's epoch; `None` if only the turn before gives the time.
    at: Option<f64>,
    keys: Arc<[BlockKey]>,
    prompt_tokens: u32,
    output_tokens: u32,
    previous: Option<Previous>,
}

/// A trace, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What a hash stands for, where it is not what its schema says.
    told_block_tokens: Option<NonZero<u32>>,
    /// The schema's.
    block_tokens: Option<u32>,
    entries: Vec<Entry>,
    lines: usize,
    /// The last entry of each conversation that lines name.
    conversations: HashMap<String, usize>,
}

impl Trace {
    /// An empty trace. Each hash is of `block_tokens` tokens; of what the schema of the first line
    /// says if there is none.
    pub fn new(block_tokens: Option<NonZero<u32>>) -> Self {
        Self { told_block_tokens: block_tokens, ..Self::default() }
    }

    /// Takes the next line; empty ones are skipped. Requests without tokens in or out are taken
    /// for ones of one token.
    ///
    /// # Errors
    /// [`TraceError`] names the line.
    pub fn push_line(&mut self, text: &str) -> Result<(), TraceError> {
        self.lines += 1;
        let line = self.lines;
        if text.trim().is_empty() {
            return Ok(());
        }
        let raw: Line =
            serde_json::from_str(text).map_err(|source| TraceError::Json { line, source })?;
        let (block_tokens, per_second) = match raw.chat_id {
            Some(_) => (BAILIAN_BLOCK_TOKENS, 1.0),
            None => (MOONCAKE_BLOCK_TOKENS, 1_000.0),
        };
        if *self.block_tokens.get_or_insert(block_tokens) != block_tokens {
            return Err(TraceError::Mixed { line });
        }
        let at = raw.timestamp.map(|timestamp| timestamp / per_second);
        if at.is_some_and(|at| !at.is_finite() || at < 0.0) {
            return Err(TraceError::BadTime { line });
        }
        let previous = self.previous(&raw);
        if at.is_none() && previous.is_none() && raw.session_id.is_none() {
            return Err(TraceError::NoTime { line });
        }
        let mut chain = Chain::default();
        let full = (raw.input_length / self.block_tokens()) as usize;
        raw.hash_ids.iter().take(full).for_each(|id| chain.push_one(*id));
        self.entries.push(Entry {
            at: at.or(previous.is_none().then_some(0.0)),
            keys: chain.keys(),
            prompt_tokens: raw.input_length.max(1),
            output_tokens: raw.output_length.max(1),
            previous,
        });
        Ok(())
    }

    /// Requests so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Tokens in a block.
    pub fn block_tokens(&self) -> u32 {
        let told = self.told_block_tokens.map(NonZero::get);
        told.or(self.block_tokens).unwrap_or(MOONCAKE_BLOCK_TOKENS)
    }

    /// The turn that `raw` follows, and notes `raw` as the last of its conversation.
    fn previous(&mut self, raw: &Line) -> Option<Previous> {
        let here = self.entries.len();
        let entry = match (raw.chat_id, &raw.session_id) {
            (Some(chat), _) => {
                let parent = raw.parent_chat_id.filter(|parent| *parent >= 0);
                let before = parent.and_then(|p| self.conversations.get(&p.to_string()).copied());
                self.conversations.insert(chat.to_string(), here);
                before
            }
            (None, Some(session)) => self.conversations.insert(session.to_string(), here),
            (None, None) => None,
        };
        let delay_seconds = raw.delay.map(|delay| delay.max(0.0) / 1_000.0);
        entry.map(|entry| Previous { entry, delay_seconds })
    }
}
