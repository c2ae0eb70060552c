//! Requests about a response that one engine keeps: its owner is asked, and where it is not known
//! all backends are. An engine answers 404 for what it does not keep, so asking is safe.

use std::sync::Arc;
use std::time::Duration;

use domain::{Backend, BackendId, BackendState, ErrorCode};
use futures_util::StreamExt;
use futures_util::stream;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use openai_api::{ApiError, Grammar};
use tokio::time::timeout;

use crate::exchange::{Exchange, Form, Limits, Span};
use crate::forward::Answer;
use crate::gateway::Gateway;
use crate::headers;
use crate::lease::Lease;
use crate::metrics::Outcome;
use crate::record::Record;
use crate::refusal::{ErrorForm, Refusal};
use crate::rules::Rules;
use crate::tenant::Tenant;
use crate::upstream::{Outgoing, UpstreamBody};

/// Backends asked at once.
const AT_ONCE: usize = 16;
/// For the head of an answer: engines look into their memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request about one response.
pub(crate) struct Lookup<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) rules: &'a Rules,
    pub(crate) tenant: &'a Tenant,
    /// The response's id.
    pub(crate) id: &'a str,
    pub(crate) method: Method,
    pub(crate) target: PathAndQuery,
    pub(crate) headers: HeaderMap,
}

/// What the backends said.
struct Found {
    /// The one that keeps the response, and its answer.
    owner: Option<(BackendId, Response<UpstreamBody>)>,
    /// An answer that it is not kept.
    unknown: Option<(BackendId, Response<UpstreamBody>)>,
    /// Backends that could not say.
    failed: usize,
}

impl Found {
    /// Takes note of one backend's answer.
    fn take(&mut self, backend: &BackendId, answer: Option<Response<UpstreamBody>>) {
        match answer {
            Some(response) if response.status() == StatusCode::NOT_FOUND => {
                if let Some((_, other)) = self.unknown.replace((backend.clone(), response)) {
                    other.into_body().discard();
                }
            }
            Some(response) if !response.status().is_server_error() => {
                self.owner = Some((backend.clone(), response));
            }
            Some(_) | None => self.failed += 1,
        }
    }
}

impl Lookup<'_> {
    /// Passes the request to the owner.
    pub(crate) async fn pass(
        self,
        errors: ErrorForm,
        record: &mut Record,
    ) -> Result<Answer, Refusal> {
        let request = record.request.as_str().to_owned();
        record.sending(lifecycle::monotonic());
        let found = self.ask(&request).await;
        record.attempts = 1;
        let (backend, response) = match found {
            Found { owner: Some(owner), .. } => owner,
            Found { unknown: Some(unknown), failed: 0, .. } => unknown,
            _ => {
                record.end(Outcome::UpstreamError, Some(ErrorCode::UpstreamUnavailable));
                let message = "not every engine could be asked for this response; try again";
                return Err(ApiError::new(ErrorCode::UpstreamUnavailable, message).into());
            }
        };
        let known = response.status() != StatusCode::NOT_FOUND;
        if known {
            self.gateway.owners.learn(self.id, &backend);
        }
        record.backend = Some(backend);
        Ok(self.answer(response, errors))
    }

    /// The backend that keeps the response, if one says so when asked at `target`.
    pub(crate) async fn owner_at(
        mut self,
        target: Option<PathAndQuery>,
        request: &str,
    ) -> Option<BackendId> {
        self.target = target?;
        if let Some(known) = self.gateway.owners.of(self.id) {
            return Some(known);
        }
        let (owner, response) = self.ask(request).await.owner?;
        if !response.status().is_success() {
            return None;
        }
        response.into_body().discard();
        self.gateway.owners.learn(self.id, &owner);
        Some(owner)
    }

    /// Asks the owner, if it is known, and unless that keeps it the others.
    async fn ask(&self, request: &str) -> Found {
        let mut found = Found { owner: None, unknown: None, failed: 0 };
        let mut backends = self.candidates();
        let known = self.gateway.owners.of(self.id);
        if let Some(at) = known.and_then(|known| backends.iter().position(|b| b.id == known)) {
            let owner = backends.swap_remove(at);
            let answer = self.send(&owner, request).await;
            found.take(&owner.id, answer);
        }
        let asked = stream::iter(backends)
            .map(|backend| async move { (backend.id.clone(), self.send(&backend, request).await) });
        let mut answers = std::pin::pin!(asked.buffer_unordered(AT_ONCE));
        while found.owner.is_none()
            && let Some((backend, answer)) = answers.next().await
        {
            found.take(&backend, answer);
        }
        found
    }

    /// Ready backends with a model that the tenant may use.
    fn candidates(&self) -> Vec<Arc<Backend>> {
        let allowed = |backend: &&Arc<Backend>| {
            backend.state == BackendState::Ready
                && backend.models.iter().any(|m| self.tenant.may_use(m.id.as_str()))
        };
        self.gateway.routing.fleet().backends.iter().filter(allowed).cloned().collect()
    }

    async fn send(&self, backend: &Backend, request: &str) -> Option<Response<UpstreamBody>> {
        let key = self.gateway.fleet.current().key(&backend.id);
        let make = || {
            let (mut head, body) = Request::new(Outgoing::Whole(None)).into_parts();
            head.method = self.method.clone();
            head.uri = Uri::from(self.target.clone());
            let id = HeaderValue::from_str(request);
            let id = id.unwrap_or_else(|_| HeaderValue::from_static("invalid"));
            headers::for_attempt(&mut head, &self.headers, id, key.as_ref(), None);
            Request::from_parts(head, body)
        };
        let connect = self.rules.timeouts.connect;
        match timeout(PATIENCE, self.gateway.upstream.send(&backend.url, connect, make)).await {
            Ok(Ok(response)) => Some(response),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// An answer that books nothing.
    fn answer(&self, response: Response<UpstreamBody>, errors: ErrorForm) -> Answer {
        let (head, body) = response.into_parts();
        let (now, timeouts) = (lifecycle::monotonic(), &self.rules.timeouts);
        let is_stream = headers::is_event_stream(&head.headers);
        let (span, form) = if is_stream {
            let first_token_by = now + timeouts.first_token;
            let grammar = Grammar::Responses;
            let form = Form::Events { drop_usage: false, grammar };
            (Span::Stream { first_token_by, idle: timeouts.idle }, form)
        } else {
            (Span::Whole { by: now + timeouts.total }, Form::Opaque)
        };
        let limits = Limits { span, cut: Arc::clone(&self.gateway.cut), errors };
        let lease = Lease::none(Arc::clone(&self.gateway.routing));
        let mut exchange = match head.status {
            status if status.is_success() => Exchange::new(body, lease, None, limits, form, now),
            _ => Exchange::passing(body, lease, limits, Outcome::ClientError, now),
        };
        exchange.release();
        Answer { head, exchange }
    }
}
