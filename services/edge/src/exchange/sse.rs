//! An event stream in passing: what its events say, and the one that is left out.

use std::collections::VecDeque;

use bytes::Bytes;
use domain::Usage;
use openai_api::{
    ChunkView, FrameKind, Grammar, Said, SseFrame, SseSplitter, UsageFilter, UsageMeter,
    response_id,
};
use serde::Deserialize;

/// Bytes of an answer's text that are kept to be keyed: far more than a turn has.
const MAX_TEXT_BYTES: usize = 256 * 1024;

/// Reads events and hands their bytes on.
pub(super) struct EventReader {
    grammar: Grammar,
    splitter: SseSplitter,
    filter: UsageFilter,
    /// Bytes fed and not yet handed on or left out: the beginning of an event.
    pending: usize,
    /// Events with data so far.
    count: u64,
    contents: u32,
    usage: UsageMeter,
    done: bool,
    finish_reason: bool,
    error: Option<EngineError>,
    /// The last bytes handed on may be in the middle of an event.
    sent_part: bool,
    /// The text so far, where it is wanted and there was nothing else.
    text: Option<Vec<u8>>,
    response_id: ResponseId,
}

/// The id of the response that a stream is.
enum ResponseId {
    /// Nobody asks.
    Unwanted,
    /// It is looked for.
    Wanted,
    /// It is there, and not yet taken.
    Found(Box<str>),
}

/// Whose fault an error event says it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineError {
    Client,
    Server,
}

impl EventReader {
    /// `keep_text`: the answer's text is wanted at its end.
    pub(super) fn new(grammar: Grammar, drop_usage: bool, keep_text: bool) -> Self {
        Self {
            grammar,
            splitter: SseSplitter::default(),
            filter: UsageFilter::new(drop_usage),
            pending: 0,
            count: 0,
            contents: 0,
            usage: UsageMeter::default(),
            done: false,
            finish_reason: false,
            error: None,
            sent_part: false,
            text: keep_text.then(Vec::new),
            response_id: ResponseId::Unwanted,
        }
    }

    /// Takes one read; what may go on is added to `out`.
    pub(super) fn read(&mut self, bytes: Bytes, out: &mut VecDeque<Bytes>) {
        let before = out.len();
        let starts_with_event = self.pending == 0;
        self.pending += bytes.len();
        let (mut complete, mut left_out) = (0, false);
        let mut next = self.splitter.feed(bytes.clone()).next();
        while let Some(frame) = next {
            complete += frame.bytes.len();
            if self.observe(&frame) {
                left_out = true;
            } else {
                out.push_back(frame.bytes);
            }
            next = self.splitter.next_frame();
        }
        self.pending -= complete;
        // Whole events of one read go on in one piece.
        if starts_with_event && !left_out && out.len() > before + 1 {
            out.truncate(before);
            out.push_back(bytes.slice(..complete));
        }
    }

    /// The stream has ended. An event that has not goes on as it is if the answer is one with it;
    /// of one that broke off it would be taken for the beginning of the error event that follows.
    pub(super) fn finish(&mut self, out: &mut VecDeque<Bytes>) {
        let Some(frame) = self.splitter.finish() else { return };
        self.pending = 0;
        let (sent_part, had_error, count) = (self.sent_part, self.error.is_some(), self.count);
        let left_out = self.observe(&frame);
        if left_out || !self.is_complete() {
            (self.sent_part, self.count) = (sent_part, count);
            return;
        }
        out.push_back(frame.bytes);
        // No reader heeds an event without its blank line, and an error must be heeded.
        if !had_error && self.error.is_some() {
            out.push_back(Bytes::from_static(b"\n\n"));
        }
    }

