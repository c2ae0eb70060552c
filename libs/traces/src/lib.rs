//! Spans of requests, in OpenTelemetry's form.
//!
//! A request that is not traced costs a look at one header. One that is gathers what it did and
//! hands over whole spans when it is over: nothing is made while it runs but ids. Spans wait in a
//! bounded queue for a task that sends them to a collector in batches; where the collector is slow
//! or away they are dropped and counted, and no request notices.
//!
//! - [`Config`]: where the collector is, and how many requests are traced
//! - [`Tracer`]: whether a request is traced, by its W3C trace context or by chance
//! - [`Trace`], [`Span`]: what is told of one
//! - [`Exporter`]: the task

mod config;
mod context;
mod export;
mod trace;

pub use config::{Config, RawConfig};
pub use context::{Parent, TRACEPARENT, TRACESTATE};
pub use export::{Exporter, Metrics};
pub use opentelemetry::KeyValue;
pub use opentelemetry::trace::{SpanId, SpanKind, TraceId};
pub use trace::{Span, Trace, Tracer};

/// Traces cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system has no random source.
    #[error("the system gives no randomness: {0}")]
    NoRandomness(#[from] getrandom::Error),
    /// The exporter cannot be built.
    #[error("spans cannot be sent: {0}")]
    Exporter(String),
}
