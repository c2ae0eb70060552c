//! An answer of the gateway's own that says no.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use domain::ErrorCode;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use openai_api::errors::Place;
use openai_api::headers::{RequestLimit, Retry};
use openai_api::{ApiError, Dialect};

use crate::limits::RateState;
use crate::response::EdgeBody;

/// The form that a request's errors have.
#[derive(Clone, Debug)]
pub(crate) struct ErrorForm {
    pub(crate) dialect: Dialect,
    /// The request's id, as its client knows it.
    pub(crate) request: HeaderValue,
}

impl ErrorForm {
    /// What ends a stream that has had so many events.
    pub(crate) fn event(&self, error: &ApiError, events: u64) -> Bytes {
        error.event(self.dialect, Place { request: self.request(), events })
    }

    fn request(&self) -> &str {
        self.request.to_str().unwrap_or_default()
    }
}

/// An error with what goes into the head of its answer.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: ApiError,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
    close: bool,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::new(error)
    }
}

impl Refusal {
    pub(crate) fn new(error: ApiError) -> Self {
        Self { error, retry_after: None, allow: None, close: false }
    }

    /// When it is worth trying again.
    pub(crate) fn retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// The methods that the route has.
    pub(crate) fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// The request's body was not read to its end, so its connection cannot be used on.
    pub(crate) fn closing(mut self, close: bool) -> Self {
        self.close |= close;
        self
    }

    pub(crate) fn status(&self, form: &ErrorForm) -> u16 {
        self.error.status(form.dialect)
    }

    /// Where the wait is a guess, as nobody knows when there will be room, clients are sent away
    /// for times that differ: those that came together would else come back together.
    fn spread(&self, wait: Duration) -> Duration {
        match self.error.code {
            ErrorCode::Overloaded | ErrorCode::ConcurrencyLimitExceeded => {
                let some = u32::from(random_byte());
                wait / 2 + wait * some / (2 * u32::from(u8::MAX))
            }
            _ => wait,
        }
    }

    pub(crate) fn into_response(self, form: &ErrorForm) -> Response<EdgeBody> {
        let mut response = json(self.error.body(form.dialect, form.request()));
        let code = self.status(form);
        *response.status_mut() =
            StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        if let Some(methods) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        for (name, value) in told(self.error.code) {
            headers.append(*name, HeaderValue::from_static(value));
        }
        if let Some(wait) = self.retry_after {
            add(headers, Retry::After(self.spread(wait)).headers());
        }
        response
    }
}

/// What the head of an answer with a code says of what would be taken.
const fn told(code: ErrorCode) -> &'static [(&'static str, &'static str)] {
    match code {
        ErrorCode::InvalidApiKey => &[("www-authenticate", "Bearer")],
        ErrorCode::UnsupportedContentCoding => &[("accept-encoding", "identity")],
        ErrorCode::UpgradeRequired => {
            &[("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
        }
        _ => &[],
    }
}

/// A JSON answer.
pub(crate) fn json(body: Bytes) -> Response<EdgeBody> {
    let mut response = Response::new(EdgeBody::full(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Adds the state of a tenant's request rate.
pub(crate) fn add_rate(headers: &mut HeaderMap, state: RateState, dialect: Dialect) {
    let limit = RequestLimit {
        limit: state.limit.into(),
        remaining: state.remaining.into(),
        reset: state.reset,
    };
    match dialect {
        Dialect::Anthropic => add(headers, limit.headers_anthropic(SystemTime::now())),
        _ => add(headers, limit.headers()),
    }
}

/// Any; the same each time where the system gives none.
fn random_byte() -> u8 {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

fn add(headers: &mut HeaderMap, pairs: impl IntoIterator<Item = (&'static str, String)>) {
    for (name, value) in pairs {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn wait(code: ErrorCode) -> (String, u64) {
        let refusal = Refusal::new(ApiError::new(code, "no"));
        let form = ErrorForm { dialect: Dialect::OpenAi, request: HeaderValue::from_static("r") };
        let response = refusal.retry_after(Some(Duration::from_secs(1))).into_response(&form);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        (header("retry-after"), header("retry-after-ms").parse().unwrap())
    }

    #[test]
    fn who_is_refused_for_want_of_room_comes_back_at_a_time_of_its_own() {
        for code in [ErrorCode::Overloaded, ErrorCode::ConcurrencyLimitExceeded] {
            let waits: HashSet<_> = (0..64).map(|_| wait(code)).collect();
            assert!(waits.len() > 16, "{waits:?}");
            let is_short = |(s, ms): &(String, u64)| s == "1" && (500..=1000).contains(ms);
            assert!(waits.iter().all(is_short), "{waits:?}");
        }
        let rate = wait(ErrorCode::RateLimitExceeded);
        assert_eq!(rate, ("1".to_owned(), 1000), "when it is known");
    }
}
