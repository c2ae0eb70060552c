//! The dialects that the matrix is played in.

use domain::ErrorCode;
use openai_api::ApiError;
use serde_json::Value;

use crate::testing::*;

/// A route, and what engines say there.
pub(super) struct Dialect {
    pub(super) path: &'static str,
    /// Two bodies of requests: one that streams, one that does not.
    bodies: [&'static str; 2],
    /// Events before the first content.
    pub(super) opening: &'static str,
    /// One event with content, of characters of several bytes.
    pub(super) token: &'static str,
    /// The event by which an engine says that it has failed, with what follows it.
    pub(super) failure: &'static str,
    /// An event that is cut off in its JSON and yet ends.
    pub(super) bad_json: &'static str,
    /// Usage and the end.
    pub(super) ending: &'static str,
    /// What of that is not for the client, as it did not ask for it.
    pub(super) hidden: &'static str,
    /// The last of what the client hears.
    pub(super) last: &'static str,
    /// An answer in one piece.
    pub(super) answer: &'static str,
    /// A word of every event and answer that tells usage; all tell of [`PROMPT_TOKENS`].
    pub(super) usage_word: &'static str,
    error: openai_api::Dialect,
    /// How an error event begins.
    pub(super) error_start: &'static str,
    error_end: &'static str,
}

/// What every engine counts.
pub(super) const PROMPT_TOKENS: u64 = 9;

impl Dialect {
    pub(super) fn body(&self, stream: bool) -> &'static str {
        self.bodies[usize::from(!stream)]
    }

    /// A good answer.
    pub(super) fn good(&self, stream: bool) -> Vec<Step> {
        match stream {
            true => events(&[self.opening, self.token, self.ending]),
            false => vec![answer("200 OK", JSON, self.answer)],
        }
    }

    /// Why this is not the gateway's own answer with that error, if it is not.
    pub(super) fn is_refusal(&self, reply: &Reply, code: ErrorCode) -> Result<(), String> {
        let status = ApiError::new(code, "").status(self.error);
        let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let is_code = match self.error {
            openai_api::Dialect::Anthropic => {
                body["type"] == "error" && body["error"]["type"].is_string()
            }
            _ => body["error"]["code"] == code.as_str(),
        };
        let right = is_code && reply.status == status && reply.whole;
        right.then_some(()).ok_or_else(|| format!("no {}", code.as_str()))
    }

    /// Why this is not what ends a stream for that reason after so many events, if it is not.
    pub(super) fn is_error_end(
        &self,
        end: &str,
        code: ErrorCode,
        events: usize,
    ) -> Result<(), String> {
        let data = end.starts_with(self.error_start).then(|| end.split_once("data: ")).flatten();
        let data = data.and_then(|(_, data)| data.strip_suffix(self.error_end));
        let data = data.ok_or("no error event, or not the end after it")?;
        let data: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        let right = match self.error {
            openai_api::Dialect::Anthropic => {
                data["type"] == "error" && data["error"]["type"].is_string()
            }
            openai_api::Dialect::Responses => {
                data["code"] == code.as_str() && data["sequence_number"] == events
            }
            _ => data["error"]["code"] == code.as_str(),
        };
        right.then_some(()).ok_or_else(|| format!("no {} at {events}: {data}", code.as_str()))
    }
}

/// A header that engines send with documents.
pub(super) const JSON: &str = "content-type: application/json\r\n";

pub(super) const CHAT: Dialect = Dialect {
    path: "/v1/chat/completions",
    bodies: [STREAM, WHOLE],
    opening: ROLE,
    token: "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"é😀\"}}]}\n\n",
    failure: "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\ndata: [DONE]\n\n",
    bad_json: "data: {\"id\":\"1\",\"choices\":[{\"index\":\n\n",
    ending: "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
    hidden: "data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\n",
    last: DONE,
    answer: r#"{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"é😀"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#,
    usage_word: "\"prompt_tokens\"",
    error: openai_api::Dialect::OpenAi,
    error_start: "data: {\"error\":",
    error_end: "\n\ndata: [DONE]\n\n",
};

pub(super) const MESSAGES: Dialect = Dialect {
    path: "/v1/messages",
    bodies: [
        r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":true}"#,
        r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#,
    ],
    opening: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"1\",\"usage\":{\"input_tokens\":9,\"output_tokens\":0}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n",
    token: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"é😀\"}}\n\n",
    failure: "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"m\"}}\n\n",
    bad_json: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":\n\n",
    ending: "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":9,\"output_tokens\":2}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    hidden: "",
    last: "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    answer: r#"{"id":"1","type":"message","role":"assistant","content":[{"type":"text","text":"é😀"}],"model":"m","stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":2}}"#,
    usage_word: "\"input_tokens\"",
    error: openai_api::Dialect::Anthropic,
    error_start: "event: error\ndata: ",
    error_end: "\n\n",
};

pub(super) const RESPONSES: Dialect = Dialect {
    path: "/v1/responses",
    bodies: [r#"{"model":"m","input":"hi","stream":true}"#, r#"{"model":"m","input":"hi"}"#],
    opening: "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"object\":\"response\",\"usage\":null},\"sequence_number\":0,\"type\":\"response.created\"}\n\n",
    token: "event: response.output_text.delta\ndata: {\"delta\":\"é😀\",\"sequence_number\":1,\"type\":\"response.output_text.delta\"}\n\n",
    failure: "event: response.failed\ndata: {\"response\":{\"id\":\"resp_1\"},\"type\":\"response.failed\"}\n\n",
    bad_json: "event: response.output_text.delta\ndata: {\"delta\":\n\n",
    ending: "event: response.completed\ndata: {\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":9,\"output_tokens\":2}},\"sequence_number\":2,\"type\":\"response.completed\"}\n\n",
    hidden: "",
    last: "event: response.completed\ndata: {\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":9,\"output_tokens\":2}},\"sequence_number\":2,\"type\":\"response.completed\"}\n\n",
    answer: r#"{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"é😀"}]}],"usage":{"input_tokens":9,"output_tokens":2}}"#,
    usage_word: "\"input_tokens\"",
    error: openai_api::Dialect::Responses,
    error_start: "event: error\ndata: ",
    error_end: "\n\n",
};
