//! The one list of errors that the gateway itself can answer with.

use serde::{Deserialize, Serialize};

/// A stable code for each way a request can fail in the gateway. Dialects (OpenAI, later
/// Anthropic and gRPC) map from it in one place each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The body is not what the route takes.
    InvalidRequest,
    /// No key, or not a known one.
    InvalidApiKey,
    /// The key may not use this model.
    ModelAccessDenied,
    /// No backend serves that model.
    ModelNotFound,
    /// There is no such route.
    RouteNotFound,
    /// The route exists, the method does not.
    MethodNotAllowed,
    /// The backend that keeps the response gone on from cannot take the request.
    PreviousResponseUnusable,
    /// The body is compressed.
    UnsupportedContentCoding,
    /// The body comes in a transfer coding besides chunks.
    UnsupportedTransferCoding,
    /// The route takes another version of the protocol that the connection was to become.
    UpgradeRequired,
    /// The prompt and the output asked for do not fit the model.
    ContextLengthExceeded,
    /// The tenant sent more requests than its limit.
    RateLimitExceeded,
    /// The tenant has too many requests open.
    ConcurrencyLimitExceeded,
    /// The body is larger than the limit.
    RequestTooLarge,
    /// The body did not arrive in time.
    RequestTimeout,
    /// Everything that could take the request is full.
    Overloaded,
    /// No backend could be reached, or it broke before its first token.
    UpstreamUnavailable,
    /// The engine broke after its first token.
    UpstreamInterrupted,
    /// The engine took too long.
    Timeout,
    /// The client went away. Only logged.
    ClientClosedRequest,
    /// A fault of the gateway.
    Internal,
}

impl ErrorCode {
    /// The code as it stands in error bodies, logs and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorCode::InvalidRequest => "invalid_request",
            ErrorCode::InvalidApiKey => "invalid_api_key",
            ErrorCode::ModelAccessDenied => "model_access_denied",
            ErrorCode::ModelNotFound => "model_not_found",
            ErrorCode::RouteNotFound => "route_not_found",
            ErrorCode::MethodNotAllowed => "method_not_allowed",
            ErrorCode::PreviousResponseUnusable => "previous_response_unusable",
            ErrorCode::UnsupportedContentCoding => "unsupported_content_coding",
            ErrorCode::UnsupportedTransferCoding => "unsupported_transfer_coding",
            ErrorCode::UpgradeRequired => "upgrade_required",
            ErrorCode::ContextLengthExceeded => "context_length_exceeded",
            ErrorCode::RateLimitExceeded => "rate_limit_exceeded",
            ErrorCode::ConcurrencyLimitExceeded => "concurrency_limit_exceeded",
            ErrorCode::RequestTooLarge => "request_too_large",
            ErrorCode::RequestTimeout => "request_timeout",
            ErrorCode::Overloaded => "overloaded",
            ErrorCode::UpstreamUnavailable => "upstream_unavailable",
            ErrorCode::UpstreamInterrupted => "upstream_interrupted",
            ErrorCode::Timeout => "timeout",
            ErrorCode::ClientClosedRequest => "client_closed_request",
            ErrorCode::Internal => "internal_error",
        }
    }

    /// The HTTP status that goes with it.
    pub const fn http_status(self) -> u16 {
        match self {
            ErrorCode::InvalidRequest
            | ErrorCode::PreviousResponseUnusable
            | ErrorCode::ContextLengthExceeded => 400,
            ErrorCode::InvalidApiKey => 401,
            ErrorCode::ModelAccessDenied => 403,
            ErrorCode::ModelNotFound | ErrorCode::RouteNotFound => 404,
            ErrorCode::MethodNotAllowed => 405,
            ErrorCode::RequestTimeout => 408,
            ErrorCode::RequestTooLarge => 413,
            ErrorCode::UnsupportedContentCoding => 415,
            ErrorCode::UpgradeRequired => 426,
            ErrorCode::RateLimitExceeded | ErrorCode::ConcurrencyLimitExceeded => 429,
            ErrorCode::ClientClosedRequest => 499,
            ErrorCode::Internal => 500,
            ErrorCode::UnsupportedTransferCoding => 501,
            ErrorCode::UpstreamUnavailable | ErrorCode::UpstreamInterrupted => 502,
            ErrorCode::Overloaded => 503,
            ErrorCode::Timeout => 504,
        }
    }
}
