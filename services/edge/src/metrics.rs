//! What the edge counts.
//!
//! No label comes from a request: routes are the known ones, and a model that no backend lists
//! counts as `other`. Handles are resolved once per model and route and then reused.

use std::sync::{Arc, OnceLock};

use domain::{ErrorCode, FailureClass};
use instrumentation::{LATENCY_SECONDS, OVERHEAD_SECONDS, Registry};
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
};

use crate::endpoint::Endpoint;

/// The label of models that no backend lists.
pub(crate) const OTHER_MODEL: &str = "other";

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The engine answered to the end.
    Ok,
    /// The gateway refused it: key, limits, body, model.
    Rejected,
    /// The engine refused it with a 4xx.
    ClientError,
    /// The engines were full; the last one's answer passed.
    BackPressure,
    /// No engine could be reached, or all failed before their first token.
    UpstreamError,
    /// The connection broke after part of the answer.
    UpstreamEof,
    /// The engine sent an error after part of the answer.
    UpstreamErrorEvent,
    /// An engine took too long.
    Timeout,
    /// The gateway ended before the answer did.
    Shutdown,
    /// The client went away.
    Cancelled,
    /// A fault of the gateway.
    Internal,
}

impl Outcome {
    const COUNT: usize = Outcome::ALL.len();

    const ALL: [Outcome; 11] = [
        Outcome::Ok,
        Outcome::Rejected,
        Outcome::ClientError,
        Outcome::BackPressure,
        Outcome::UpstreamError,
        Outcome::UpstreamEof,
        Outcome::UpstreamErrorEvent,
        Outcome::Timeout,
        Outcome::Shutdown,
        Outcome::Cancelled,
        Outcome::Internal,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Rejected => "rejected",
            Outcome::ClientError => "client_error",
            Outcome::BackPressure => "back_pressure",
            Outcome::UpstreamError => "upstream_error",
            Outcome::UpstreamEof => "upstream_eof",
            Outcome::UpstreamErrorEvent => "upstream_error_event",
            Outcome::Timeout => "timeout",
            Outcome::Shutdown => "shutdown",
            Outcome::Cancelled => "cancelled",
            Outcome::Internal => "internal_error",
        }
    }

    /// Whether an answer that had begun was cut.
    const fn is_interruption(self) -> bool {
        matches!(self, Outcome::UpstreamEof | Outcome::UpstreamErrorEvent | Outcome::Shutdown)
    }
}

/// All series of the edge.
#[derive(Clone)]
pub(crate) struct Families {
    requests: IntCounterVec,
    duration: HistogramVec,
    ttft: HistogramVec,
    prompt_tokens: IntCounterVec,
    completion_tokens: IntCounterVec,
    predicted_cached: IntCounterVec,
    delivered_cached: IntCounterVec,
    cached_untold: IntCounterVec,
    retries: IntCounterVec,
    retries_denied: IntCounterVec,
    client_retries: IntCounterVec,
    rejected: IntCounterVec,
    interrupted: IntCounterVec,
    /// Time in the gateway until an engine was sent the request.
    pub(crate) overhead: Histogram,
    /// Rendering, tokenising and hashing of one prompt.
    pub(crate) tokenize: Histogram,
    /// Long prompts that there was no memory to make keys of.
    pub(crate) unkeyed: IntCounter,
    /// Answers that filled blocks, by what became of their keys.
    pub(crate) answers: AnswerCounters,
    /// Requests open now.
    pub(crate) in_flight: IntGauge,
    /// API keys, of the config file and of the desired state.
    pub(crate) keys: IntGauge,
    /// Tenants, likewise.
    pub(crate) tenants: IntGauge,
    /// Backends that ask for a key that this edge has not.
    pub(crate) backends_without_key: IntGauge,
    /// Attempts that an engine refused for want of a key.
    pub(crate) engine_unauthorized: IntCounter,
    /// Client connections open now.
    pub(crate) connections: IntGauge,
    /// Upstream answers given up because the client went away.
    pub(crate) upstream_cancelled: IntCounter,
    /// Handlers that panicked.
    pub(crate) panics: IntCounter,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            requests: counters(
                "requests_total",
                "Requests by outcome.",
                &["route", "model", "outcome"],
            ),
            duration: histograms(
                "request_duration_seconds",
                "From a request's head to the last byte of its answer.",
                &["route", "model"],
            ),
            ttft: histograms(
                "ttft_seconds",
                "From a streaming request's head to its first content token.",
                &["model"],
            ),
            prompt_tokens: counters(
                "prompt_tokens_total",
                "Prompt tokens that engines reported.",
                &["model"],
            ),
            completion_tokens: counters(
                "completion_tokens_total",
                "Output tokens that engines reported.",
                &["model"],
            ),
            predicted_cached: counters(
                "predicted_cached_tokens_total",
                "Cached prompt tokens that were expected, of answers that report them.",
                &["model"],
            ),
            delivered_cached: counters(
                "delivered_cached_tokens_total",
                "Cached prompt tokens that engines reported.",
                &["model"],
            ),
            cached_untold: counters(
                "cached_tokens_missing_total",
                "Answers of prefix-routed requests that did not tell cached tokens.",
                &["model"],
            ),
            retries: counters(
                "retries_total",
                "Attempts that were followed by another.",
                &["class"],
            ),
            retries_denied: counters(
                "retries_denied_total",
                "Requests that were not tried again as the pool's retry budget was spent.",
                &["model"],
            ),
            client_retries: counters(
                "client_retries_total",
                "Requests that their clients had sent before, as their SDKs tell.",
                &["model"],
            ),
            rejected: counters("rejected_total", "Requests that the gateway refused.", &["reason"]),
            interrupted: counters(
                "stream_interruptions_total",
                "Answers cut after they had begun.",
                &["reason"],
            ),
            overhead: histogram(
                "overhead_seconds",
                "Time in the gateway until an engine was sent the request.",
            ),
            tokenize: histogram("tokenize_seconds", "Rendering, tokenising and hashing a prompt."),
            unkeyed: counter(
                "prompts_without_keys_total",
                "Long prompts routed without keys, as there was no memory to make them.",
            ),
            answers: AnswerCounters::default(),
            in_flight: valid(IntGauge::with_opts(opts("requests_in_flight", "Requests open now."))),
            keys: valid(IntGauge::with_opts(opts("keys", "API keys that are known."))),
            tenants: valid(IntGauge::with_opts(opts("tenants", "Tenants that are known."))),
            backends_without_key: valid(IntGauge::with_opts(opts(
                "backends_without_key",
                "Backends that ask for a key that this edge has not.",
            ))),
            engine_unauthorized: counter(
                "engine_unauthorized_total",
                "Attempts that an engine refused with 401, for want of the gateway's key.",
            ),
            connections: valid(IntGauge::with_opts(opts(
                "connections",
                "Client connections open now.",
            ))),
            upstream_cancelled: counter(
                "upstream_cancelled_total",
                "Upstream answers given up because the client went away.",
            ),
            panics: counter("panics_total", "Request handlers that panicked."),
        }
    }
}

