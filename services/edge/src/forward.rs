//! Asking for a rank, sending the request there, and asking again while nothing of an answer
//! has reached the client.

use std::sync::Arc;
use std::time::Duration;

use domain::{
    Backend, BackendId, Candidate, Decision, EngineKind, ErrorCode, FailureClass, Moment, RankId,
    Rejected, Route, TenantId,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, response};
use openai_api::{ApiError, RouteKind};
use tokio::time::timeout;
use traces::TRACEPARENT;

use crate::access::ANONYMOUS;
use crate::config::Timeouts;
use crate::exchange::{AnswerKeys, Commit, Exchange, Form, Limits, Span};
use crate::gateway::{Gateway, KEY_REFUSED};
use crate::headers;
use crate::lease::Lease;
use crate::metrics::Outcome;
use crate::owners::Origin;
use crate::payload::Payload;
use crate::prepare::Prepared;
use crate::record::Record;
use crate::refusal::{ErrorForm, Refusal};
use crate::retries::RetryBudget;
use crate::rules::Rules;
use crate::upstream::{Outgoing, UpstreamBody};

/// An engine's answer that goes to the client.
pub(crate) struct Answer {
    pub(crate) head: response::Parts,
    pub(crate) exchange: Exchange,
}

/// How an engine is asked.
pub(crate) struct Call {
    pub(crate) method: Method,
    /// The path and query the client used.
    pub(crate) target: PathAndQuery,
    pub(crate) headers: HeaderMap,
    /// How the client is told what goes wrong.
    pub(crate) errors: ErrorForm,
}

/// One request on its way to an engine.
pub(crate) struct Forward<'a> {
    gateway: &'a Gateway,
    rules: &'a Rules,
    prepared: Prepared,
    call: Call,
    /// How often it was sent: engines take the request id as a key, so no two may be alike.
    sends: u32,
    timeouts: Timeouts,
    body_limit: usize,
    excluded: Vec<RankId>,
    /// What is left of the last decision's candidates.
    ranked: Vec<Candidate>,
    /// The answer of the engine that failed last, for when there is no other.
    last: Option<Answer>,
    /// How the last attempt failed.
    fault: Option<FailureClass>,
    /// What the next engine is told of the trace.
    traceparent: Option<HeaderValue>,
    /// Whether an engine refused the gateway's key.
    unauthorized: bool,
}

/// What became of one attempt.
enum Attempt {
    /// This goes to the client.
    Answer(Answer),
    /// Another engine may do better; if none is left, this is the answer.
    Failed(FailureClass, Option<Answer>),
    /// The client went away while it sent its body.
    Abandoned(Refusal),
}

impl<'a> Forward<'a> {
    /// `only`: the backend that has to answer.
    pub(crate) fn new(
        (gateway, rules): (&'a Gateway, &'a Rules),
        prepared: Prepared,
        call: Call,
        only: Option<&BackendId>,
    ) -> Self {
        Self {
            gateway,
            rules,
            prepared,
            call,
            sends: 0,
            timeouts: rules.timeouts,
            body_limit: usize::MAX,
            excluded: only.map(|only| all_but(only, gateway)).unwrap_or_default(),
            ranked: Vec::new(),
            last: None,
            fault: None,
            traceparent: None,
            unauthorized: false,
        }
    }

