//! What one event of a streamed answer says, as far as the gateway cares: is there content, is
//! there usage, is it the end, is it an error. Each API has a grammar of its own.
//!
//! The scan is lenient and never fails: what it cannot make sense of says nothing. It builds no
//! values and allocates nothing, as it runs once per token.

use domain::Usage;

mod choices;
mod cohere;
mod messages;
mod reader;
mod responses;

pub use self::responses::{MAX_RESPONSE_ID_BYTES, response_id};

use self::reader::{Counts, Reader};

/// How the events of a stream are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grammar {
    /// `choices` with text, as chat and completions have them.
    #[default]
    Choices,
    /// `choices` with token ids.
    TokenIds,
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
    /// Cohere's chat.
    Cohere,
}

/// What the choices of one event say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    /// Nothing.
    #[default]
    Nothing,
    /// One choice says plain text: the bytes between the quotes of its JSON string, by their
    /// place in the event's data.
    Text {
        /// The first byte.
        start: usize,
        /// The byte behind the last.
        end: usize,
    },
    /// Something that is more than one plain text: reasoning, a tool call, several choices.
    Other,
}

/// One event of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkView {
    /// Some choice carries output: text, reasoning, a refusal, a tool call.
    pub has_content: bool,
    /// What that output is.
    pub said: Said,
    /// There are choices, and all they say is the role.
    pub role_only: bool,
    /// The token counts, where the event carries them.
    pub usage: Option<Usage>,
    /// The output tokens, of an event that tells those alone.
    pub output_tokens: Option<u64>,
    /// The event is there for the usage alone: no choices.
    pub is_usage_only: bool,
    /// The end: the marker `[DONE]`, or the event that is the last.
    pub is_done: bool,
    /// An error in place of content.
    pub is_error: bool,
    /// Some choice tells why it ended.
    pub finish_reason: bool,
}

impl ChunkView {
    /// Reads the data of one event of a chat or completions stream.
    pub fn parse(data: &[u8]) -> ChunkView {
        Self::read(data, Grammar::Choices)
    }

    /// Reads the data of one event.
    pub fn read(data: &[u8], grammar: Grammar) -> ChunkView {
        let skipped = data.len() - data.trim_ascii_start().len();
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            return ChunkView { is_done: true, ..ChunkView::default() };
        }
        let mut found = Found::default();
        // Of a cut or malformed event that much counts which stands before the fault.
        let reader = &mut Reader::new(data);
        let _ = match grammar {
            Grammar::Choices => found.chunk(reader, false),
            Grammar::TokenIds => found.chunk(reader, true),
            Grammar::Messages => found.message(reader),
            Grammar::Responses => found.response_event(reader),
            Grammar::Cohere => found.cohere(reader),
        };
        let Counts { usage, output } = found.counts;
        ChunkView {
            has_content: found.said != Said::Nothing,
            said: found.said.moved_by(skipped),
            role_only: found.role && found.said == Said::Nothing && !found.finish,
            usage,
            output_tokens: output.filter(|_| usage.is_none()),
            is_usage_only: found.choices == Some(0) && usage.is_some(),
            is_done: found.done,
            is_error: found.error,
            finish_reason: found.finish,
        }
    }
}

impl Said {
    fn moved_by(self, bytes: usize) -> Self {
        match self {
            Said::Text { start, end } => Said::Text { start: start + bytes, end: end + bytes },
            other => other,
        }
    }
}

/// The token counts of an answer that was not streamed.
pub fn usage_of_response(body: &[u8]) -> Option<Usage> {
    let mut reader = Reader::new(body);
    let mut usage = None;
    let walked = reader.object(|key, reader| {
        if key == b"usage" {
            usage = reader.usage()?.usage;
            return Ok(());
        }
        reader.skip()
    });
    walked.ok().and(usage)
}

/// Decides which events of a stream the client must not see: the one usage event that the
/// gateway asked for on its own account.
#[derive(Clone, Copy, Debug)]
pub struct UsageFilter {
    injected: bool,
}

impl UsageFilter {
    /// `injected`: the request was changed by [`Splice::include_usage`](crate::Splice::include_usage).
    pub const fn new(injected: bool) -> Self {
        Self { injected }
    }

    /// Whether this event is to be dropped.
    pub const fn drops(&self, chunk: &ChunkView) -> bool {
        self.injected && chunk.is_usage_only
    }
}

/// The token counts of a stream, out of all its events.
///
/// Counts that stand beside choices are totals so far: the last one holds. Events for usage
/// alone close the count; llama.cpp sends one for each choice, with that choice's tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageMeter {
    running: Option<Usage>,
    closing: Option<Usage>,
}

impl UsageMeter {
    /// Takes note of one event.
    pub fn observe(&mut self, chunk: &ChunkView) {
        if let (Some(output), Some(running)) = (chunk.output_tokens, &mut self.running) {
            running.completion_tokens = output;
        }
        let Some(mut usage) = chunk.usage else { return };
        if !chunk.is_usage_only {
            self.running = Some(usage);
            return;
        }
        let before = self.closing.map_or(0, |usage| usage.completion_tokens);
        usage.completion_tokens = usage.completion_tokens.saturating_add(before);
        self.closing = Some(usage);
    }

    /// The counts as far as they were told.
    pub fn total(&self) -> Option<Usage> {
        self.closing.or(self.running)
    }
}

/// What was seen so far.
#[derive(Default)]
struct Found {
    said: Said,
    role: bool,
    finish: bool,
    done: bool,
    error: bool,
    choices: Option<usize>,
    counts: Counts,
}

#[cfg(test)]
mod tests;
