//! Parts of requests, with problems as rejections.

use std::sync::Arc;

use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use config_store::Revision;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api::Api;
use super::auth::Author;
use super::problem::{Code, Problem};

/// Bytes of a body that are read: the largest document has a few hundred lines.
pub(super) const MAX_BODY_BYTES: usize = 64 << 10;

/// The id at the end of a path.
pub(super) struct Id(pub(super) String);

impl FromRequestParts<Arc<Api>> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<Api>) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(error) => Err(Problem::new(Code::InvalidParameter, error.body_text()).at("id")),
        }
    }
}

/// The query; parameters that are not known are refused.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Api>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<Api>) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(error) => Err(Problem::new(Code::InvalidParameter, error.body_text()).at("query")),
        }
    }
}

impl FromRequestParts<Arc<Api>> for Author {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Problem> {
        // Set for every request that is let in.
        parts
            .extensions
            .get()
            .cloned()
            .ok_or_else(|| Problem::new(Code::Unauthorized, "a bearer token of this API is needed"))
    }
}

/// A JSON body of bounded size; fields that are not known are refused by its type.
pub(super) struct Document<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for Document<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<Api>) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let detail = "the body must be declared as application/json";
            return Err(Problem::new(Code::UnsupportedMediaType, detail).at("content-type"));
        }
        let bytes = read(request.into_body()).await?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            let code = match error.classify() {
                serde_json::error::Category::Data => Code::InvalidDocument,
                _ => Code::MalformedBody,
            };
            Problem::new(code, error.to_string())
        })
    }
}