impl Families {
    /// Adds every series to `registry`.
    ///
    /// # Errors
    /// The registry has a metric of one of these names.
    pub(crate) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        let all: [Box<dyn Collector>; 25] = [
            Box::new(self.cached_untold.clone()),
            Box::new(self.answers.family.clone()),
            Box::new(self.requests.clone()),
            Box::new(self.duration.clone()),
            Box::new(self.ttft.clone()),
            Box::new(self.prompt_tokens.clone()),
            Box::new(self.completion_tokens.clone()),
            Box::new(self.predicted_cached.clone()),
            Box::new(self.delivered_cached.clone()),
            Box::new(self.retries.clone()),
            Box::new(self.retries_denied.clone()),
            Box::new(self.client_retries.clone()),
            Box::new(self.rejected.clone()),
            Box::new(self.interrupted.clone()),
            Box::new(self.overhead.clone()),
            Box::new(self.tokenize.clone()),
            Box::new(self.in_flight.clone()),
            Box::new(self.keys.clone()),
            Box::new(self.tenants.clone()),
            Box::new(self.backends_without_key.clone()),
            Box::new(self.unkeyed.clone()),
            Box::new(self.engine_unauthorized.clone()),
            Box::new(self.connections.clone()),
            Box::new(self.upstream_cancelled.clone()),
            Box::new(self.panics.clone()),
        ];
        all.into_iter().try_for_each(|family| registry.register(family))
    }

    /// Another attempt follows one that failed like this.
    pub(crate) fn count_retry(&self, class: FailureClass) {
        self.retries.with_label_values(&[class.as_str()]).inc();
    }

    /// The gateway refused a request.
    pub(crate) fn count_rejected(&self, code: ErrorCode) {
        self.rejected.with_label_values(&[code.as_str()]).inc();
    }
}

/// Answers that filled blocks, by what became of their keys.
#[derive(Clone)]
pub(crate) struct AnswerCounters {
    family: IntCounterVec,
    /// Their tokens are known.
    pub(crate) keyed: IntCounter,
    /// There is more or other to them than what tokenising their text gives.
    pub(crate) differs: IntCounter,
    /// There was no time.
    pub(crate) skipped: IntCounter,
}

impl Default for AnswerCounters {
    fn default() -> Self {
        let help = "Answers that filled blocks, by whether these were given keys.";
        let family = counters("answer_keys_total", help, &["result"]);
        Self {
            keyed: family.with_label_values(&["keyed"]),
            differs: family.with_label_values(&["differs"]),
            skipped: family.with_label_values(&["skipped"]),
            family,
        }
    }
}