    /// Runs attempts until one is good, none is left, or there were enough.
    pub(crate) async fn run(mut self, record: &mut Record) -> Result<Answer, Refusal> {
        self.timeouts = self.rules.terms.timeouts(record.endpoint, &self.prepared.model);
        self.body_limit = self.rules.terms.body_limit_bytes(record.endpoint);
        let budget = self.budget();
        // A request that does not stream has one limit over all attempts.
        let whole_by = lifecycle::monotonic() + self.timeouts.total;
        for attempt in 0..u32::try_from(self.rules.max_attempts).unwrap_or(u32::MAX) {
            if !self.prepared.stream && lifecycle::monotonic() >= whole_by {
                break;
            }
            let route = self.route(attempt, record);
            let asked = lifecycle::monotonic();
            let Some(turn) = budget.turn(self.rules.retry_budget, attempt, asked) else {
                record.deny_retry();
                break;
            };
            let answer = self.gateway.routing.route(route).await;
            if let Some(trace) = &record.trace {
                trace.routed(asked, &answer);
            }
            let decision = match answer {
                Ok(decision) => decision,
                Err(rejected) => {
                    budget.unused(turn);
                    return self.give_up(Some(&rejected), record);
                }
            };
            if let Some(class) = self.fault {
                self.gateway.families.count_retry(class);
            }
            match self.attempt(decision, whole_by, record).await {
                Attempt::Answer(answer) => {
                    if let Some(old) = self.last {
                        old.exchange.discard();
                    }
                    return Ok(answer);
                }
                Attempt::Abandoned(refusal) => return Err(refusal),
                Attempt::Failed(class, answer) => {
                    record.attempt_failed(class);
                    self.fault = Some(class);
                    if let Some(old) = answer.and_then(|a| self.last.replace(a)) {
                        old.exchange.discard();
                    }
                    if let Some(refusal) = self.refused_body() {
                        return Err(refusal);
                    }
                    if self.prepared.body.is_spent() {
                        break;
                    }
                }
            }
        }
        self.give_up(None, record)
    }

    /// What the requests of its pool may be tried again by.
    fn budget(&self) -> Arc<RetryBudget> {
        let own = self.prepared.view.as_ref().map(|view| &view.retries);
        Arc::clone(own.unwrap_or_else(|| self.gateway.fleet.other_retries()))
    }

    /// The client's own body broke the attempt.
    fn refused_body(&self) -> Option<Refusal> {
        self.prepared.body.refusal(self.body_limit)
    }

    fn route(&self, attempt: u32, record: &Record) -> Route {
        Route {
            request: record.request.clone(),
            client_request: record.client_label(),
            attempt,
            tenant: record.tenant.clone().unwrap_or_else(|| TenantId::from(ANONYMOUS)),
            model: self.prepared.model.clone(),
            prompt: self.prepared.prompt.clone(),
            max_output_tokens: self.prepared.max_output_tokens,
            stream: self.prepared.stream,
            excluded: self.excluded.clone(),
            hold: self.backend_wait(),
            ranked: self.ranked.clone(),
        }
    }

    /// How long a backend is waited for: not at all for a model that none was ever seen with.
    fn backend_wait(&self) -> Duration {
        let serves = |backend: &Arc<Backend>| backend.serves(&self.prepared.model);
        match self.rules.backend_wait {
            Duration::ZERO => Duration::ZERO,
            wait if self.gateway.routing.fleet().backends.iter().any(serves) => wait,
            _ => Duration::ZERO,
        }
    }

    async fn attempt(
        &mut self,
        decision: Decision,
        whole_by: Moment,
        record: &mut Record,
    ) -> Attempt {
        let now = lifecycle::monotonic();
        let mut lease = Lease::new(Arc::clone(&self.gateway.routing), decision.lease, now);
        let rank = decision.chosen.rank.clone();
        record.attempts += 1;
        record.backend = Some(rank.backend.clone());
        record.evidence = Some(decision.evidence);
        record.sending(now);
        self.traceparent = self.traced(&decision.chosen, record, now);
        self.excluded.push(rank);
        self.ranked = decision.others;
        let (span, head_by) = span(self.prepared.stream, whole_by, now, &self.timeouts);
        let errors = self.call.errors.clone();
        let limits = Limits { span, cut: Arc::clone(&self.gateway.cut), errors };
        match timeout(head_by - now, self.send(&decision.chosen, record)).await {
            Err(_) => failed(&mut lease, FailureClass::Timeout),
            Ok(Err(fault)) => {
                match self.refused_body() {
                    // The lease says so when it is dropped.
                    Some(gone) if gone.error.code == ErrorCode::ClientClosedRequest => {
                        return Attempt::Abandoned(gone);
                    }
                    Some(_) => return failed(&mut lease, FailureClass::ClientError),
                    None => {}
                }
                tracing::warn!(
                    request.id = record.request.as_str(),
                    backend.id = record.backend.as_ref().map(BackendId::as_str),
                    error = %fault,
                    "an engine could not be asked"
                );
                failed(&mut lease, FailureClass::Connection)
            }
            Ok(Ok(response)) if response.status() == StatusCode::UNAUTHORIZED => {
                self.unauthorized(lease, record)
            }
            Ok(Ok(response)) => {
                let origin = self.origin(&decision.chosen.rank.backend);
                self.judge(response, lease, limits, origin).await
            }
        }
    }

