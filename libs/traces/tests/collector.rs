//! Spans reach a collector that speaks OTLP, and nobody waits for one that does not.

#[path = "collector/server.rs"]
mod server;

use opentelemetry_proto::tonic::trace::v1::Span as ReceivedSpan;
use prometheus::Registry;
use server::collector;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use traces::{
    Config, Exporter, KeyValue, Metrics, Parent, RawConfig, Span, SpanKind, Trace, Tracer,
};

fn tracer(endpoint: &str, sample_ratio: f64) -> (Tracer, Exporter, Registry) {
    let raw = RawConfig {
        endpoint: Some(endpoint.to_owned()),
        sample_ratio: Some(sample_ratio),
        ..RawConfig::default()
    };
    let config = Config::new(raw).unwrap().expect("an endpoint is there");
    let registry = Registry::new();
    let metrics = Metrics::register(&registry, "spans_total").unwrap();
    let (tracer, exporter) = Tracer::new(&config, ("warmpath-test", "1.2.3", ""), metrics).unwrap();
    (tracer, exporter, registry)
}

fn span(trace: &Trace, name: &'static str) -> Span {
    let end = lifecycle::monotonic();
    Span {
        id: trace.span_id(),
        parent: trace.parent(),
        name: name.into(),
        kind: SpanKind::Server,
        start: domain::Moment::from_nanos(end.as_nanos().saturating_sub(250_000_000)),
        end,
        attributes: vec![KeyValue::new("http.route", "chat")],
        failure: Some("timeout"),
    }
}

fn count(registry: &Registry, outcome: &str) -> f64 {
    let families = registry.gather();
    let metrics = families[0].get_metric();
    let of = metrics.iter().find(|m| m.get_label()[0].value() == outcome).expect("three outcomes");
    of.get_counter().get_value()
}

#[tokio::test]
async fn a_span_arrives_with_its_trace_and_all_that_is_told_of_it() {
    let (address, mut requests) = collector().await;
    let (tracer, exporter, registry) = tracer(&address, 0.0);
    let parent =
        Parent::read(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some(b"vendor=1"));
    let trace = tracer.begin(parent).expect("the caller says that it is sampled");
    let span = span(&trace, "chat");
    let id = span.id;
    trace.tell(span);
    let (stop, stopped) = oneshot::channel::<()>();
    stop.send(()).unwrap();
    // What is there at the end is sent once more.
    exporter.run(async { stopped.await.unwrap_or(()) }).await;
    let request = requests.recv().await.expect("sent");
    let resource = &request.resource_spans[0];
    let attributes = &resource.resource.as_ref().unwrap().attributes;
    assert!(attributes.iter().any(|a| a.key == "service.name"), "{attributes:?}");
    let told: &ReceivedSpan = &resource.scope_spans[0].spans[0];
    assert_eq!(told.name, "chat");
    assert_eq!(told.trace_id, 0x4bf92f3577b34da6a3ce929d0e0e4736_u128.to_be_bytes());
    assert_eq!(told.parent_span_id, 0x00f067aa0ba902b7_u64.to_be_bytes());
    assert_eq!(told.span_id, id.to_bytes());
    assert_eq!(told.trace_state, "vendor=1");
    assert_eq!(told.end_time_unix_nano - told.start_time_unix_nano, 250_000_000);
    assert_eq!(told.status.as_ref().unwrap().message, "timeout");
    assert_eq!(count(&registry, "exported"), 1.0);
}

#[tokio::test]
async fn requests_without_a_trace_are_traced_by_the_share_and_others_as_they_say() {
    let (all, _exporter, _) = tracer("http://127.0.0.1:4317", 1.0);
    let (none, _exporter, _) = tracer("http://127.0.0.1:4317", 0.0);
    let with = |flags: &str| {
        let header = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        Parent::read(header.as_bytes(), None)
    };
    assert!(all.begin(None).is_some() && none.begin(None).is_none());
    assert!(all.begin(with("00")).is_none(), "its caller records nothing");
    assert!(none.begin(with("01")).is_some(), "its caller does");
    let (one, other) = (all.begin(None).unwrap(), all.begin(None).unwrap());
    assert_ne!(one.traceparent(one.span_id()), other.traceparent(other.span_id()));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_collector_that_is_away() {
    // A port that nothing listens on.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (tracer, exporter, registry) = tracer(&address, 1.0);
    let trace = tracer.begin(None).unwrap();
    // More than the queue holds, handed over at once.
    for _ in 0..10_000 {
        trace.tell(span(&trace, "chat"));
    }
    assert_eq!(count(&registry, "dropped"), 10_000.0 - 8192.0);
    exporter.run(std::future::ready(())).await;
    assert_eq!(count(&registry, "failed"), 8192.0);
    assert_eq!(count(&registry, "exported"), 0.0);
}
