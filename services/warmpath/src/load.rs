//! A load client: sends chat requests, reads the stream as an SDK does, and measures.
//!
//! TTFT is the time from sending to the first event with a non-empty delta. A role-only event
//! or a comment does not count.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use openai_api::{ChunkView, FrameKind, SseSplitter};
use tokio::time::Instant;

/// What a request came to: its answer, or what went wrong.
pub type Outcome = Result<Answer, String>;

/// One answer in numbers.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Send to first content.
    pub ttft: Duration,
    /// Send to the last byte.
    pub total: Duration,
    /// As the engine reports it.
    pub prompt_tokens: u64,
    /// As the engine reports it; 0 where it does not.
    pub cached_tokens: u64,
    /// As the engine reports it.
    pub completion_tokens: u64,
    /// Blocks the router believed cached, from the gateway's debug header.
    pub matched_blocks: u64,
    /// Tokens the router believed cached, from the gateway's debug header.
    pub predicted_cached_tokens: u64,
    /// Who answered, from the gateway's debug header.
    pub backend: Option<String>,
}

/// A client with a pool of keep-alive connections.
#[derive(Clone)]
pub struct LoadClient {
    http: HyperClient<HttpConnector, Full<Bytes>>,
    authorization: Option<String>,
}

impl LoadClient {
    /// A client that sends `key`, if any, as a bearer token.
    pub fn new(key: Option<&str>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(4))
            .build(connector);
        Self { http, authorization: key.map(|k| format!("Bearer {k}")) }
    }

    /// Whether a GET of `url` is answered with 200.
    pub async fn get_ok(&self, url: &str) -> bool {
        let Ok(request) = Request::get(url).body(Full::new(Bytes::new())) else { return false };
        self.http.request(request).await.is_ok_and(|r| r.status() == StatusCode::OK)
    }

    /// Sends one streaming request and reads it to its end.
    ///
    /// # Errors
    /// A sentence: no connection, a status other than 200, an error event, or an end without
    /// `[DONE]`.
    pub async fn stream(&self, url: &str, body: Bytes) -> Outcome {
        let started = Instant::now();
        let mut request = Request::post(url).header("content-type", "application/json");
        if let Some(value) = &self.authorization {
            request = request.header("authorization", value);
        }
        let request = request.body(Full::new(body)).map_err(|e| format!("bad request: {e}"))?;
        let response = self.http.request(request).await.map_err(|e| format!("no answer: {e}"))?;
        let (head, mut body) = response.into_parts();
        if head.status != StatusCode::OK {
            let text = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
            return Err(format!("{}: {}", head.status, String::from_utf8_lossy(&text)));
        }
        let mut reader = StreamReader::new(started, answer_from(&head.headers));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| format!("the stream broke: {e}"))?;
            if let Ok(data) = frame.into_data() {
                reader.feed(data)?;
            }
        }
        reader.finish()
    }
}

fn answer_from(headers: &HeaderMap) -> Answer {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let number = |name: &str| text(name).and_then(|v| v.parse().ok()).unwrap_or(0);
    Answer {
        backend: text("x-warmpath-backend").map(str::to_owned),
        matched_blocks: number("x-warmpath-matched-blocks"),
        predicted_cached_tokens: number("x-warmpath-matched-tokens"),
        ..Answer::default()
    }
}

/// Follows one event stream.
struct StreamReader {
    started: Instant,
    splitter: SseSplitter,
    answer: Answer,
    ttft: Option<Duration>,
    done: bool,
}

impl StreamReader {
    fn new(started: Instant, answer: Answer) -> Self {
        Self { started, splitter: SseSplitter::default(), answer, ttft: None, done: false }
    }

    fn feed(&mut self, bytes: Bytes) -> Result<(), String> {
        for frame in self.splitter.feed(bytes) {
            let FrameKind::Data(data) = frame.kind else { continue };
            let chunk = ChunkView::parse(&data);
            if chunk.is_error {
                return Err(format!("an error event: {}", String::from_utf8_lossy(&data)));
            }
            if chunk.has_content && self.ttft.is_none() {
                self.ttft = Some(self.started.elapsed());
            }
            if let Some(usage) = chunk.usage {
                self.answer.prompt_tokens = usage.prompt_tokens;
                self.answer.completion_tokens = usage.completion_tokens;
                self.answer.cached_tokens = usage.cached_tokens.unwrap_or(0);
            }
            self.done |= chunk.is_done;
        }
        Ok(())
    }

    fn finish(self) -> Outcome {
        if !self.done {
            return Err("the stream ended without [DONE]".to_owned());
        }
        let ttft = self.ttft.ok_or("the stream had no content")?;
        Ok(Answer { ttft, total: self.started.elapsed(), ..self.answer })
    }
}
