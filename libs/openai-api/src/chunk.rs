//! What one event of a streamed answer says, as far as the gateway cares: is there content, is
//! there usage, is it the end, is it an error.
//!
//! The scan is lenient and never fails: what it cannot make sense of says nothing. It builds no
//! values and allocates nothing, as it runs once per token.

use domain::Usage;

use crate::json::{Cursor, Malformed};

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

/// One event of a chat or completions stream.
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
    /// The event is there for the usage alone: no choices.
    pub is_usage_only: bool,
    /// The end marker, `[DONE]`.
    pub is_done: bool,
    /// An error in place of content.
    pub is_error: bool,
    /// Some choice tells why it ended.
    pub finish_reason: bool,
}

impl ChunkView {
    /// Reads the data of one event.
    pub fn parse(data: &[u8]) -> ChunkView {
        let skipped = data.len() - data.trim_ascii_start().len();
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            return ChunkView { is_done: true, ..ChunkView::default() };
        }
        let mut found = Found::default();
        // Of a cut or malformed event that much counts which stands before the fault.
        let _ = found.chunk(&mut Reader::new(data));
        ChunkView {
            has_content: found.said != Said::Nothing,
            said: found.said.moved_by(skipped),
            role_only: found.role && found.said == Said::Nothing && !found.finish,
            usage: found.usage,
            is_usage_only: found.choices == Some(0) && found.usage.is_some(),
            is_done: false,
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
            usage = reader.usage()?;
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
    /// `injected`: the request was changed by [`with_include_usage`](crate::with_include_usage).
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
    error: bool,
    choices: Option<usize>,
    usage: Option<Usage>,
}

impl Found {
    fn chunk(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"choices" => self.choices(reader),
            b"usage" => {
                self.usage = reader.usage()?;
                Ok(())
            }
            b"error" => {
                self.error |= reader.is_truthy()?;
                Ok(())
            }
            _ => reader.skip(),
        })
    }

    fn choices(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        if reader.cursor.peek() != Some(b'[') {
            return reader.skip();
        }
        reader.cursor.enter(b'[')?;
        let (mut first, mut count) = (true, 0);
        while reader.cursor.next_item(&mut first)? {
            count += 1;
            self.choice(reader)?;
        }
        self.choices = Some(count);
        Ok(())
    }

    fn choice(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"delta" | b"message" => self.delta(reader),
            b"text" => self.text(reader),
            b"finish_reason" => {
                self.finish |= reader.is_truthy()?;
                Ok(())
            }
            _ => reader.skip(),
        })
    }

    /// Takes note of a text; a second one in the same event makes it no plain answer.
    fn text(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let raw = reader.cursor.value()?;
        let value = &reader.text[raw.clone()];
        if !is_truthy(value) {
            return Ok(());
        }
        self.said = match (self.said, value) {
            (Said::Nothing, [b'"', ..]) => Said::Text { start: raw.start + 1, end: raw.end - 1 },
            _ => Said::Other,
        };
        Ok(())
    }

    fn delta(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"content" => self.text(reader),
            b"reasoning" | b"reasoning_content" | b"refusal" | b"tool_calls" | b"function_call"
            | b"audio" => {
                if reader.is_truthy()? {
                    self.said = Said::Other;
                }
                Ok(())
            }
            b"role" => {
                self.role = true;
                reader.skip()
            }
            _ => reader.skip(),
        })
    }
}

/// A cursor with the few readings that are needed here.
struct Reader<'a> {
    text: &'a [u8],
    cursor: Cursor<'a>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, cursor: Cursor::new(text) }
    }

    fn skip(&mut self) -> Result<(), Malformed> {
        self.cursor.skip_value()
    }

    /// Calls `visit` for each member, at its value, which `visit` must pass. Another value than
    /// an object has no members.
    fn object(
        &mut self,
        mut visit: impl FnMut(&[u8], &mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.cursor.peek() != Some(b'{') {
            return self.skip();
        }
        self.cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = self.cursor.next_key(&mut first)? {
            let text = self.text;
            visit(&text[key.inner], self)?;
        }
        Ok(())
    }

    /// Passes a value and tells whether Python would call it true: not null, false, zero or
    /// empty.
    fn is_truthy(&mut self) -> Result<bool, Malformed> {
        let raw = self.cursor.value()?;
        Ok(is_truthy(&self.text[raw]))
    }

    fn count(&mut self) -> Result<Option<u64>, Malformed> {
        let raw = self.cursor.value()?;
        Ok(std::str::from_utf8(&self.text[raw]).ok().and_then(|digits| digits.parse().ok()))
    }

    /// A usage object. One without a prompt count is none.
    fn usage(&mut self) -> Result<Option<Usage>, Malformed> {
        let mut usage = Usage::default();
        let mut prompt = None;
        self.object(|key, reader| {
            match key {
                b"prompt_tokens" => prompt = reader.count()?,
                b"completion_tokens" => usage.completion_tokens = reader.count()?.unwrap_or(0),
                b"prompt_tokens_details" => reader.object(|key, reader| {
                    if key == b"cached_tokens" {
                        usage.cached_tokens = reader.count()?;
                        return Ok(());
                    }
                    reader.skip()
                })?,
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        Ok(prompt.map(|prompt_tokens| Usage { prompt_tokens, ..usage }))
    }
}

fn is_truthy(value: &[u8]) -> bool {
    match value {
        b"null" | b"false" | b"0" | b"\"\"" | b"[]" | b"{}" => false,
        [b'[' | b'{', inner @ .., _] => !inner.trim_ascii().is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