async fn read(body: HttpBody) -> Result<bytes::Bytes, Problem> {
    axum::body::to_bytes(body, MAX_BODY_BYTES).await.map_err(|error| {
        let large = std::error::Error::source(&error)
            .is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
        if large {
            let detail = format!("at most {MAX_BODY_BYTES} bytes are read");
            Problem::new(Code::BodyTooLarge, detail)
        } else {
            Problem::new(Code::MalformedBody, "the body broke off")
        }
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// What a request demands of the document's present state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Nothing.
    None,
    /// `If-None-Match: *`: that there is none.
    Absent,
    /// `If-Match: *`: that there is one.
    Present,
    /// `If-Match: "7"`: that it is at one of these revisions.
    At(Vec<Revision>),
}

impl Condition {
    pub(super) fn is_none(&self) -> bool {
        *self == Condition::None
    }

    /// Whether the document, by its revision, is as demanded.
    pub(super) fn check(&self, present: Option<Revision>) -> Result<(), Problem> {
        let fits = match self {
            Condition::None => true,
            Condition::Absent => present.is_none(),
            Condition::Present => present.is_some(),
            Condition::At(revisions) => present.is_some_and(|p| revisions.contains(&p)),
        };
        if fits {
            return Ok(());
        }
        let detail = match present {
            Some(revision) => format!("it is at revision {revision}"),
            None => "it does not exist".to_owned(),
        };
        Err(Problem::new(Code::PreconditionFailed, detail).standing(present))
    }

    fn read(headers: &HeaderMap) -> Result<Self, Problem> {
        let (wanted, unwanted) = (text(headers, IF_MATCH)?, text(headers, IF_NONE_MATCH)?);
        match (wanted.as_deref(), unwanted.as_deref()) {
            (None, None) => Ok(Condition::None),
            (None, Some("*")) => Ok(Condition::Absent),
            (Some("*"), None) => Ok(Condition::Present),
            (Some(tags), None) => tags
                .split(',')
                .map(revision)
                .collect::<Option<_>>()
                .map(Condition::At)
                .ok_or_else(|| wrong("if-match", "entity tags as this API gave them, or `*`")),
            (_, Some(_)) => Err(wrong("if-none-match", "only `*`, and not with If-Match,")),
        }
    }
}

fn wrong(header: &str, allowed: &str) -> Problem {
    Problem::new(Code::InvalidParameter, format!("{allowed} is allowed")).at(header)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Result<Option<String>, Problem> {
    let mut joined: Option<String> = None;
    for value in headers.get_all(&name) {
        let value = value.to_str().map_err(|_| wrong(name.as_str(), "visible ASCII"))?.trim();
        joined = Some(joined.map_or_else(|| value.to_owned(), |text| format!("{text},{value}")));
    }
    Ok(joined)
}

fn revision(tag: &str) -> Option<Revision> {
    let digits = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok().map(Revision))?
}

impl FromRequestParts<Arc<Api>> for Condition {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Problem> {
        Self::read(&parts.headers)
    }
}

/// A document with the entity tag of its revision.
pub(super) struct Tagged<V> {
    status: StatusCode,
    revision: Revision,
    location: Option<String>,
    view: V,
}

impl<V> Tagged<V> {
    pub(super) fn ok(revision: Revision, view: V) -> Self {
        Self { status: StatusCode::OK, revision, location: None, view }
    }

    pub(super) fn put(created: bool, revision: Revision, view: V) -> Self {
        let status = if created { StatusCode::CREATED } else { StatusCode::OK };
        Self { status, revision, location: None, view }
    }

    /// Made under an id that the path did not have.
    pub(super) fn made(location: String, revision: Revision, view: V) -> Self {
        Self { status: StatusCode::CREATED, revision, location: Some(location), view }
    }
}

impl<V: Serialize> IntoResponse for Tagged<V> {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.view)).into_response();
        let headers = response.headers_mut();
        let tag = HeaderValue::try_from(format!("\"{}\"", self.revision));
        headers.extend(tag.ok().map(|tag| (ETAG, tag)));
        let location = self.location.and_then(|path| HeaderValue::try_from(path).ok());
        headers.extend(location.map(|path| (LOCATION, path)));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(pairs: &[(HeaderName, &'static str)]) -> Result<Condition, Code> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_static(value));
        }
        Condition::read(&headers).map_err(|problem| {
            assert!(problem.is(Code::InvalidParameter));
            Code::InvalidParameter
        })
    }

    #[test]
    fn conditions_are_read_from_their_headers() {
        assert_eq!(condition(&[]), Ok(Condition::None));
        assert_eq!(condition(&[(IF_NONE_MATCH, "*")]), Ok(Condition::Absent));
        assert_eq!(condition(&[(IF_MATCH, " * ")]), Ok(Condition::Present));
        let both = Condition::At(vec![Revision(7), Revision(9)]);
        assert_eq!(condition(&[(IF_MATCH, "\"7\", \"9\"")]), Ok(both));
        let both = Condition::At(vec![Revision(7), Revision(9)]);
        assert_eq!(condition(&[(IF_MATCH, "\"7\""), (IF_MATCH, "\"9\"")]), Ok(both));
    }

    #[test]
    fn odd_conditions_are_refused() {
        for odd in ["", "7", "W/\"7\"", "\"\"", "\"+7\"", "\"7\",", "\"99999999999999999999\""] {
            assert_eq!(condition(&[(IF_MATCH, odd)]), Err(Code::InvalidParameter), "{odd}");
        }
        assert_eq!(condition(&[(IF_NONE_MATCH, "\"7\"")]), Err(Code::InvalidParameter));
        let both = [(IF_MATCH, "\"7\""), (IF_NONE_MATCH, "*")];
        assert_eq!(condition(&both), Err(Code::InvalidParameter));
    }

    #[test]
    fn a_condition_holds_for_what_it_names() {
        let (seven, nine) = (Some(Revision(7)), Some(Revision(9)));
        let at = Condition::At(vec![Revision(7)]);
        assert!(at.check(seven).is_ok() && at.check(nine).is_err() && at.check(None).is_err());
        assert!(Condition::Present.check(seven).is_ok() && Condition::Present.check(None).is_err());
        assert!(Condition::Absent.check(None).is_ok() && Condition::Absent.check(seven).is_err());
        assert!(Condition::None.check(None).is_ok());
    }
}
