//! What the API answers when it does not do what was asked: RFC 9457, with stable codes.

use std::collections::BTreeMap;

use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use config_store::{Revision, StoreError};
use serde::Serialize;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, response};
use utoipa::{IntoResponses, ToSchema};

/// The media type of problems.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// Kinds of problems. Their names never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Code {
    /// No token, or none that is known.
    Unauthorized,
    /// No such route, or no such document.
    NotFound,
    /// The route has other methods.
    MethodNotAllowed,
    /// A part of the path, of the query or of a header is not of its form.
    InvalidParameter,
    /// The body is no JSON.
    MalformedBody,
    /// The body is not declared as JSON.
    UnsupportedMediaType,
    /// The body is larger than allowed.
    BodyTooLarge,
    /// The body is JSON and no valid document.
    InvalidDocument,
    /// A document of that id exists.
    Exists,
    /// The config file has a backend of that name, or another backend that address.
    Taken,
    /// Others depend on the document.
    InUse,
    /// The document is not at the state that `If-Match` or `If-None-Match` asks for.
    PreconditionFailed,
    /// The request replaces a document and does not tell which state of it.
    PreconditionRequired,
    /// The stored document cannot be read by this version.
    Unreadable,
    /// The store failed to read.
    StoreFailed,
    /// The change was not made, as the store takes none now.
    StoreUnavailable,
    /// The store has no room for more documents.
    StoreFull,
}

impl Code {
    const fn status(self) -> StatusCode {
        match self {
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::InvalidParameter | Code::MalformedBody => StatusCode::BAD_REQUEST,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::InvalidDocument => StatusCode::UNPROCESSABLE_ENTITY,
            Code::Exists | Code::Taken | Code::InUse => StatusCode::CONFLICT,
            Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Code::PreconditionRequired => StatusCode::PRECONDITION_REQUIRED,
            Code::Unreadable | Code::StoreFailed => StatusCode::INTERNAL_SERVER_ERROR,
            Code::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::StoreFull => StatusCode::INSUFFICIENT_STORAGE,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Code::Unauthorized => "A token is needed",
            Code::NotFound => "There is no such thing",
            Code::MethodNotAllowed => "The route has other methods",
            Code::InvalidParameter => "A parameter is not of its form",
            Code::MalformedBody => "The body is no JSON",
            Code::UnsupportedMediaType => "The body must be application/json",
            Code::BodyTooLarge => "The body is too large",
            Code::InvalidDocument => "The document is not valid",
            Code::Exists => "It exists already",
            Code::Taken => "The name or the address is another's",
            Code::InUse => "Others depend on it",
            Code::PreconditionFailed => "It is at another state",
            Code::PreconditionRequired => "If-Match or If-None-Match is needed",
            Code::Unreadable => "The stored document cannot be read",
            Code::StoreFailed => "The store failed",
            Code::StoreUnavailable => "The store takes no changes now",
            Code::StoreFull => "The store is full",
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Code::Unauthorized => "unauthorized",
            Code::NotFound => "not_found",
            Code::MethodNotAllowed => "method_not_allowed",
            Code::InvalidParameter => "invalid_parameter",
            Code::MalformedBody => "malformed_body",
            Code::UnsupportedMediaType => "unsupported_media_type",
            Code::BodyTooLarge => "body_too_large",
            Code::InvalidDocument => "invalid_document",
            Code::Exists => "exists",
            Code::Taken => "taken",
            Code::InUse => "in_use",
            Code::PreconditionFailed => "precondition_failed",
            Code::PreconditionRequired => "precondition_required",
            Code::Unreadable => "unreadable",
            Code::StoreFailed => "store_failed",
            Code::StoreUnavailable => "store_unavailable",
            Code::StoreFull => "store_full",
        }
    }
}

