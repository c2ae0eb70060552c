//! The view of a request body: the top-level fields the gateway owns or reads, found in the
//! client's own bytes.
//!
//! **Invariant:** what is accepted here is what Python's `json.loads` accepts, and every field
//! reads as it does there: keys are compared unescaped, and a field of ours that stands twice is
//! refused, so that no two readers of one body can differ about it. Everything else about a
//! request is the engine's to judge, and a shape that is not understood costs knowledge
//! (`None`, `Unreadable`), never the request.

use std::borrow::Cow;
use std::ops::Range;

use domain::ErrorCode;

use crate::chunk::Grammar;
use crate::json::{self, Cursor, Malformed};

mod fields;
mod ids;
mod members;
mod read;

pub use fields::Field;
pub use ids::TokenIds;
pub use members::{Member, Object};
pub(crate) use read::unescape;

/// The most values that a prompt is parsed into, and the most prompts of one request. Each takes some hundred bytes of memory however
/// short it is written, so that a body of empty messages would take a hundred times its length;
/// a thousand messages with all their tools have a quarter of this.
pub const MOST_VALUES: usize = 1 << 16;

/// What kind of call a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// A chat: `/v1/chat/completions`.
    Chat,
    /// Several chats in one request: `messages` is a list of conversations.
    ChatBatch,
    /// `/v1/completions`.
    Completions,
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
    /// Token ids in and out: `/inference/v1/generate`.
    Generate,
    /// Cohere's chat.
    CohereChat,
    /// One text against several, scored by a generating model: `/generative_scoring`.
    GenerativeScoring,
    /// What fills no cache: embeddings, scores, tokens, rendering.
    ByLoad,
}

impl RouteKind {
    /// Whether the prompt decides where the request goes. The others go by load.
    pub const fn is_prefix_routed(self) -> bool {
        !matches!(self, RouteKind::ByLoad)
    }

    /// How the events of its streams are written.
    pub const fn grammar(self) -> Grammar {
        match self {
            RouteKind::Messages => Grammar::Messages,
            RouteKind::Responses => Grammar::Responses,
            RouteKind::Generate => Grammar::TokenIds,
            RouteKind::CohereChat => Grammar::Cohere,
            _ => Grammar::Choices,
        }
    }

    /// Whether usage is told in a stream only when `stream_options` ask for it.
    const fn has_stream_options(self) -> bool {
        matches!(self, RouteKind::Chat | RouteKind::Completions | RouteKind::Generate)
    }
}

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BodyError {
    /// The code of the answer; always a 400.
    pub code: ErrorCode,
    /// What is wrong and what to do about it.
    pub message: String,
    /// The field it is about.
    pub param: Option<&'static str>,
}

impl BodyError {
    fn invalid(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { code: ErrorCode::InvalidRequest, message: message.into(), param }
    }
}

impl From<Malformed> for BodyError {
    fn from(fault: Malformed) -> Self {
        let Malformed { at, what } = fault;
        Self::invalid(format!("the body is not a valid JSON object: {what} at byte {at}"), None)
    }
}

