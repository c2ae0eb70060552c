//! The static mode: one canned answer, ready before the request came.

use bytes::Bytes;
use http::{Response, StatusCode};
use memchr::memmem;

use super::body::DoubleBody;
use super::request::Dialect;
use super::routes::{EVENT_STREAM, Exchange, JSON, respond};
use super::wire::{Usage, Wire};

/// The words of the canned answer, an event each.
const WORDS: [&str; 2] = ["Hello", " there"];

/// The canned answers of one endpoint.
#[derive(Debug)]
pub(crate) struct Canned {
    stream: Bytes,
    /// Where the stream's second event begins.
    first_event: usize,
    json: Bytes,
}

impl Canned {
    /// For a model of this name.
    pub(crate) fn new(dialect: Dialect, model: &str, created: u64) -> Self {
        let wire = Wire::new(dialect, "static", created, model);
        let mut stream = String::new();
        wire.content(&mut stream, 0, (WORDS[0], 0), false, false, None);
        let first_event = stream.len();
        wire.content(&mut stream, 0, (WORDS[1], 0), true, true, None);
        wire.done(&mut stream);
        let usage = Usage { prompt_tokens: 1, completion_tokens: 2, ..Usage::default() };
        let json = wire.answer(&[WORDS.concat()], usage);
        Self { stream: stream.into(), first_event, json: json.into() }
    }
}

/// Answers without looking at more of the body than whether it asks for a stream.
pub(crate) fn answer(exchange: &Exchange<'_>, dialect: Dialect) -> Response<DoubleBody> {
    let canned = exchange.engine.canned(dialect);
    let (plan, control) = (&exchange.plan, exchange.control);
    if asks_for_stream(&exchange.body) {
        let stream = canned.stream.clone();
        let body = DoubleBody::chunked_with_faults(stream, canned.first_event, plan, control);
        return respond(StatusCode::OK, Some(EVENT_STREAM), body);
    }
    let body = DoubleBody::with_faults(canned.json.clone(), plan, control);
    respond(StatusCode::OK, Some(JSON), body)
}

/// Whether somewhere in the body stands `"stream": true`. Text that quotes it is escaped in JSON
/// and does not count.
pub(crate) fn asks_for_stream(body: &[u8]) -> bool {
    const KEY: &[u8] = b"\"stream\"";
    memmem::find_iter(body, KEY).any(|at| {
        let rest = body[at + KEY.len()..].trim_ascii_start();
        let value = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        value.is_some_and(|value| value.starts_with(b"true"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_asked_for_by_the_field_alone() {
        for (body, asks) in [
            (r#"{"stream":true}"#, true),
            (r#"{"a":1, "stream" : true}"#, true),
            (r#"{"stream":false}"#, false),
            (r#"{"stream_options":{}}"#, false),
            (r#"{"content":"\"stream\":true"}"#, false),
            ("", false),
        ] {
            assert_eq!(asks_for_stream(body.as_bytes()), asks, "{body}");
        }
    }
}
