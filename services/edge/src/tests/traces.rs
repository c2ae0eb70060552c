//! Spans of requests, as a collector gets them.

#[path = "../../../../libs/traces/tests/collector/server.rs"]
mod server;

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::RawConfig;
use crate::testing::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A span as it arrived.
#[derive(Debug)]
struct ReceivedSpan {
    name: String,
    id: String,
    parent: String,
    attributes: BTreeMap<String, String>,
    failed: bool,
}

/// A setup whose spans go to the collector behind the other end.
async fn traced() -> (Setup, mpsc::Receiver<ExportTraceServiceRequest>) {
    let (endpoint, requests) = server::collector().await;
    let traces = traces::RawConfig { endpoint: Some(endpoint), ..traces::RawConfig::default() };
    let edge = RawConfig { traces, ..RawConfig::default() };
    (Setup { edge, ..Setup::default() }, requests)
}

/// All spans of one request, by name, when it and the edge have ended.
async fn spans(
    bed: Bed,
    mut requests: mpsc::Receiver<ExportTraceServiceRequest>,
) -> Vec<ReceivedSpan> {
    bed.assert_idle().await;
    bed.lifecycle.begin_drain();
    bed.lifecycle.shutdown(std::time::Duration::from_secs(30)).await;
    let mut told = Vec::new();
    while let Ok(request) = requests.try_recv() {
        for span in request.resource_spans.into_iter().flat_map(|r| r.scope_spans) {
            told.extend(span.spans.into_iter().map(|span| {
                assert_eq!(hex(&span.trace_id), TRACE);
                let text = |value: Option<Value>| match value {
                    Some(Value::StringValue(text)) => text,
                    Some(Value::IntValue(n)) => n.to_string(),
                    other => format!("{other:?}"),
                };
                let attribute = |a: opentelemetry_proto::tonic::common::v1::KeyValue| {
                    (a.key, text(a.value.and_then(|v| v.value)))
                };
                ReceivedSpan {
                    name: span.name,
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    attributes: span.attributes.into_iter().map(attribute).collect(),
                    failed: span.status.is_some_and(|status| status.code == 2),
                }
            }));
        }
    }
    told
}

fn hex(bytes: &[u8]) -> String {
    credentials::hex(bytes)
}

fn by_caller() -> String {
    format!("traceparent: 00-{TRACE}-{CALLER}-01\r\ntracestate: vendor=1\r\n")
}

#[tokio::test]
async fn a_request_is_told_with_its_route_and_its_attempts() {
    let broken = Engine::start("a", vec![vec![Step::Reset]]).await;
    let good = Engine::start("b", vec![events(&[ROLE, &token("a"), USAGE, DONE])]).await;
    let (setup, requests) = traced().await;
    let bed = setup.start(&[&broken, &good]).await;
    let reply = bed.client.post("/v1/chat/completions", &by_caller(), STREAM).await;
    assert_eq!(reply.status, 200);
    let seen = good.requests();
    let passed = seen[0].header("traceparent").expect("the engine is told").to_owned();
    assert_eq!(seen[0].header("tracestate"), Some("vendor=1"));
    let told = spans(bed, requests).await;
    let named = |name: &str| told.iter().filter(|t| t.name == name).collect::<Vec<_>>();
    let [server] = named("chat")[..] else { panic!("{told:?}") };
    assert_eq!(server.parent, CALLER);
    assert_eq!(server.attributes["http.response.status_code"], "200");
    assert!(!server.failed);
    assert_eq!(named("route").len(), 2);
    let attempts = named("chat m");
    assert_eq!(attempts.iter().map(|a| a.failed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(attempts[0].attributes["error.type"], "connection");
    assert_eq!(attempts[1].attributes["gen_ai.usage.cache_read.input_tokens"], "4");
    assert_eq!(attempts[1].attributes["warmpath.backend.id"], "b");
    assert!(told.iter().all(|t| t.name == "chat" || t.parent == server.id));
    assert_eq!(passed, format!("00-{TRACE}-{}-01", attempts[1].id));
}

#[tokio::test]
async fn spans_hold_no_content_and_no_credentials() {
    let engine = Engine::start("a", vec![events(&[ROLE, &token("answer"), DONE])]).await;
    let (setup, requests) = traced().await;
    let bed = setup.start(&[&engine]).await;
    let headers = format!("{}authorization: Bearer sk-wp-id-secret\r\n", by_caller());
    let body = STREAM.replace("hi", "question");
    assert_eq!(bed.client.post("/v1/chat/completions", &headers, &body).await.status, 200);
    let told = format!("{:?}", spans(bed, requests).await);
    for word in ["question", "answer", "secret"] {
        assert!(!told.contains(word), "{word}: {told}");
    }
}

#[tokio::test]
async fn a_context_passes_unchanged_where_nothing_is_traced() {
    let engine = Engine::start("a", vec![events(&[ROLE, &token("a"), DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    assert_eq!(bed.client.post("/v1/chat/completions", &by_caller(), STREAM).await.status, 200);
    let seen = engine.requests();
    let expected = format!("00-{TRACE}-{CALLER}-01");
    assert_eq!(seen[0].header("traceparent"), Some(expected.as_str()));
}

#[tokio::test]
async fn a_collector_that_is_away_costs_no_request() {
    let engine = Engine::start("a", vec![events(&[ROLE, &token("a"), DONE])]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let traces = traces::RawConfig { endpoint: Some(endpoint), ..traces::RawConfig::default() };
    let edge = RawConfig { traces, ..RawConfig::default() };
    let bed = Setup { edge, ..Setup::default() }.start(&[&engine]).await;
    assert_eq!(bed.client.post("/v1/chat/completions", "", STREAM).await.status, 200);
    bed.assert_idle().await;
    bed.lifecycle.begin_drain();
    let registry = bed.registry.clone();
    bed.lifecycle.shutdown(std::time::Duration::from_secs(30)).await;
    let page = instrumentation::encode(&registry);
    assert!(page.contains("warmpath_edge_spans_total{outcome=\"failed\"} 3"), "{page}");
}
