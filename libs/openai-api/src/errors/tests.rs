use serde_json::{Value, json};

use super::*;
use domain::RejectReason;

const CODES: [ErrorCode; 17] = [
    ErrorCode::InvalidRequest,
    ErrorCode::InvalidApiKey,
    ErrorCode::ModelAccessDenied,
    ErrorCode::ModelNotFound,
    ErrorCode::RouteNotFound,
    ErrorCode::MethodNotAllowed,
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

fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("valid JSON")
}

#[test]
fn every_error_has_the_four_members_and_a_code_that_is_a_string() {
    for code in CODES {
        let body = parsed(&ApiError::new(code, "what to do").body_openai());
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
    let kind = |code| parsed(&ApiError::new(code, "m").body_openai())["error"]["type"].clone();
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
    let event = error.error_event_openai();
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
    assert_eq!(error.status(), 400);
    let expected = json!({"error": {
        "message": "'model' is missing; name the model to use",
        "type": "invalid_request_error",
        "param": "model",
        "code": "invalid_request",
    }});
    assert_eq!(parsed(&error.body_openai()), expected);
}

#[test]
fn a_rejection_by_the_router_becomes_its_answer() {
    let rejected = |reason| ApiError::from(&Rejected { reason, retry_after: None });
    let unknown = rejected(RejectReason::UnknownModel);
    assert_eq!((unknown.status(), unknown.param.as_deref()), (404, Some("model")));
    assert_eq!(rejected(RejectReason::NoReadyBackend).status(), 502);
}
