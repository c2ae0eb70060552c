//! What is known of one request, and the one log line and the counts it ends in.

use std::sync::Arc;
use std::time::Duration;

use domain::{
    BackendId, ErrorCode, Evidence, FailureClass, ModelId, Moment, RequestId, TenantId, Usage,
};
use http::HeaderValue;

use crate::endpoint::Endpoint;
use crate::exchange::Summary;
use crate::metrics::{Families, ModelMetrics, Outcome};
use crate::trace::RequestTrace;

/// One request from its head to the last byte of its answer. Dropping it ends it: if nothing
/// else was noted, the client went away.
pub(crate) struct Record {
    families: Arc<Families>,
    pub(crate) request: RequestId,
    /// What the client calls it.
    pub(crate) client_id: Option<HeaderValue>,
    /// How often it has sent the same before, if it tells.
    pub(crate) client_retries: Option<u8>,
    pub(crate) endpoint: Endpoint,
    pub(crate) started: Moment,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) model: Option<ModelId>,
    pub(crate) model_metrics: Arc<ModelMetrics>,
    pub(crate) stream: bool,
    /// It is about a response that an engine keeps: its making was another request, which counted
    /// its tokens.
    pub(crate) is_kept: bool,
    pub(crate) attempts: u32,
    /// Another attempt was due, and the pool's budget for it was spent.
    pub(crate) retry_denied: bool,
    pub(crate) backend: Option<BackendId>,
    pub(crate) evidence: Option<Evidence>,
    /// Time until the first attempt was sent.
    pub(crate) overhead: Option<Duration>,
    pub(crate) status: u16,
    pub(crate) usage: Option<Usage>,
    pub(crate) ttft: Option<Duration>,
    /// Where it is traced.
    pub(crate) trace: Option<Box<RequestTrace>>,
    end: Option<(Outcome, Option<ErrorCode>)>,
}

impl Record {
    pub(crate) fn new(
        families: Arc<Families>,
        other: Arc<ModelMetrics>,
        request: RequestId,
        endpoint: Endpoint,
        started: Moment,
    ) -> Self {
        families.in_flight.inc();
        Self {
            families,
            request,
            client_id: None,
            client_retries: None,
            endpoint,
            started,
            tenant: None,
            model: None,
            model_metrics: other,
            stream: false,
            is_kept: false,
            attempts: 0,
            retry_denied: false,
            backend: None,
            evidence: None,
            overhead: None,
            status: 0,
            usage: None,
            ttft: None,
            trace: None,
            end: None,
        }
    }

    /// The value of the answer's `x-request-id`: the client's own id, else ours.
    pub(crate) fn label(&self) -> HeaderValue {
        self.client_id.clone().unwrap_or_else(|| {
            HeaderValue::from_str(self.request.as_str())
                .unwrap_or_else(|_| HeaderValue::from_static("invalid"))
        })
    }

    /// What the client calls it, as text.
    pub(crate) fn client_label(&self) -> Option<Arc<str>> {
        self.client_id.as_ref().and_then(|id| id.to_str().ok()).map(Arc::from)
    }

    /// An attempt is about to be sent.
    pub(crate) fn sending(&mut self, now: Moment) {
        if self.overhead.is_none() {
            let overhead = now - self.started;
            self.families.overhead.observe(overhead.as_secs_f64());
            self.overhead = Some(overhead);
        }
    }

    /// The attempt under way failed before anything of it reached the client.
    pub(crate) fn attempt_failed(&mut self, class: FailureClass) {
        if let Some(mut trace) = self.trace.take() {
            trace.attempt_failed(self, class);
            self.trace = Some(trace);
        }
    }

    /// What its answer came to so far.
    pub(crate) fn answered(&mut self, summary: Summary) {
        if self.is_kept {
            return;
        }
        self.usage = summary.usage;
        self.ttft = summary.first_token_at.map(|at| at - self.started);
    }

