//! What passes between client and engine, and what never does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use domain::RequestId;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, StatusCode, request};

/// The request's id, in both directions.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same as Anthropic's clients look for it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// How long the answer took, as OpenAI's clients look for it.
const OPENAI_PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");
/// Which of its own attempts a request is, as the SDKs count them.
const X_STAINLESS_RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
/// Names the data-parallel rank to vLLM.
const X_DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Longest request id taken from a client.
const MAX_CLIENT_ID_BYTES: usize = 128;

/// Digits of a retry count that are believed. The SDKs try twice unless told otherwise.
const MAX_RETRY_COUNT_DIGITS: usize = 2;

/// Meant for one connection only (RFC 9110 section 7.6.1), besides what `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Ours to set or to withhold: credentials never reach an engine, and rank and priority are
/// the gateway's choice, not the client's.
const OWNED: [HeaderName; 10] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    COOKIE,
    HOST,
    CONTENT_LENGTH,
    EXPECT,
    ACCEPT_ENCODING,
    X_REQUEST_ID,
    X_DATA_PARALLEL_RANK,
    HeaderName::from_static("x-vllm-priority"),
];

/// The longest time that an engine may ask to be left alone for: as long as a broken one is.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// How long an engine wants to be left alone: seconds, or a date (RFC 9110 section 10.2.3).
pub(crate) fn retry_after(headers: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match value.bytes().all(|b| b.is_ascii_digit()) {
        // What is no number of 64 bits for its length is long enough.
        true if !value.is_empty() => Duration::from_secs(value.parse().unwrap_or(u64::MAX)),
        _ => httpdate::parse_http_date(value).ok()?.duration_since(wall).unwrap_or_default(),
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// The headers of a request to an engine, but for those that differ by attempt.
pub(crate) fn for_engine(client: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(client.len() + 4);
    let named = connection_options(client);
    for (name, value) in client {
        if HOP_BY_HOP.contains(name) || OWNED.contains(name) || is_named(&named, name) {
            continue;
        }
        headers.append(name.clone(), value.clone());
    }
    // Events must come one by one and readable: compressed ones would be neither.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

/// Adds what one attempt needs.
pub(crate) fn for_attempt(
    head: &mut request::Parts,
    base: &HeaderMap,
    id: HeaderValue,
    key: Option<&HeaderValue>,
    rank: Option<u16>,
) {
    head.headers = base.clone();
    head.headers.insert(X_REQUEST_ID, id);
    if let Some(key) = key {
        head.headers.insert(AUTHORIZATION, key.clone());
    }
    if let Some(rank) = rank {
        head.headers.insert(X_DATA_PARALLEL_RANK, HeaderValue::from(rank));
    }
}

/// Makes the head of an engine's answer one for the client: end-to-end headers as they are.
pub(crate) fn for_client(headers: &mut HeaderMap) {
    // In chunks it was read to their end, whatever length is given besides (RFC 9112 section 6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for name in connection_options(headers) {
        headers.remove(name);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Readies the head of an event stream: its length is not known in advance, and nothing on the
/// way may hold events back.
pub(crate) fn for_event_stream(headers: &mut HeaderMap) {
    headers.remove(CONTENT_LENGTH);
    let defaults = [(CACHE_CONTROL, "no-cache"), (X_ACCEL_BUFFERING, "no")];
    for (name, value) in defaults {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// Whether an answer is an event stream that can be read.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("text/event-stream") && !is_encoded(headers)
}

/// Whether a body is compressed, and so not for us to read.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    codings.any(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether a request's body comes in any transfer coding but chunks alone. The library reads
/// chunks, whatever is in them.
pub(crate) fn is_transfer_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_other = |v: &HeaderValue| !v.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(is_other) || codings.next().is_some()
}

/// Whether a header that is a list has a word in it, which is given in small letters.
pub(crate) fn lists(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    words(headers, name).any(|listed| listed == word)
}

fn connection_options(headers: &HeaderMap) -> Vec<String> {
    words(headers, CONNECTION).collect()
}

/// The words of a header that is a list, in small letters.
fn words(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = String> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(|word| word.trim().to_ascii_lowercase())
        .filter(|word| !word.is_empty())
}

fn is_named(options: &[String], name: &HeaderName) -> bool {
    options.iter().any(|option| option == name.as_str())
}

/// Mints request ids. They are unique over processes by a random part and in one by a counter.
#[derive(Debug)]
pub(crate) struct RequestIds {
    process: u64,
    next: AtomicU64,
}

impl RequestIds {
    /// # Errors
    /// When the system's random source is not available.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self { process: getrandom::u64()?, next: AtomicU64::new(0) })
    }

    pub(crate) fn mint(&self) -> RequestId {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        RequestId::new(format!("req-{:016x}{count:08x}", self.process))
    }
}

/// The id a client gave its request, if it is one to repeat: short, and printable ASCII, so that
/// it can forge no log line. It is a label, by which operators find it again, and nobody else.
pub(crate) fn client_request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(X_REQUEST_ID)?;
    let bytes = value.as_bytes();
    let printable = bytes.iter().all(|b| (0x20..0x7f).contains(b));
    (!bytes.is_empty() && bytes.len() <= MAX_CLIENT_ID_BYTES && printable).then(|| value.clone())
}

/// How often a client's SDK has sent this request before, if it tells a number to believe.
pub(crate) fn client_retries(headers: &HeaderMap) -> Option<u8> {
    let value = headers.get(X_STAINLESS_RETRY_COUNT)?.to_str().ok()?;
    let is_small =
        value.len() <= MAX_RETRY_COUNT_DIGITS && value.bytes().all(|b| b.is_ascii_digit());
    is_small.then(|| value.parse().ok())?
}

/// Tells how long an answer took until its head, on success and where there were too many
/// requests. An engine's own word stays.
pub(crate) fn add_processing_time(headers: &mut HeaderMap, status: StatusCode, took: Duration) {
    if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS {
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        headers.entry(OPENAI_PROCESSING_MS).or_insert_with(|| HeaderValue::from(millis));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn credentials_and_hop_by_hop_headers_never_reach_an_engine() {
        let client = map(&[
            ("authorization", "Bearer sk-wp-a-b"),
            ("x-api-key", "sk-wp-a-b"),
            ("cookie", "session=1"),
            ("proxy-authorization", "Basic x"),
            ("connection", "close, X-Secret-Hop"),
            ("x-secret-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("host", "gateway"),
            ("content-length", "12"),
            ("expect", "100-continue"),
            ("accept-encoding", "gzip, br"),
            ("x-request-id", "mine"),
            ("x-data-parallel-rank", "3"),
            ("x-vllm-priority", "-5"),
            ("content-type", "application/json"),
            ("traceparent", "00-1-2-01"),
            ("tracestate", "a=b"),
            ("x-session-id", "s"),
            ("user-agent", "curl"),
        ]);
        let sent = for_engine(&client);
        let mut names: Vec<_> = sent.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "accept-encoding",
            "content-type",
            "traceparent",
            "tracestate",
            "user-agent",
            "x-session-id",
        ];
        assert_eq!(names, expected);
        assert_eq!(sent[ACCEPT_ENCODING], "identity");
    }

    #[test]
    fn repeated_end_to_end_headers_pass_in_order() {
        let sent = for_engine(&map(&[("x-a", "1"), ("x-a", "2")]));
        let values: Vec<_> = sent.get_all("x-a").iter().collect();
        assert_eq!(values, ["1", "2"]);
    }

    #[test]
    fn an_answers_own_headers_pass_and_those_of_its_connection_do_not() {
        let mut headers = map(&[
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("set-cookie", "a=1"),
            ("retry-after", "7"),
            ("server", "uvicorn"),
        ]);
        for_client(&mut headers);
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["retry-after", "server", "set-cookie"]);
    }

    #[test]
    fn a_length_that_chunks_overrule_does_not_cut_an_answer_short() {
        let mut headers = map(&[("content-length", "2"), ("transfer-encoding", "chunked")]);
        for_client(&mut headers);
        assert!(headers.is_empty());
        let mut headers = map(&[("content-length", "2")]);
        for_client(&mut headers);
        assert_eq!(headers[CONTENT_LENGTH], "2");
    }

    #[test]
    fn only_short_printable_ids_are_taken_from_clients() {
        let id = |text: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(text).unwrap());
            client_request_id(&headers)
        };
        assert_eq!(id(b"trace-1 %0a").unwrap(), "trace-1 %0a");
        assert!(id(&[b'a'; 128]).is_some());
        assert!(id(&[b'a'; 129]).is_none());
        assert!(id(b"a\tb").is_none());
        assert!(id("é".as_bytes()).is_none());
        assert!(id(b"").is_none());
    }

    #[test]
    fn minted_ids_differ() {
        let ids = RequestIds::new().unwrap();
        assert_ne!(ids.mint(), ids.mint());
    }

    #[test]
    fn compressed_streams_are_not_read_as_events() {
        let kind = "text/event-stream; charset=utf-8";
        assert!(is_event_stream(&map(&[("content-type", kind)])));
        assert!(is_event_stream(&map(&[("content-type", kind), ("content-encoding", "identity")])));
        assert!(!is_event_stream(&map(&[("content-type", kind), ("content-encoding", "gzip")])));
        assert!(!is_event_stream(&map(&[("content-type", "application/json")])));
    }

    #[test]
    fn how_long_an_engine_wants_to_be_left_alone_is_read_and_bounded() {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |value: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
            retry_after(&headers, wall).map(|wait| wait.as_secs())
        };
        assert_eq!(read("7"), Some(7));
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("3600"), Some(60));
        assert_eq!(read("99999999999999999999999999"), Some(60));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10));
        assert_eq!(read("Sunday, 06-Nov-94 08:49:47 GMT"), Some(10));
        assert_eq!(read("Sun Nov  6 08:49:47 1994"), Some(10));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:27 GMT"), Some(0), "it is past");
        assert_eq!(read("Sat, 06 Nov 2094 08:49:37 GMT"), Some(60));
        for none in ["", " ", "-1", "1.5", "soon", "7, 8"] {
            assert_eq!(read(none), None, "{none}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), wall), None);
    }

    #[test]
    fn only_a_small_whole_number_of_retries_is_believed() {
        let read = |value: &str| client_retries(&map(&[("x-stainless-retry-count", value)]));
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("2"), Some(2));
        assert_eq!(read("99"), Some(99));
        for none in ["", " ", "100", "007", "-1", "+1", "1.5", "2, 3", "two", "\u{661}"] {
            assert_eq!(read(none), None, "{none}");
        }
        assert_eq!(client_retries(&HeaderMap::new()), None);
    }

    #[test]
    fn the_time_an_answer_took_is_told_in_whole_milliseconds() {
        let told = |status, micros| {
            let mut headers = HeaderMap::new();
            add_processing_time(&mut headers, status, Duration::from_micros(micros));
            headers.remove(OPENAI_PROCESSING_MS)
        };
        assert_eq!(told(StatusCode::OK, 999).unwrap(), "0");
        assert_eq!(told(StatusCode::CREATED, 61_001_999).unwrap(), "61001");
        assert_eq!(told(StatusCode::TOO_MANY_REQUESTS, 1000).unwrap(), "1");
        for none in
            [StatusCode::SWITCHING_PROTOCOLS, StatusCode::BAD_REQUEST, StatusCode::BAD_GATEWAY]
        {
            assert_eq!(told(none, 1000), None, "{none}");
        }
    }
}
