//! The gateway's own errors, in the dialect of the route. An engine's errors pass unchanged and
//! never come here.

use bytes::Bytes;
use domain::{ErrorCode, Rejected};
use serde::Serialize;

use crate::body::BodyError;

/// Whose form errors have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, for everything that has no form of its own.
    #[default]
    OpenAi,
    /// OpenAI's with the events of its Responses.
    Responses,
    /// Anthropic's.
    Anthropic,
    /// Cohere's.
    Cohere,
}

/// An error that the gateway answers with. The message tells the client what to do and carries
/// nothing of the inside: no address, path or key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The stable code; it decides status and type.
    pub code: ErrorCode,
    /// What is wrong and what to do about it.
    pub message: String,
    /// The request field it is about.
    pub param: Option<String>,
}

/// OpenAI's: `{"error":{"message","type","param","code"}}`.
#[derive(Serialize)]
struct OpenAi<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

/// The event of a Responses stream that tells of an error, and for clients that look for `error`
/// the same as they know it from other streams.
#[derive(Serialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type")]
    event: &'static str,
    code: &'static str,
    message: &'a str,
    param: Option<&'a str>,
    sequence_number: u64,
    error: OpenAiError<'a>,
}

/// Anthropic's: `{"type":"error","error":{"type","message"},"request_id"}`.
#[derive(Serialize)]
struct Anthropic<'a> {
    #[serde(rename = "type")]
    event: &'static str,
    error: AnthropicError<'a>,
    request_id: &'a str,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
}

/// Cohere's: `{"message","id"}`.
#[derive(Serialize)]
struct Cohere<'a> {
    message: &'a str,
    id: &'a str,
}

/// What ends a Cohere stream, with an error for a reason.
#[derive(Serialize)]
struct CohereEnd<'a> {
    #[serde(rename = "type")]
    event: &'static str,
    delta: CohereDelta<'a>,
}

#[derive(Serialize)]
struct CohereDelta<'a> {
    finish_reason: &'static str,
    error: &'a str,
}

/// The place in a stream that an error stands at.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The request's id, as its client knows it.
    pub request: &'a str,
    /// Events before it.
    pub events: u64,
}

impl ApiError {
    /// An error about the request as a whole.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), param: None }
    }

    /// Names the field it is about.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The HTTP status. Anthropic has one of its own for a service that is full.
    pub fn status(&self, dialect: Dialect) -> u16 {
        match (dialect, self.code) {
            (Dialect::Anthropic, ErrorCode::Overloaded) => 529,
            (_, code) => code.http_status(),
        }
    }

    /// The body. `request` is the request's id, as its client knows it.
    pub fn body(&self, dialect: Dialect, request: &str) -> Bytes {
        Bytes::from(match dialect {
            Dialect::OpenAi | Dialect::Responses => json(&OpenAi { error: self.openai() }),
            Dialect::Anthropic => json(&self.anthropic(request)),
            Dialect::Cohere => json(&Cohere { message: &self.message, id: request }),
        })
    }

    /// What ends a stream that cannot go on: an event that the SDKs take for an error, then the
    /// end marker where they wait for one. Where part of an unfinished event was sent before, a
    /// blank line (`\n\n`) has to stand between.
    pub fn event(&self, dialect: Dialect, place: Place<'_>) -> Bytes {
        Bytes::from(match dialect {
            Dialect::OpenAi => {
                format!("data: {}\n\ndata: [DONE]\n\n", json(&OpenAi { error: self.openai() }))
            }
            Dialect::Responses => {
                let event = ResponsesEvent {
                    event: "error",
                    code: self.code.as_str(),
                    message: &self.message,
                    param: self.param.as_deref(),
                    sequence_number: place.events,
                    error: self.openai(),
                };
                format!("event: error\ndata: {}\n\n", json(&event))
            }
            Dialect::Anthropic => {
                format!("event: error\ndata: {}\n\n", json(&self.anthropic(place.request)))
            }
            Dialect::Cohere => {
                let delta = CohereDelta { finish_reason: "ERROR", error: &self.message };
                let end = CohereEnd { event: "message-end", delta };
                format!("data: {}\n\ndata: [DONE]\n\n", json(&end))
            }
        })
    }

    fn openai(&self) -> OpenAiError<'_> {
        OpenAiError {
            message: &self.message,
            kind: kind_openai(self.code),
            param: self.param.as_deref(),
            code: self.code.as_str(),
        }
    }

    fn anthropic<'a>(&'a self, request: &'a str) -> Anthropic<'a> {
        let error = AnthropicError { kind: kind_anthropic(self.code), message: &self.message };
        Anthropic { event: "error", error, request_id: request }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers always serialise")
}

/// The `type` of the OpenAI dialect.
const fn kind_openai(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidRequest
        | ErrorCode::InvalidApiKey
        | ErrorCode::ModelNotFound
        | ErrorCode::RouteNotFound
        | ErrorCode::MethodNotAllowed
        | ErrorCode::PreviousResponseUnusable
        | ErrorCode::UnsupportedContentCoding
        | ErrorCode::UnsupportedTransferCoding
        | ErrorCode::UpgradeRequired
        | ErrorCode::ContextLengthExceeded
        | ErrorCode::RequestTooLarge
        | ErrorCode::RequestTimeout
        | ErrorCode::ClientClosedRequest => "invalid_request_error",
        ErrorCode::ModelAccessDenied => "permission_error",
        ErrorCode::RateLimitExceeded | ErrorCode::ConcurrencyLimitExceeded => "requests",
        ErrorCode::Overloaded
        | ErrorCode::UpstreamUnavailable
        | ErrorCode::UpstreamInterrupted
        | ErrorCode::Timeout
        | ErrorCode::Internal => "server_error",
    }
}

/// The `type` of the Anthropic dialect.
const fn kind_anthropic(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidRequest
        | ErrorCode::MethodNotAllowed
        | ErrorCode::PreviousResponseUnusable
        | ErrorCode::UnsupportedContentCoding
        | ErrorCode::UnsupportedTransferCoding
        | ErrorCode::UpgradeRequired
        | ErrorCode::ContextLengthExceeded
        | ErrorCode::ClientClosedRequest => "invalid_request_error",
        ErrorCode::InvalidApiKey => "authentication_error",
        ErrorCode::ModelAccessDenied => "permission_error",
        ErrorCode::ModelNotFound | ErrorCode::RouteNotFound => "not_found_error",
        ErrorCode::RequestTooLarge => "request_too_large",
        ErrorCode::RateLimitExceeded | ErrorCode::ConcurrencyLimitExceeded => "rate_limit_error",
        ErrorCode::Overloaded => "overloaded_error",
        ErrorCode::RequestTimeout | ErrorCode::Timeout => "timeout_error",
        ErrorCode::UpstreamUnavailable | ErrorCode::UpstreamInterrupted | ErrorCode::Internal => {
            "api_error"
        }
    }
}

impl From<BodyError> for ApiError {
    fn from(fault: BodyError) -> Self {
        Self { code: fault.code, message: fault.message, param: fault.param.map(str::to_owned) }
    }
}

impl From<&Rejected> for ApiError {
    fn from(rejected: &Rejected) -> Self {
        let code = rejected.reason.code();
        let param = (code == ErrorCode::ModelNotFound).then(|| "model".to_owned());
        Self { code, message: rejected.to_string(), param }
    }
}

#[cfg(test)]
mod tests;
