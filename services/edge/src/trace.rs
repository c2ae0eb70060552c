//! What is told of one request as spans: the request itself, each time a rank was asked for, and
//! each attempt at an engine. They are made when the request is over, of what its [`Record`] knows.

mod names;

use domain::{Decision, EngineKind, ErrorCode, FailureClass, Moment, Rejected};
use http::{HeaderMap, HeaderValue, Uri};
use traces::{KeyValue, Parent, Span, SpanId, SpanKind, TRACEPARENT, TRACESTATE, Trace, Tracer};

use crate::metrics::Outcome;
use crate::record::Record;

pub(crate) use names::{SCHEMA_URL, SERVICE};

/// A request that is traced.
pub(crate) struct RequestTrace {
    trace: Trace,
    /// The span of the request itself.
    server: SpanId,
    attempt: Option<Attempt>,
}

/// An attempt that is under way.
struct Attempt {
    id: SpanId,
    started: Moment,
    url: std::sync::Arc<str>,
    engine: EngineKind,
    resent: u32,
}

impl RequestTrace {
    /// `None` for a request that is not traced.
    pub(crate) fn begin(tracer: &Tracer, headers: &HeaderMap) -> Option<Box<Self>> {
        if !tracer.is_on() {
            return None;
        }
        let header = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
        let parent = header(TRACEPARENT).and_then(|tp| Parent::read(tp, header(TRACESTATE)));
        let trace = tracer.begin(parent)?;
        let server = trace.span_id();
        Some(Box::new(Self { trace, server, attempt: None }))
    }

    /// A rank was asked for, and this came of it.
    pub(crate) fn routed(&self, asked: Moment, answer: &Result<Decision, Rejected>) {
        let (attributes, failure) = match answer {
            Ok(decision) => {
                let evidence = &decision.evidence;
                let attributes = vec![
                    text(names::BACKEND, decision.chosen.rank.backend.as_str()),
                    text(names::REASON, evidence.reason.as_str()),
                    KeyValue::new(names::MATCHED_BLOCKS, i64::from(evidence.matched_blocks)),
                    count(names::PREDICTED_CACHED, evidence.predicted_cached_tokens.into()),
                    KeyValue::new(names::PREDICTED_TTFT, evidence.predicted_ttft.as_secs_f64()),
                ];
                (attributes, None)
            }
            Err(rejected) => {
                let reason = rejected.reason.as_str();
                (vec![text(names::ERROR_TYPE, reason)], Some(reason))
            }
        };
        self.tell(Told {
            id: self.trace.span_id(),
            parent: self.server,
            name: names::ROUTE_SPAN.to_owned(),
            kind: SpanKind::Internal,
            start: asked,
            attributes,
            failure,
        });
    }

    /// An attempt begins; the `traceparent` that its engine is sent.
    pub(crate) fn attempt(
        &mut self,
        url: &std::sync::Arc<str>,
        engine: EngineKind,
        resent: u32,
        now: Moment,
    ) -> Option<HeaderValue> {
        let id = self.trace.span_id();
        self.attempt = Some(Attempt { id, started: now, url: url.clone(), engine, resent });
        HeaderValue::from_str(&self.trace.traceparent(id)).ok()
    }

    /// The attempt under way failed, and another may follow.
    pub(crate) fn attempt_failed(&mut self, record: &Record, class: FailureClass) {
        if let Some(attempt) = self.attempt.take() {
            let mut attributes = attempt.attributes(record);
            attributes.push(text(names::ERROR_TYPE, class.as_str()));
            self.tell_attempt(&attempt, record, attributes, Some(class.as_str()));
        }
    }