/// The prompt of a completions request. Of several there are at most [`MOST_VALUES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptField<'a> {
    /// Absent or null.
    None,
    /// One prompt as text.
    Text(Cow<'a, str>),
    /// Several prompts as text.
    Texts(Vec<Cow<'a, str>>),
    /// One prompt as token ids, as it seems: the first item is a number.
    Tokens(TokenIds<'a>),
    /// Several prompts as lists.
    TokenLists(Vec<TokenIds<'a>>),
    /// Something else, or too many: for the engine to judge.
    Unreadable,
}

/// Where one of our fields stands.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// How many members stand before it.
    pub(crate) index: usize,
    /// From the opening quote of the key to the end of the value.
    pub(crate) member: Range<usize>,
    /// The value alone.
    pub(crate) value: Range<usize>,
    /// The comma before the key, if any.
    pub(crate) comma_before: Option<usize>,
    /// The comma after the value, if any.
    pub(crate) comma_after: Option<usize>,
}

/// A request body with the fields that matter to the gateway.
#[derive(Clone, Debug)]
pub struct BodyView<'a> {
    /// The model asked for.
    pub model: Cow<'a, str>,
    /// Whether the answer is to be streamed. Read as leniently as the engines do (`1`, `"true"`).
    pub stream: bool,
    /// `stream_options.include_usage`, where it is given and not null.
    pub include_usage: Option<bool>,
    /// `stream_options.continuous_usage_stats`.
    pub continuous_usage: bool,
    /// Output tokens allowed per choice: `max_completion_tokens`, else `max_tokens`, else
    /// `max_output_tokens`. Larger numbers read as the largest.
    pub max_tokens: Option<u32>,
    /// Choices asked for.
    pub n: Option<u32>,
    /// Candidates generated on the server, of which `n` are returned.
    pub best_of: Option<u32>,
    /// The salt of the engine's block hashes. One that is no valid text reads as its JSON text.
    pub cache_salt: Option<Cow<'a, str>>,
    text: &'a str,
    kind: RouteKind,
    /// Our fields, in the body's order. A request has a handful.
    entries: Vec<(Field, Entry)>,
    members: usize,
    close: usize,
    stream_options: read::StreamOptions,
}

impl<'a> BodyView<'a> {
    /// Finds our fields in a body.
    ///
    /// # Errors
    /// The body is not UTF-8, not a JSON object, holds one of our fields twice, names no model,
    /// or is a chat without a single message.
    pub fn parse(bytes: &'a [u8], kind: RouteKind) -> Result<BodyView<'a>, BodyError> {
        let text = std::str::from_utf8(bytes).map_err(|fault| {
            let at = fault.valid_up_to();
            BodyError::invalid(format!("the body is not valid UTF-8 at byte {at}"), None)
        })?;
        let mut view = BodyView {
            model: Cow::Borrowed(""),
            stream: false,
            include_usage: None,
            continuous_usage: false,
            max_tokens: None,
            n: None,
            best_of: None,
            cache_salt: None,
            text,
            kind,
            entries: Vec::with_capacity(8),
            members: 0,
            close: 0,
            stream_options: read::StreamOptions::default(),
        };
        view.locate()?;
        view.read()?;
        Ok(view)
    }

    /// Walks the top level and notes where our fields stand.
    fn locate(&mut self) -> Result<(), BodyError> {
        let mut cursor = Cursor::new(self.text.as_bytes());
        cursor.enter(b'{')?;
        let mut first = true;
        let mut ours_before = false;
        while let Some(key) = cursor.next_key(&mut first)? {
            let comma_before = (self.members > 0).then(|| cursor.last_comma());
            if ours_before && let Some((_, entry)) = self.entries.last_mut() {
                entry.comma_after = comma_before;
            }
            let name = read::unescape(self.text, &key);
            let start = key.inner.start - 1;
            let value = cursor.value()?;
            let field = name.and_then(|name| Field::from_name(&name));
            ours_before = field.is_some();
            if let Some(field) = field {
                if self.entry(field).is_some() {
                    let name = field.as_str();
                    let message = format!("'{name}' is given twice; give it once");
                    return Err(BodyError::invalid(message, Some(name)));
                }
                let member = start..value.end;
                let index = self.members;
                let entry = Entry { index, member, value, comma_before, comma_after: None };
                self.entries.push((field, entry));
            }
            self.members += 1;
        }
        self.close = cursor.position() - 1;
        Ok(cursor.end()?)
    }

    /// Reads the values that are used on every request.
    fn read(&mut self) -> Result<(), BodyError> {
        self.model = self.required_model()?;
        if matches!(self.kind, RouteKind::Chat | RouteKind::ChatBatch | RouteKind::Messages)
            && self.raw(Field::Messages).is_some_and(read::is_empty_array)
        {
            let message = "'messages' is empty; a chat needs at least one message, and some \
                           engines never answer one without";
            return Err(BodyError::invalid(message, Some("messages")));
        }
        self.stream = self.raw(Field::Stream).and_then(read::boolean).unwrap_or(false);
        let limits = [Field::MaxCompletionTokens, Field::MaxTokens, Field::MaxOutputTokens];
        self.max_tokens = limits.into_iter().find_map(|field| self.count(field));
        self.n = self.count(Field::N);
        if let (RouteKind::Generate, Some(raw)) = (self.kind, self.raw(Field::SamplingParams)) {
            (self.max_tokens, self.n) = read::sampling(raw);
        }
        self.best_of = self.count(Field::BestOf);
        self.cache_salt = self
            .raw(Field::CacheSalt)
            .filter(|raw| raw.starts_with('"'))
            .map(|raw| read::text(raw).unwrap_or(Cow::Borrowed(raw)));
        self.stream_options =
            self.raw(Field::StreamOptions).map(read::stream_options).unwrap_or_default();
        self.include_usage = self.stream_options.include_usage.known();
        self.continuous_usage = self.stream_options.continuous_usage.known().unwrap_or(false);
        Ok(())
    }

    fn count(&self, field: Field) -> Option<u32> {
        self.raw(field).and_then(read::count)
    }

    fn required_model(&self) -> Result<Cow<'a, str>, BodyError> {
        let refuse = |message: &str| Err(BodyError::invalid(message, Some("model")));
        match self.raw(Field::Model) {
            None | Some("null") => refuse("'model' is missing; name the model to use"),
            Some(raw) => match read::text(raw) {
                Some(name) if !name.is_empty() => Ok(name),
                _ => refuse("'model' must be a string that is not empty"),
            },
        }
    }

    /// The kind of call the body was parsed for.
    pub fn kind(&self) -> RouteKind {
        self.kind
    }

    /// The JSON text of a field's value, as the client wrote it.
    pub fn raw(&self, field: Field) -> Option<&'a str> {
        self.span(field).map(|span| &self.text[span])
    }

    /// Where a field's value stands in the body, in bytes.
    pub fn span(&self, field: Field) -> Option<Range<usize>> {
        self.entry(field).map(|entry| entry.value.clone())
    }

    /// A field that is a string of valid text.
    pub fn text(&self, field: Field) -> Option<Cow<'a, str>> {
        self.raw(field).and_then(read::text)
    }

    /// The prompt of a completions request. Parsed at each call.
    pub fn prompt(&self) -> PromptField<'a> {
        self.raw(Field::Prompt).map_or(PromptField::None, read::prompt)
    }

    /// The fields that decide the prompt's tokens, parsed, as one object: of a chat, in whatever
    /// API, what a template can read, of completions the prompt. Parsed at each call.
    ///
    /// `None` if one of them cannot be held as a value (a lone surrogate, `NaN`, a number out of
    /// range, nesting beyond 128 levels), or if they hold more than [`MOST_VALUES`] values.
    /// [`prompt_bytes`](Self::prompt_bytes) works even then.
    pub fn value(&self) -> Option<serde_json::Value> {
        let mut object = serde_json::Map::new();
        let mut room = MOST_VALUES;
        for &field in self.kind.prompt_fields() {
            if let Some(raw) = self.raw(field) {
                room = room.checked_sub(json::count_values(raw, room)?)?;
                object.insert(field.as_str().to_owned(), serde_json::from_str(raw).ok()?);
            }
        }
        Some(serde_json::Value::Object(object))
    }

    /// The same fields as the JSON text the client wrote, the growing one last and open-ended:
    /// two turns of one conversation that are written alike share their beginning. In pieces, as
    /// the text may be long.
    pub fn prompt_bytes(&self) -> impl Iterator<Item = &'a [u8]> {
        let given = |&field: &Field| Some((field, self.raw(field)?));
        let fields: Vec<_> = self.kind.prompt_fields().iter().filter_map(given).collect();
        let count = fields.len();
        fields.into_iter().enumerate().flat_map(move |(at, (field, raw))| {
            let (raw, end) = if at + 1 == count { (open_ended(raw), "") } else { (raw, "\n") };
            [field.as_str(), "=", raw, end].map(str::as_bytes)
        })
    }

    /// The part of the prompt that grows from turn to turn, as the client wrote it; empty if there
    /// is none.
    pub fn growing(&self) -> &'a str {
        let field = self.kind.prompt_fields().last();
        field.and_then(|field| self.raw(*field)).unwrap_or_default()
    }

    /// Whether a usage event may be asked for on the gateway's own account: the answer streams,
    /// the client did not ask itself, and asking would add that one event and nothing else.
    /// (With `continuous_usage_stats` it would put usage into every event.) Options of a shape
    /// we do not know are left for the engine to refuse.
    pub fn can_inject_usage(&self) -> bool {
        let options = &self.stream_options;
        self.kind.has_stream_options()
            && self.stream
            && options.is_editable
            && options.include_usage != read::Flag::Odd
            && self.include_usage != Some(true)
            && options.continuous_usage != read::Flag::Odd
            && !self.continuous_usage
    }

    pub(crate) fn entry(&self, field: Field) -> Option<&Entry> {
        self.entries.iter().find(|(found, _)| *found == field).map(|(_, entry)| entry)
    }

    pub(crate) fn body_text(&self) -> &'a str {
        self.text
    }

    /// How many members the object has, ours and others.
    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// Where the closing brace stands.
    pub(crate) fn closing_brace(&self) -> usize {
        self.close
    }
}

/// A list or a string without its end.
fn open_ended(raw: &str) -> &str {
    let open = raw.strip_suffix(']').or_else(|| raw.strip_suffix('"')).unwrap_or(raw);
    open.trim_ascii_end()
}

#[cfg(test)]
mod tests;
