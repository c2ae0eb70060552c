//! What a tenant that asked for it is told about the choice made for its request.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::record::Record;

/// Adds `x-warmpath-*`: the backend, what was expected of its cache, what it found there if that
/// is known by now, the expected time to first token and the time the gateway took before it sent
/// the request.
pub(crate) fn add(headers: &mut HeaderMap, record: &Record) {
    let mut set = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    if let Some(backend) = &record.backend {
        set("x-warmpath-backend", backend.to_string());
    }
    if let Some(evidence) = &record.evidence {
        set("x-warmpath-matched-blocks", evidence.matched_blocks.to_string());
        set("x-warmpath-matched-tokens", evidence.predicted_cached_tokens.to_string());
        let ttft = evidence.predicted_ttft.as_secs_f64() * 1e3;
        set("x-warmpath-predicted-ttft-ms", format!("{ttft:.3}"));
    }
    // Known this early of answers that came whole.
    if let Some(cached) = record.usage.and_then(|usage| usage.cached_tokens) {
        set("x-warmpath-cached-tokens", cached.to_string());
    }
    if let Some(overhead) = record.overhead {
        set("x-warmpath-overhead-ms", format!("{:.3}", overhead.as_secs_f64() * 1e3));
    }
}