    /// The request is over.
    pub(crate) fn end(mut self, record: &Record, outcome: Outcome, code: Option<ErrorCode>) {
        let failure = code.map(ErrorCode::as_str);
        if let Some(attempt) = self.attempt.take() {
            let mut attributes = attempt.attributes(record);
            attributes.extend(delivered(record));
            attributes.extend(failure.map(|code| text(names::ERROR_TYPE, code)));
            self.tell_attempt(&attempt, record, attributes, failure);
        }
        let mut attributes = vec![
            text(names::ROUTE, record.endpoint.as_str()),
            KeyValue::new(names::STATUS, i64::from(record.status)),
            text(names::OUTCOME, outcome.as_str()),
            text(names::REQUEST, record.request.as_str()),
            KeyValue::new(names::ATTEMPTS, i64::from(record.attempts)),
        ];
        attributes.extend(record.tenant.as_ref().map(|id| text(names::TENANT, id.as_str())));
        attributes.extend(failure.map(|code| text(names::ERROR_TYPE, code)));
        self.tell(Told {
            id: self.server,
            parent: self.trace.parent(),
            name: record.endpoint.as_str().to_owned(),
            kind: SpanKind::Server,
            start: record.started,
            attributes,
            // What is the client's fault is no failure of the server.
            failure: failure.filter(|_| is_ours(outcome)),
        });
    }

    fn tell_attempt(
        &self,
        attempt: &Attempt,
        record: &Record,
        attributes: Vec<KeyValue>,
        failure: Option<&'static str>,
    ) {
        let model = record.model.as_ref().map_or("", |model| model.as_str());
        self.tell(Told {
            id: attempt.id,
            parent: self.server,
            name: format!("{} {model}", names::operation(record.endpoint)),
            kind: SpanKind::Client,
            start: attempt.started,
            attributes,
            failure,
        });
    }

    fn tell(&self, told: Told) {
        let Told { id, parent, name, kind, start, attributes, failure } = told;
        let end = lifecycle::monotonic();
        let name = name.into();
        self.trace.tell(Span { id, parent, name, kind, start, end, attributes, failure });
    }
}

/// A span that ends now.
struct Told {
    id: SpanId,
    parent: SpanId,
    name: String,
    kind: SpanKind,
    start: Moment,
    attributes: Vec<KeyValue>,
    failure: Option<&'static str>,
}

impl Attempt {
    fn attributes(&self, record: &Record) -> Vec<KeyValue> {
        let uri: Option<Uri> = self.url.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let port = uri.as_ref().and_then(Uri::port_u16);
        let mut attributes = vec![
            text(names::OPERATION, names::operation(record.endpoint)),
            text(names::PROVIDER, self.engine.as_str()),
            text(names::SERVER_ADDRESS, host),
            KeyValue::new(names::STREAM, record.stream),
            KeyValue::new(names::RESEND_COUNT, i64::from(self.resent)),
        ];
        attributes.extend(port.map(|port| KeyValue::new(names::SERVER_PORT, i64::from(port))));
        attributes.extend(record.model.as_ref().map(|m| text(names::REQUEST_MODEL, m.as_str())));
        attributes.extend(record.backend.as_ref().map(|id| text(names::BACKEND, id.as_str())));
        attributes
    }
}

/// Whether the side of the server is to blame, its engines included.
fn is_ours(outcome: Outcome) -> bool {
    !matches!(outcome, Outcome::Ok | Outcome::Rejected | Outcome::ClientError | Outcome::Cancelled)
}

/// What an engine's answer told.
fn delivered(record: &Record) -> Vec<KeyValue> {
    let mut attributes = Vec::new();
    if let Some(usage) = record.usage {
        attributes.push(count(names::INPUT_TOKENS, usage.prompt_tokens));
        attributes.push(count(names::OUTPUT_TOKENS, usage.completion_tokens));
        attributes.extend(usage.cached_tokens.map(|n| count(names::CACHE_READ_TOKENS, n)));
    }
    if let Some(ttft) = record.ttft {
        attributes.push(KeyValue::new(names::FIRST_CHUNK, ttft.as_secs_f64()));
    }
    attributes
}

fn text(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, value.to_owned())
}

fn count(name: &'static str, value: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX))
}