/// One problem, as it is sent.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// `urn:warmpath:problem:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// What the code means; the same for every problem of that code.
    title: &'static str,
    /// The status of the answer.
    status: u16,
    /// What a program decides by.
    code: Code,
    /// What happened here.
    detail: String,
    /// The field, parameter or header that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The revision that the document is at, where another one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:warmpath:problem:{}", code.as_str()),
            title: code.title(),
            status: code.status().as_u16(),
            code,
            detail: detail.into(),
            field: None,
            revision: None,
        }
    }

    /// Names the field that is wrong.
    pub(super) fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Tells the revision that the document is at.
    pub(super) fn standing(mut self, revision: Option<Revision>) -> Self {
        self.revision = revision.map(|r| r.0);
        self
    }

    /// Whether it is of that kind.
    pub(super) fn is(&self, code: Code) -> bool {
        self.code == code
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = error.to_string();
        let code = match error {
            StoreError::Conflict { actual, .. } => {
                return Self::new(Code::PreconditionFailed, detail).standing(actual);
            }
            StoreError::Invalid { .. } => Code::InvalidDocument,
            StoreError::Full { .. } => Code::StoreFull,
            StoreError::Document { .. } => Code::Unreadable,
            StoreError::NotWritten(_) | StoreError::Broken(_) | StoreError::Closed => {
                Code::StoreUnavailable
            }
            _ => Code::StoreFailed,
        };
        if matches!(code, Code::StoreUnavailable | Code::StoreFailed | Code::Unreadable) {
            tracing::error!(%error, "the store failed an admin request");
        }
        Self::new(code, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        // A struct of strings and numbers always serialises.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The problems of a kind of operation, for the document of the API.
fn described(codes: &[Code]) -> BTreeMap<String, RefOr<response::Response>> {
    let mut titles: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for code in codes {
        titles.entry(code.status().as_str().to_owned()).or_default().push(code.title());
    }
    let content = || ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    titles
        .into_iter()
        .map(|(status, titles)| {
            let response = ResponseBuilder::new()
                .description(titles.join(", or: "))
                .content(PROBLEM_JSON, content())
                .build();
            (status, RefOr::T(response))
        })
        .collect()
}

/// What any operation may answer.
const ANY: [Code; 4] =
    [Code::Unauthorized, Code::InvalidParameter, Code::Unreadable, Code::StoreFailed];

macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident: $($code:ident),*;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<response::Response>> {
                let mut codes = ANY.to_vec();
                codes.extend([$(Code::$code),*]);
                described(&codes)
            }
        }
    )*};
}

problems! {
    /// Problems of reading a list.
    Listing: StoreUnavailable;
    /// Problems of reading one document.
    Reading: NotFound, StoreUnavailable;
    /// Problems of making a document whose id may be taken.
    Creating: MalformedBody, UnsupportedMediaType, BodyTooLarge, InvalidDocument, Exists,
        StoreUnavailable, StoreFull;
    /// Problems of putting a document in place of another, or where none was.
    Replacing: NotFound, MalformedBody, UnsupportedMediaType, BodyTooLarge, InvalidDocument,
        PreconditionFailed, PreconditionRequired, StoreUnavailable, StoreFull;
    /// Problems of putting or changing an engine, whose name and address must be its own.
    Claiming: NotFound, MalformedBody, UnsupportedMediaType, BodyTooLarge, InvalidDocument, Taken,
        PreconditionFailed, PreconditionRequired, StoreUnavailable, StoreFull;
    /// Problems of changing a document that exists, or of deleting it.
    Changing: NotFound, InUse, PreconditionFailed, StoreUnavailable, StoreFull;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serialised_code_is_the_one_in_the_type() {
        let problem = Problem::new(Code::PreconditionFailed, "x");
        let value = serde_json::to_value(&problem).unwrap();
        assert_eq!(
            value["type"],
            format!("urn:warmpath:problem:{}", value["code"].as_str().unwrap())
        );
        assert_eq!(value["status"], 412);
    }

    #[test]
    fn statuses_shared_by_codes_are_one_answer() {
        let answers = Replacing::responses();
        assert_eq!(answers.len(), 11, "{:?}", answers.keys());
    }
}
