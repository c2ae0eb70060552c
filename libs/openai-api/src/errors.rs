//! The gateway's own errors in the OpenAI dialect. An engine's errors pass unchanged and never
//! come here.

use bytes::Bytes;
use domain::{ErrorCode, Rejected};
use serde::Serialize;

use crate::body::BodyError;

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

#[derive(Serialize)]
struct Body<'a> {
    error: Object<'a>,
}

#[derive(Serialize)]
struct Object<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
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

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.code.http_status()
    }

    /// The body: `{"error":{"message","type","param","code"}}`.
    pub fn body_openai(&self) -> Bytes {
        Bytes::from(self.json())
    }

    /// What ends a stream that cannot go on: an event that the SDKs raise as an error, then the
    /// end marker they wait for. Where part of an unfinished event was sent before, a blank line
    /// (`\n\n`) has to stand between.
    pub fn error_event_openai(&self) -> Bytes {
        Bytes::from(format!("data: {}\n\ndata: [DONE]\n\n", self.json()))
    }

    fn json(&self) -> String {
        let error = Object {
            message: &self.message,
            kind: kind_openai(self.code),
            param: self.param.as_deref(),
            code: self.code.as_str(),
        };
        serde_json::to_string(&Body { error }).expect("strings always serialise")
    }
}

/// The `type` of the OpenAI dialect.
const fn kind_openai(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidRequest
        | ErrorCode::InvalidApiKey
        | ErrorCode::ModelNotFound
        | ErrorCode::RouteNotFound
        | ErrorCode::MethodNotAllowed
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