    /// Reads a frame; whether it is to be left out.
    fn observe(&mut self, frame: &SseFrame) -> bool {
        self.sent_part = false;
        match &frame.kind {
            FrameKind::Comment | FrameKind::Other => false,
            FrameKind::Oversize => {
                self.sent_part = true;
                self.contents = self.contents.max(1);
                self.text = None;
                false
            }
            FrameKind::Data(data) => {
                let chunk = ChunkView::read(data, self.grammar);
                self.count += 1;
                if matches!(self.response_id, ResponseId::Wanted)
                    && let Some(id) = response_id(data)
                {
                    self.response_id = ResponseId::Found(id.into());
                }
                self.done |= chunk.is_done;
                self.finish_reason |= chunk.finish_reason;
                self.contents = self.contents.saturating_add(u32::from(chunk.has_content));
                self.usage.observe(&chunk);
                if self.text.is_some() {
                    self.keep(chunk.said, data);
                }
                if chunk.is_error {
                    self.error.get_or_insert(EngineError::read(data));
                }
                self.filter.drops(&chunk)
            }
        }
    }

    /// Keeps what an event says, unless that is no plain text or too much.
    fn keep(&mut self, said: Said, data: &[u8]) {
        let Some(text) = &mut self.text else { return };
        match said {
            Said::Nothing => {}
            Said::Text { start, end } if text.len() + (end - start) <= MAX_TEXT_BYTES => {
                text.extend_from_slice(&data[start..end]);
            }
            Said::Text { .. } | Said::Other => self.text = None,
        }
    }

    /// The answer's text as it stood in JSON strings, if it is plain text and was to be kept.
    pub(super) fn take_text(&mut self) -> Option<Vec<u8>> {
        self.text.take()
    }

    /// The id of the response is wanted.
    pub(super) fn want_response_id(&mut self) {
        self.response_id = ResponseId::Wanted;
    }

    /// That id, once.
    pub(super) fn take_response_id(&mut self) -> Option<Box<str>> {
        match std::mem::replace(&mut self.response_id, ResponseId::Unwanted) {
            ResponseId::Found(id) => Some(id),
            other => {
                self.response_id = other;
                None
            }
        }
    }

    /// Events with data so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Events with content so far.
    pub(super) fn contents(&self) -> u32 {
        self.contents
    }

    /// Output tokens so far: as the engine counts them, else one for each event.
    pub(super) fn generated(&self) -> u32 {
        let counted = self.usage().map_or(0, |u| u.completion_tokens);
        u32::try_from(counted).unwrap_or(u32::MAX).max(self.contents)
    }

    /// What the engine has counted so far.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage.total()
    }

    /// Whether the end marker came.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the answer is one, even without the end marker.
    pub(super) fn is_complete(&self) -> bool {
        self.done || self.finish_reason || self.error.is_some()
    }

    /// Whether there is something to answer with: content, or an end without any.
    pub(super) fn is_committed(&self) -> bool {
        self.contents > 0 || self.done || self.finish_reason
    }

    /// The first error event.
    pub(super) fn error(&self) -> Option<EngineError> {
        self.error
    }

    /// Whether an event of ours needs a blank line before it.
    pub(super) fn has_sent_part(&self) -> bool {
        self.sent_part
    }
}

impl EngineError {
    /// A 4xx code makes it the client's, or one of the types that Anthropic gives those; 429 is the
    /// engine's way to say that it is full.
    fn read(data: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Event<'a> {
            #[serde(borrow)]
            error: Option<Detail<'a>>,
        }
        #[derive(Deserialize)]
        struct Detail<'a> {
            #[serde(borrow)]
            code: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow, rename = "type")]
            kind: Option<&'a serde_json::value::RawValue>,
        }
        let Some(detail) = serde_json::from_slice::<Event<'_>>(data).ok().and_then(|e| e.error)
        else {
            return EngineError::Server;
        };
        let code: Option<u16> = detail.code.and_then(|c| c.get().trim_matches('"').parse().ok());
        let kind = detail.kind.map(|kind| kind.get().trim_matches('"'));
        match (code, kind) {
            (Some(429), _) => EngineError::Server,
            (Some(code), _) if (400..500).contains(&code) => EngineError::Client,
            (Some(_), _) => EngineError::Server,
            (
                None,
                Some(
                    "invalid_request_error"
                    | "not_found_error"
                    | "permission_error"
                    | "request_too_large",
                ),
            ) => EngineError::Client,
            (None, _) => EngineError::Server,
        }
    }
}

#[cfg(test)]
mod tests;