    /// What the engine is told of the trace, where the request is traced.
    fn traced(&self, to: &Candidate, record: &mut Record, now: Moment) -> Option<HeaderValue> {
        let trace = record.trace.as_mut()?;
        let fleet = self.gateway.routing.fleet();
        let backend = fleet.backends.iter().find(|backend| backend.id == to.rank.backend);
        let engine = backend.map_or(EngineKind::Other, |backend| backend.engine);
        trace.attempt(&to.url, engine, record.attempts.saturating_sub(1), now)
    }

    async fn send(
        &mut self,
        to: &Candidate,
        record: &Record,
    ) -> Result<Response<UpstreamBody>, crate::upstream::SendError> {
        let Self { gateway, rules, prepared, call, sends, traceparent, .. } = self;
        let connect = rules.timeouts.connect;
        let key = gateway.fleet.current().key(&to.rank.backend);
        let rank = to.pin_rank.then_some(to.rank.rank);
        let mut make = |body: Outgoing| {
            let id = upstream_id(record.request.as_str(), *sends);
            *sends += 1;
            let (mut head, body) = Request::new(body).into_parts();
            head.method = call.method.clone();
            head.uri = Uri::from(call.target.clone());
            headers::for_attempt(&mut head, &call.headers, id, key.as_ref(), rank);
            if let Some(value) = traceparent {
                head.headers.insert(TRACEPARENT, value.clone());
            }
            Request::from_parts(head, body)
        };
        match &prepared.body {
            Payload::Held(pieces) => {
                let make = || make(Outgoing::Whole(pieces.clone()));
                gateway.upstream.send(&to.url, connect, make).await
            }
            Payload::Streamed(body) => {
                let make = || make(body.take().unwrap_or_else(Outgoing::empty));
                gateway.upstream.send_once(&to.url, connect, make).await
            }
        }
    }

    /// To the router it is as if the engine were full: other edges may have the key.
    fn unauthorized(&mut self, mut lease: Lease, record: &Record) -> Attempt {
        self.gateway.key_refused(record.request.as_str(), record.backend.as_ref());
        self.unauthorized = true;
        lease.turned_away();
        Attempt::Failed(FailureClass::BackPressure, None)
    }

    /// Decides by the head of an answer, and for a good one by its beginning.
    async fn judge(
        &self,
        response: Response<UpstreamBody>,
        mut lease: Lease,
        limits: Limits,
        origin: Option<Origin>,
    ) -> Attempt {
        let (head, body) = response.into_parts();
        let now = lifecycle::monotonic();
        let (class, outcome) = match head.status {
            status if status.is_success() => {
                let exchange = self.exchange(&head, body, lease, limits).with_origin(origin);
                return hold(head, exchange).await;
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                (FailureClass::BackPressure, Outcome::BackPressure)
            }
            // Another protocol, which nobody asked for: there is no answer to hand on.
            status if status.is_informational() => {
                return failed(&mut lease, FailureClass::Connection);
            }
            status if status.is_server_error() => {
                (FailureClass::ServerError, Outcome::UpstreamError)
            }
            _ => (FailureClass::ClientError, Outcome::ClientError),
        };
        lease.refused(class, &head.headers);
        let mut exchange = Exchange::passing(body, lease, limits, outcome, now);
        exchange.release();
        let answer = Answer { head, exchange };
        match class {
            FailureClass::ClientError => Attempt::Answer(answer),
            _ => Attempt::Failed(class, Some(answer)),
        }
    }

    /// Remembers who keeps a response.
    fn origin(&self, backend: &BackendId) -> Option<Origin> {
        let owners = &self.gateway.owners;
        (self.prepared.kind == RouteKind::Responses)
            .then(|| Origin::new(Arc::clone(owners), backend.clone()))
    }

