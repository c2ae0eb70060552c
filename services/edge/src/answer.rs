//! The keys of the blocks that an answer filled.
//!
//! An engine's cache holds the prompt's tokens and those it generated; the next turn's prompt
//! begins with both. What was generated is not told as tokens, so a plain text answer is
//! tokenised again when it has ended. That gives the engine's own tokens unless it strung them
//! together in another way than its tokenizer would, or part of them is not in the text
//! (reasoning, a tool call, a stop string); then their number differs from the one that the engine
//! reports, and the answer gets no keys.
//!
//! All of it happens after the answer, on one thread for long work, within a share of one core.
//! What does not fit in is left without keys; the booking then ends at once, as it does anywhere
//! else.

mod budget;
mod worker;

use std::sync::Arc;

use bytes::Bytes;
use domain::{BlockKey, BlockUnit, KeyList};
use openai_api::{ChunkView, Grammar, Said};
use tokenization::{KeySpace, ModelFolder};

pub(crate) use self::worker::{Answers, Finish, Worker, run};

/// Where a prompt ends, so that keys can go on from there.
pub(crate) struct PromptEnd {
    folder: Arc<ModelFolder>,
    space: KeySpace,
    units: Vec<UnitEnd>,
}

/// The same in one unit.
pub(crate) struct UnitEnd {
    unit: BlockUnit,
    /// The key of the last full block.
    last: Option<BlockKey>,
    /// The tokens behind it.
    tail: Box<[u32]>,
}

/// What an answer said.
pub(crate) enum Text {
    /// The pieces of a stream, as they stood in their JSON strings, one behind the other.
    Pieces(Vec<u8>),
    /// A whole answer that was not streamed, and how it is written.
    Whole(Bytes, Grammar),
}

/// How an attempt to key an answer came out.
#[derive(Debug, PartialEq)]
enum Keyed {
    /// The keys, where they fill a block.
    Keys(Vec<KeyList>),
    /// The tokens are not the engine's.
    Differs,
}

impl PromptEnd {
    /// The end of a prompt, by each unit. `None` if an answer of at most `max_output` tokens fills
    /// no block.
    pub(crate) fn new(
        folder: Arc<ModelFolder>,
        space: KeySpace,
        units: Vec<UnitEnd>,
        max_output: Option<u32>,
    ) -> Option<Self> {
        let end = Self { folder, space, units };
        end.is_filled_by(max_output.map_or(u64::MAX, u64::from)).then_some(end)
    }

    /// Whether so many output tokens fill a block. The last one sampled is never fed back, so
    /// its KV does not exist.
    fn is_filled_by(&self, output: u64) -> bool {
        let computed = output.saturating_sub(1);
        let room = |end: &UnitEnd| u64::from(end.unit.size()) - end.tail.len() as u64;
        self.units.iter().any(|end| room(end) <= computed)
    }

    /// The keys of an answer for which the engine counted `completion` tokens.
    fn keys(&self, text: &Text, completion: u64) -> Keyed {
        let tokens = text.plain().and_then(|text| self.folder.tokenize_text(&text, false).ok());
        let Some(tokens) = tokens else { return Keyed::Differs };
        // The engine counts the token that ended the answer, which is no text.
        let count = tokens.len() as u64;
        if count != completion && count + 1 != completion {
            return Keyed::Differs;
        }
        let computed = tokens.len().min(completion.saturating_sub(1) as usize);
        let list = |end: &UnitEnd| {
            let tokens = [&end.tail, &tokens[..computed]].concat();
            let keys = self.space.keys_after(end.last, &tokens, end.unit.size());
            KeyList { unit: end.unit, keys: keys.into() }
        };
        Keyed::Keys(self.units.iter().map(list).filter(|list| !list.keys.is_empty()).collect())
    }
}

impl UnitEnd {
    /// The end of a prompt with these keys, and with these tokens behind them.
    pub(crate) fn new(keys: &KeyList, tail: Box<[u32]>) -> Self {
        Self { unit: keys.unit, last: keys.keys.last().copied(), tail }
    }
}

impl std::fmt::Debug for PromptEnd {
    /// Tokens of prompts are shown to nobody.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptEnd").finish_non_exhaustive()
    }
}

impl Text {
    /// The text itself; `None` if there is more to the answer than one plain text.
    fn plain(&self) -> Option<String> {
        let inner = match self {
            Text::Pieces(pieces) => pieces,
            Text::Whole(body, grammar) => match ChunkView::read(body, *grammar).said {
                Said::Text { start, end } => body.get(start..end)?,
                Said::Nothing | Said::Other => return None,
            },
        };
        let quoted = [b"\"", inner, b"\""].concat();
        serde_json::from_slice(&quoted).ok()
    }
}

#[cfg(test)]
mod tests;