    /// It is not tried again, as the pool's budget for that is spent.
    pub(crate) fn deny_retry(&mut self) {
        self.retry_denied = true;
        self.model_metrics.retries_denied.inc();
    }

    /// How it ended; the first that is noted counts.
    pub(crate) fn end(&mut self, outcome: Outcome, code: Option<ErrorCode>) {
        self.end.get_or_insert((outcome, code));
    }

    fn count(&self, outcome: Outcome, took: Duration) {
        self.families.in_flight.dec();
        if outcome == Outcome::Cancelled && self.attempts > 0 {
            self.families.upstream_cancelled.inc();
        }
        self.model_metrics.count(self.endpoint, outcome, took.as_secs_f64());
        if self.client_retries.is_some_and(|earlier| earlier > 0) {
            self.model_metrics.client_retries.inc();
        }
        if let Some(ttft) = self.ttft {
            self.model_metrics.ttft.observe(ttft.as_secs_f64());
        }
        let cached = self.usage.and_then(|usage| usage.cached_tokens);
        let could_tell = self.attempts > 0 && !self.is_kept && self.endpoint.tells_cached_tokens();
        if outcome == Outcome::Ok && could_tell && cached.is_none() {
            self.model_metrics.cached_untold.inc();
        }
        let Some(usage) = self.usage else { return };
        self.model_metrics.prompt_tokens.inc_by(usage.prompt_tokens);
        self.model_metrics.completion_tokens.inc_by(usage.completion_tokens);
        if let (Some(cached), Some(evidence)) = (usage.cached_tokens, &self.evidence) {
            self.model_metrics.delivered_cached.inc_by(cached);
            self.model_metrics.predicted_cached.inc_by(evidence.predicted_cached_tokens.into());
        }
    }

    fn log(&self, outcome: Outcome, code: Option<ErrorCode>, took: Duration) {
        let millis = |d: Duration| d.as_secs_f64() * 1e3;
        let usage = self.usage;
        tracing::info!(
            request.id = self.request.as_str(),
            request.client_id = self.client_id.as_ref().and_then(|v| v.to_str().ok()),
            client.retries = self.client_retries,
            tenant.id = self.tenant.as_ref().map(TenantId::as_str),
            model = self.model.as_ref().map(ModelId::as_str),
            route = self.endpoint.as_str(),
            stream = self.stream,
            backend.id = self.backend.as_ref().map(BackendId::as_str),
            attempts = self.attempts,
            retry.denied = self.retry_denied.then_some("budget"),
            status = self.status,
            outcome = outcome.as_str(),
            error.code = code.map(ErrorCode::as_str),
            decision.reason = self.evidence.as_ref().map(|e| e.reason.as_str()),
            prompt_tokens = usage.map(|u| u.prompt_tokens),
            completion_tokens = usage.map(|u| u.completion_tokens),
            cached_tokens = usage.and_then(|u| u.cached_tokens),
            predicted_cached_tokens = self.evidence.as_ref().map(|e| e.predicted_cached_tokens),
            predicted_ttft_ms = self.evidence.as_ref().map(|e| millis(e.predicted_ttft)),
            ttft_ms = self.ttft.map(millis),
            overhead_ms = self.overhead.map(millis),
            duration_ms = millis(took),
            "request"
        );
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let took = lifecycle::monotonic() - self.started;
        let unnoted = if std::thread::panicking() {
            (Outcome::Internal, Some(ErrorCode::Internal))
        } else {
            (Outcome::Cancelled, Some(ErrorCode::ClientClosedRequest))
        };
        let (outcome, code) = self.end.unwrap_or(unnoted);
        if self.status == 0 {
            self.status = code.map_or(0, ErrorCode::http_status);
        }
        self.count(outcome, took);
        self.log(outcome, code, took);
        if let Some(trace) = self.trace.take() {
            trace.end(self, outcome, code);
        }
    }
}
