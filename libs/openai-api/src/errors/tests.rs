use serde_json::{Value, json};

use domain::RejectReason;

use super::*;
use crate::Grammar;

const CODES: [ErrorCode; 21] = [
    ErrorCode::InvalidRequest,
    ErrorCode::InvalidApiKey,
    ErrorCode::ModelAccessDenied,
    ErrorCode::ModelNotFound,
    ErrorCode::RouteNotFound,
    ErrorCode::MethodNotAllowed,
    ErrorCode::PreviousResponseUnusable,
    ErrorCode::UnsupportedContentCoding,
    ErrorCode::UnsupportedTransferCoding,
    ErrorCode::UpgradeRequired,
    ErrorCode::ContextLengthExceeded,
    ErrorCode::RateLimitExceeded,
    ErrorCode::ConcurrencyLimitExceeded,
    ErrorCode::RequestTooLarge,
    ErrorCode::RequestTimeout,
    ErrorCode::Overloaded,
    ErrorCode::UpstreamUnavailable,
    ErrorCode::UpstreamInterrupted,
    ErrorCode::Timeout,
    ErrorCode::ClientClosedRequest,
    ErrorCode::Internal,
];

const PLACE: Place<'static> = Place { request: "req-1", events: 7 };

fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("valid JSON")
}

#[test]
fn every_error_has_the_four_members_and_a_code_that_is_a_string() {
    for code in CODES {
        let body = parsed(&ApiError::new(code, "what to do").body(Dialect::OpenAi, "req-1"));
        let error = body["error"].as_object().expect("an object");
        assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
        assert_eq!(error["code"], code.as_str());
        assert_eq!(error["message"], "what to do");
        assert_eq!(error["param"], Value::Null);
        assert!(error["type"].is_string());
    }
}

#[test]
fn types_are_the_ones_the_sdks_know() {
    let kind = |code| {
        parsed(&ApiError::new(code, "m").body(Dialect::OpenAi, "req-1"))["error"]["type"].clone()
    };
    assert_eq!(kind(ErrorCode::InvalidApiKey), "invalid_request_error");
    assert_eq!(kind(ErrorCode::ModelAccessDenied), "permission_error");
    assert_eq!(kind(ErrorCode::ModelNotFound), "invalid_request_error");
    assert_eq!(kind(ErrorCode::RateLimitExceeded), "requests");
    assert_eq!(kind(ErrorCode::ConcurrencyLimitExceeded), "requests");
    assert_eq!(kind(ErrorCode::Overloaded), "server_error");
    assert_eq!(kind(ErrorCode::Timeout), "server_error");
}

#[test]
fn an_error_in_a_stream_is_one_event_and_then_the_end() {
    let error = ApiError::new(ErrorCode::UpstreamInterrupted, "line one\nline \"two\"");
    let event = error.event(Dialect::OpenAi, PLACE);
    let text = std::str::from_utf8(&event).expect("UTF-8");
    let json = text
        .strip_prefix("data: ")
        .and_then(|rest| rest.strip_suffix("\n\ndata: [DONE]\n\n"))
        .expect("one event, then the end");
    assert!(!json.contains('\n'));
    assert_eq!(parsed(json.as_bytes())["error"]["code"], "upstream_interrupted");
    assert!(crate::ChunkView::parse(json.as_bytes()).is_error);
}

#[test]
fn a_refused_body_names_its_field() {
    let refused = crate::BodyView::parse(b"{}", crate::RouteKind::Chat).expect_err("no model");
    let error = ApiError::from(refused);
    assert_eq!(error.status(Dialect::OpenAi), 400);
    let expected = json!({"error": {
        "message": "'model' is missing; name the model to use",
        "type": "invalid_request_error",
        "param": "model",
        "code": "invalid_request",
    }});
    assert_eq!(parsed(&error.body(Dialect::OpenAi, "req-1")), expected);
}

#[test]
fn a_rejection_by_the_router_becomes_its_answer() {
    let rejected = |reason| ApiError::from(&Rejected { reason, retry_after: None });
    let unknown = rejected(RejectReason::UnknownModel);
    assert_eq!((unknown.status(Dialect::OpenAi), unknown.param.as_deref()), (404, Some("model")));
    assert_eq!(rejected(RejectReason::NoReadyBackend).status(Dialect::OpenAi), 502);
}

#[test]
fn anthropic_errors_have_their_own_form_types_and_status() {
    for code in CODES {
        let error = ApiError::new(code, "what to do");
        let body = parsed(&error.body(Dialect::Anthropic, "req-1"));
        let members: Vec<_> = body.as_object().unwrap().keys().collect();
        assert_eq!(members, ["type", "error", "request_id"]);
        assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!("req-1")));
        assert_eq!(body["error"]["message"], "what to do");
        assert_eq!(body["error"].as_object().unwrap().len(), 2);
    }
    let seen = |code| {
        let error = ApiError::new(code, "m");
        let kind = parsed(&error.body(Dialect::Anthropic, ""))["error"]["type"].clone();
        (error.status(Dialect::Anthropic), kind.as_str().unwrap().to_owned())
    };
    for (code, status, kind) in [
        (ErrorCode::InvalidRequest, 400, "invalid_request_error"),
        (ErrorCode::InvalidApiKey, 401, "authentication_error"),
        (ErrorCode::ModelAccessDenied, 403, "permission_error"),
        (ErrorCode::ModelNotFound, 404, "not_found_error"),
        (ErrorCode::RequestTooLarge, 413, "request_too_large"),
        (ErrorCode::RateLimitExceeded, 429, "rate_limit_error"),
        (ErrorCode::Internal, 500, "api_error"),
        (ErrorCode::Overloaded, 529, "overloaded_error"),
        (ErrorCode::Timeout, 504, "timeout_error"),
    ] {
        assert_eq!(seen(code), (status, kind.to_owned()));
    }
}

#[test]
fn every_dialect_ends_a_stream_with_an_event_that_its_grammar_takes_for_an_error() {
    let error = ApiError::new(ErrorCode::UpstreamInterrupted, "line one\nline two");
    for (dialect, grammar, head, end) in [
        (Dialect::OpenAi, Grammar::Choices, "data: ", "\n\ndata: [DONE]\n\n"),
        (Dialect::Responses, Grammar::Responses, "event: error\ndata: ", "\n\n"),
        (Dialect::Anthropic, Grammar::Messages, "event: error\ndata: ", "\n\n"),
        (Dialect::Cohere, Grammar::Cohere, "data: ", "\n\ndata: [DONE]\n\n"),
    ] {
        let event = error.event(dialect, PLACE);
        let text = std::str::from_utf8(&event).unwrap();
        let data = text.strip_prefix(head).and_then(|rest| rest.strip_suffix(end)).unwrap();
        assert!(!data.contains('\n'), "{data}");
        assert!(crate::ChunkView::read(data.as_bytes(), grammar).is_error, "{data}");
    }
    let event = error.event(Dialect::Responses, PLACE);
    assert!(std::str::from_utf8(&event).unwrap().contains(r#""sequence_number":7"#));
}
