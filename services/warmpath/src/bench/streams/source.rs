//! An engine that sends what its requests ask for: so many events of so many bytes, as fast as
//! they are taken or at a pace.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http::header::CONTENT_TYPE;
use lifecycle::{ServeLimits, TaskSpawner};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// What vLLM tells of its cache.
const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 0\n\
    vllm:num_requests_waiting{engine=\"0\"} 0\n\
    vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1001\",\
    enable_prefix_caching=\"True\"} 1\n";
const LIMITS: ServeLimits =
    ServeLimits { max_connections: 4096, header_timeout: Duration::from_secs(600) };

/// What a request wants; the rest of its body is nobody's.
#[derive(Debug, Deserialize)]
struct Wanted {
    /// Events, at least one.
    #[serde(default = "one")]
    events: u64,
    /// Bytes of text in each.
    #[serde(default = "one")]
    event_bytes: u64,
    /// Milliseconds between two; none: as fast as they are taken.
    #[serde(default)]
    interval_ms: u64,
}

fn one() -> u64 {
    1
}

/// Serves a model until the drain.
pub(super) async fn serve(listener: TcpListener, model: &'static str, spawner: TaskSpawner) {
    let models = format!(
        r#"{{"object":"list","data":[{{"id":"{model}","object":"model","created":1,"owned_by":"vllm","root":"{model}","parent":null,"max_model_len":1000000}}]}}"#
    );
    let routes = Router::new()
        .route("/health", get(async || ""))
        .route("/v1/models", get(async || ([("content-type", "application/json")], models)))
        .route("/metrics", get(METRICS))
        .route("/v1/chat/completions", post(answer))
        .route("/v1/completions", post(answer))
        .layer(DefaultBodyLimit::disable());
    lifecycle::serve(listener, routes, LIMITS, spawner).await;
}

async fn answer(body: Bytes) -> Response<Body> {
    // Only this bench asks: what it cannot read is one event.
    let wanted = serde_json::from_slice(&body).unwrap_or(Wanted {
        events: 1,
        event_bytes: 1,
        interval_ms: 0,
    });
    let mut response = Response::new(Body::from_stream(stream::unfold(Stream::new(&wanted), next)));
    let kind = http::HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

struct Stream {
    event: Bytes,
    left: u64,
    pace: Option<Interval>,
    ended: bool,
}

impl Stream {
    fn new(wanted: &Wanted) -> Self {
        let text = "x".repeat(usize::try_from(wanted.event_bytes).unwrap_or(1));
        let event = format!(
            "data: {{\"id\":\"s\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"source\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
        );
        let pace = (wanted.interval_ms > 0).then(|| {
            let mut pace = interval(Duration::from_millis(wanted.interval_ms));
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            pace
        });
        Self { event: event.into(), left: wanted.events.max(1), pace, ended: false }
    }
}

async fn next(mut stream: Stream) -> Option<(Result<Bytes, Infallible>, Stream)> {
    if stream.ended {
        return None;
    }
    if stream.left == 0 {
        stream.ended = true;
        return Some((Ok(Bytes::from_static(b"data: [DONE]\n\n")), stream));
    }
    if let Some(pace) = &mut stream.pace {
        pace.tick().await;
    }
    stream.left -= 1;
    Some((Ok(stream.event.clone()), stream))
}