    fn exchange(
        &self,
        head: &response::Parts,
        body: UpstreamBody,
        lease: Lease,
        mut limits: Limits,
    ) -> Exchange {
        let grammar = self.prepared.kind.grammar();
        let form = if headers::is_event_stream(&head.headers) {
            // Not every request is read for whether it streams; its answer tells.
            if let Span::Whole { by } = limits.span {
                limits.span = span(true, by, lifecycle::monotonic(), &self.timeouts).0;
            }
            Form::Events { drop_usage: self.prepared.usage_injected, grammar }
        } else if headers::is_encoded(&head.headers) {
            Form::Opaque
        } else {
            Form::Plain(grammar)
        };
        let keys = self.prepared.prompt_end.as_ref().map(|prompt| AnswerKeys {
            answers: Arc::clone(&self.gateway.answers),
            prompt: Arc::clone(prompt),
        });
        Exchange::new(body, lease, keys, limits, form, lifecycle::monotonic())
    }

    /// No attempt is left: the last engine's own answer, or an error of ours.
    fn give_up(self, rejected: Option<&Rejected>, record: &mut Record) -> Result<Answer, Refusal> {
        if let Some(answer) = self.last {
            return Ok(answer);
        }
        let retry_after = rejected.and_then(|r| r.retry_after);
        let (error, outcome) = match (self.fault, rejected) {
            (Some(FailureClass::Timeout), _) => {
                let message = "the engine took too long; try again";
                (ApiError::new(ErrorCode::Timeout, message), Outcome::Timeout)
            }
            (Some(_), _) if self.unauthorized => {
                let error = ApiError::new(ErrorCode::UpstreamUnavailable, KEY_REFUSED);
                (error, Outcome::UpstreamError)
            }
            (Some(_), _) | (None, None) => {
                let message = "no engine could answer; try again";
                (ApiError::new(ErrorCode::UpstreamUnavailable, message), Outcome::UpstreamError)
            }
            (None, Some(rejected)) => {
                let error = ApiError::from(rejected);
                let unknown = error.code == ErrorCode::ModelNotFound;
                (error, if unknown { Outcome::Rejected } else { Outcome::UpstreamError })
            }
        };
        record.end(outcome, Some(error.code));
        Err(Refusal::new(error).retry_after(retry_after))
    }
}

/// Holds a good answer back until it is sure to be one.
async fn hold(head: response::Parts, mut exchange: Exchange) -> Attempt {
    match exchange.commit().await {
        Commit::Ready => Attempt::Answer(Answer { head, exchange }),
        Commit::Failed(FailureClass::ClientError) => {
            exchange.release();
            Attempt::Answer(Answer { head, exchange })
        }
        // The engine said so itself: its words are better than ours, if it comes to that.
        Commit::Failed(FailureClass::ServerError) => {
            exchange.release();
            Attempt::Failed(FailureClass::ServerError, Some(Answer { head, exchange }))
        }
        Commit::Failed(class) => Attempt::Failed(class, None),
    }
}

/// The ranks of all other backends.
fn all_but(only: &BackendId, gateway: &Gateway) -> Vec<RankId> {
    let fleet = gateway.routing.fleet();
    let others = fleet.backends.iter().filter(|backend| backend.id != *only);
    others.flat_map(|backend| backend.ranks.iter().map(|rank| backend.rank_id(rank.rank))).collect()
}

/// How long an attempt may take, and its head.
fn span(stream: bool, whole_by: Moment, now: Moment, timeouts: &Timeouts) -> (Span, Moment) {
    if stream {
        let first_token_by = now + timeouts.first_token;
        (Span::Stream { first_token_by, idle: timeouts.idle }, first_token_by)
    } else {
        (Span::Whole { by: whole_by }, whole_by)
    }
}

fn failed(lease: &mut Lease, class: FailureClass) -> Attempt {
    lease.fail(class);
    Attempt::Failed(class, None)
}

/// The id that an engine knows the request by: ours, with a suffix each time it is sent again.
fn upstream_id(request: &str, sends: u32) -> HeaderValue {
    let id = match sends {
        0 => HeaderValue::from_str(request),
        n => HeaderValue::from_str(&format!("{request}-r{n}")),
    };
    id.unwrap_or_else(|_| HeaderValue::from_static("invalid"))
}