/// The series of one model.
pub(crate) struct ModelMetrics {
    families: Families,
    label: Box<str>,
    pub(crate) ttft: Histogram,
    pub(crate) prompt_tokens: IntCounter,
    pub(crate) completion_tokens: IntCounter,
    pub(crate) predicted_cached: IntCounter,
    pub(crate) delivered_cached: IntCounter,
    /// Good answers that could have told cached tokens and did not.
    pub(crate) cached_untold: IntCounter,
    /// Requests that were not tried again as the pool's budget for it was spent.
    pub(crate) retries_denied: IntCounter,
    /// Requests that their clients had sent before.
    pub(crate) client_retries: IntCounter,
    routes: [OnceLock<RouteMetrics>; Endpoint::COUNT],
}

struct RouteMetrics {
    duration: Histogram,
    outcomes: [OnceLock<IntCounter>; Outcome::COUNT],
}

impl ModelMetrics {
    /// `model` must be a name that a backend lists, or [`OTHER_MODEL`].
    pub(crate) fn new(families: &Families, model: &str) -> Arc<Self> {
        Arc::new(Self {
            families: families.clone(),
            label: model.into(),
            ttft: families.ttft.with_label_values(&[model]),
            prompt_tokens: families.prompt_tokens.with_label_values(&[model]),
            completion_tokens: families.completion_tokens.with_label_values(&[model]),
            predicted_cached: families.predicted_cached.with_label_values(&[model]),
            delivered_cached: families.delivered_cached.with_label_values(&[model]),
            cached_untold: families.cached_untold.with_label_values(&[model]),
            retries_denied: families.retries_denied.with_label_values(&[model]),
            client_retries: families.client_retries.with_label_values(&[model]),
            routes: std::array::from_fn(|_| OnceLock::new()),
        })
    }

    /// Takes its series off the page. Whoever counts on counts for nobody.
    pub(crate) fn remove(&self) {
        let (families, label) = (&self.families, &*self.label);
        for family in [
            &families.prompt_tokens,
            &families.completion_tokens,
            &families.predicted_cached,
            &families.delivered_cached,
            &families.cached_untold,
            &families.retries_denied,
            &families.client_retries,
        ] {
            // What was never there need not go.
            let _ = family.remove_label_values(&[label]);
        }
        let _ = families.ttft.remove_label_values(&[label]);
        for endpoint in Endpoint::ALL {
            if self.routes[endpoint as usize].get().is_none() {
                continue;
            }
            let route = endpoint.as_str();
            let _ = families.duration.remove_label_values(&[route, label]);
            for outcome in Outcome::ALL {
                let _ = families.requests.remove_label_values(&[route, label, outcome.as_str()]);
            }
        }
    }

    /// Counts a request that has ended.
    pub(crate) fn count(&self, endpoint: Endpoint, outcome: Outcome, seconds: f64) {
        let route = endpoint.as_str();
        let of_route = self.routes[endpoint as usize].get_or_init(|| RouteMetrics {
            duration: self.families.duration.with_label_values(&[route, &self.label]),
            outcomes: std::array::from_fn(|_| OnceLock::new()),
        });
        of_route.duration.observe(seconds);
        let counter = of_route.outcomes[outcome as usize].get_or_init(|| {
            self.families.requests.with_label_values(&[route, &self.label, outcome.as_str()])
        });
        counter.inc();
        if outcome.is_interruption() {
            self.families.interrupted.with_label_values(&[outcome.as_str()]).inc();
        }
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("warmpath_edge_{name}"), help)
}

fn counter(name: &str, help: &str) -> IntCounter {
    valid(IntCounter::with_opts(opts(name, help)))
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    valid(IntCounterVec::new(opts(name, help), labels))
}

fn histograms(name: &str, help: &str, labels: &[&str]) -> HistogramVec {
    let options = HistogramOpts::from(opts(name, help)).buckets(LATENCY_SECONDS.to_vec());
    valid(HistogramVec::new(options, labels))
}

fn histogram(name: &str, help: &str) -> Histogram {
    let options = HistogramOpts::from(opts(name, help)).buckets(OVERHEAD_SECONDS.to_vec());
    valid(Histogram::with_opts(options))
}

fn valid<T>(metric: prometheus::Result<T>) -> T {
    metric.expect("the names and labels here are constant and valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_a_name_of_its_own() {
        let registry = Registry::new();
        let families = Families::default();
        families.register(&registry).unwrap();
        assert!(families.register(&registry).is_err());
    }

    #[test]
    fn a_request_counts_once_under_its_route_model_and_outcome() {
        let registry = Registry::new();
        let families = Families::default();
        families.register(&registry).unwrap();
        let model = ModelMetrics::new(&families, "m");
        model.count(Endpoint::Chat, Outcome::Ok, 0.1);
        model.count(Endpoint::Chat, Outcome::UpstreamEof, 0.1);
        let text = instrumentation::encode(&registry);
        let ok = r#"warmpath_edge_requests_total{model="m",outcome="ok",route="chat"} 1"#;
        let cut = r#"warmpath_edge_stream_interruptions_total{reason="upstream_eof"} 1"#;
        assert!(text.contains(ok), "{text}");
        assert!(text.contains(cut), "{text}");
    }
}
