//! Errors as vLLM words and shapes them.

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

impl EngineError {
    /// A field whose value the engine cannot serve.
    pub(crate) fn bad_request(param: &str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.into(),
            param: Some(param.to_owned()),
        }
    }

    /// A conversation without a message, which no chat template can render.
    pub(crate) fn empty_conversation() -> Self {
        Self {
            param: None,
            ..Self::bad_request(
                "",
                "Cannot apply chat template to an empty conversation. Provide at least one message.",
            )
        }
    }

    /// A prompt that cannot be rendered or tokenised.
    pub(crate) fn unrenderable(message: impl Into<String>) -> Self {
        Self { param: None, ..Self::bad_request("", message) }
    }

    /// A body that does not have the shape of the request: `location` is the path to the field.
    pub(crate) fn validation(kind: &str, location: &str, message: &str, input: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "Bad Request",
            message: format!(
                "1 validation error:\n  {{'type': '{kind}', 'loc': '{location}', \
                 'msg': '{message}', 'input': '{input}'}}"
            ),
            param: Some(location.to_owned()),
        }
    }

    /// A model that this engine does not serve.
    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{asked}` does not exist. Valid aliases: {served}."),
            param: Some("model".to_owned()),
        }
    }

    /// A response that is not kept here.
    pub(crate) fn unknown_response(id: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "invalid_request_error",
            message: format!("Response with id '{id}' not found."),
            param: Some("response_id".to_owned()),
        }
    }

    /// A response that is kept and no longer in course.
    pub(crate) fn not_cancellable() -> Self {
        Self {
            kind: "invalid_request_error",
            ..Self::bad_request("response_id", "Cannot cancel a synchronous response.")
        }
    }

    /// A failure of the engine's own, as a fault asks for it.
    pub(crate) fn injected(status: StatusCode) -> Self {
        let (kind, message) = match status.as_u16() {
            429 => ("RateLimitError", "Too many requests."),
            503 => ("ServiceUnavailableError", "The engine's queue is full."),
            _ => ("InternalServerError", "The engine failed."),
        };
        Self { status, kind, message: message.to_owned(), param: None }
    }

    /// The same in Anthropic's form.
    pub(crate) fn anthropic_body(&self) -> Bytes {
        let error = json!({"type": self.kind, "message": self.message});
        Bytes::from(json!({"type": "error", "error": error}).to_string())
    }

    /// The same in Cohere's form, with the request's id if it has one.
    pub(crate) fn cohere_body(&self, id: Option<&str>) -> Bytes {
        let body = match id {
            Some(id) => json!({"message": self.message, "id": id}),
            None => json!({"message": self.message}),
        };
        Bytes::from(body.to_string())
    }

    /// The JSON body.
    pub(crate) fn body(&self) -> Bytes {
        let body = json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }});
        Bytes::from(body.to_string())
    }
}
