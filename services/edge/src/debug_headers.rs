//! What a tenant that asked for it is told about the choice made for its request.

use domain::DecisionReason;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::record::Record;

/// Adds `x-warmpath-*`: the backend, what was expected of its cache, what it found there if that
/// is known by now, the expected time to first token, how much of it is the wait at the engine,
/// and the time the gateway took before it sent the request.
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
        // An edge that chose alone knows nothing of times: its zeros say nothing.
        if evidence.reason != DecisionReason::EdgeAlone {
            let ttft = evidence.predicted_ttft.as_secs_f64();
            set("x-warmpath-predicted-ttft-ms", millis(ttft));
            set("x-warmpath-predicted-queue-ms", millis(evidence.parts.queue_delay_seconds));
        }
    }
    // Known this early of answers that came whole.
    if let Some(cached) = record.usage.and_then(|usage| usage.cached_tokens) {
        set("x-warmpath-cached-tokens", cached.to_string());
    }
    if let Some(overhead) = record.overhead {
        set("x-warmpath-overhead-ms", millis(overhead.as_secs_f64()));
    }
}

fn millis(seconds: f64) -> String {
    format!("{:.3}", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use domain::{Evidence, EvidenceLevel, RequestId, ScoreParts};

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::metrics::{Families, ModelMetrics, OTHER_MODEL};

    fn told(reason: DecisionReason) -> HeaderMap {
        let families = Arc::new(Families::default());
        let other = ModelMetrics::new(&families, OTHER_MODEL);
        let (request, started) = (RequestId::new("r"), lifecycle::monotonic());
        let mut record = Record::new(families, other, request, Endpoint::Chat, started);
        record.evidence = Some(Evidence {
            matched_blocks: 2,
            predicted_cached_tokens: 32,
            predicted_ttft: Duration::from_millis(20),
            parts: ScoreParts { queue_delay_seconds: 0.0125, ..ScoreParts::default() },
            level: EvidenceLevel::Model,
            reason,
        });
        let mut headers = HeaderMap::new();
        add(&mut headers, &record);
        headers
    }

    #[test]
    fn times_are_expected_only_where_a_router_chose() {
        let headers = told(DecisionReason::WarmPrefix);
        assert_eq!(headers["x-warmpath-predicted-ttft-ms"], "20.000");
        assert_eq!(headers["x-warmpath-predicted-queue-ms"], "12.500");
        let headers = told(DecisionReason::EdgeAlone);
        assert_eq!(headers["x-warmpath-matched-tokens"], "32");
        assert!(headers.keys().all(|name| !name.as_str().contains("predicted")), "{headers:?}");
    }
}
