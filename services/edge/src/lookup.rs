//! Requests about a response that one engine keeps: its owner is asked, and where it is not known
//! all backends are. An engine answers 404 for what it does not keep, so asking is safe.
//!
//! Only who answers with success is known to keep it: 4xx may be about the request, whatever id it
//! names, and 401 and 403 are about the gateway's own key.

use std::sync::Arc;
use std::time::Duration;

use domain::{Backend, BackendId, BackendState, ErrorCode, ModelId};
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
/// Models of one backend that an error names.
const MOST_NAMES: usize = 4;
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
    /// A refusal that may be anybody's: of the request, or for want of room.
    refused: Option<(BackendId, Response<UpstreamBody>)>,
    /// An answer that it is not kept.
    unknown: Option<(BackendId, Response<UpstreamBody>)>,
    /// Backends that could not say.
    failed: usize,
}

impl Found {
    /// Takes note of one backend's answer.
    fn take(&mut self, backend: &BackendId, answer: Option<Response<UpstreamBody>>) {
        let Some(response) = answer else {
            self.failed += 1;
            return;
        };
        let place = match response.status() {
            status if status.is_success() => &mut self.owner,
            StatusCode::NOT_FOUND => &mut self.unknown,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return self.failed += 1,
            status if status.is_client_error() => &mut self.refused,
            _ => return self.failed += 1,
        };
        if let Some((_, other)) = place.replace((backend.clone(), response)) {
            other.into_body().discard();
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
        record.is_kept = true;
        record.sending(lifecycle::monotonic());
        let Found { owner, refused, unknown, failed } = self.ask(&request).await;
        record.attempts = 1;
        // One that could not be asked may keep it.
        let unknown = unknown.filter(|_| failed == 0);
        let Some((backend, response)) = owner.or(refused).or(unknown) else {
            record.end(Outcome::UpstreamError, Some(ErrorCode::UpstreamUnavailable));
            return Err(not_all_asked().into());
        };
        if response.status().is_success() {
            self.gateway.owners.learn(self.id, &backend);
        }
        record.backend = Some(backend);
        Ok(self.answer(response, errors))
    }

    /// The backend that keeps the response: the one that is known to, or says so when asked at
    /// `target`. `None` if it is nowhere.
    ///
    /// # Errors
    /// It is not known who does.
    pub(crate) async fn keeper(
        mut self,
        target: Option<PathAndQuery>,
        request: &str,
    ) -> Result<Option<Arc<Backend>>, Refusal> {
        let Some(target) = target else { return Ok(None) };
        self.target = target;
        if let Some(known) = self.known() {
            return Ok(Some(known));
        }
        let Found { owner, failed, .. } = self.ask(request).await;
        let Some((owner, response)) = owner else {
            return if failed == 0 { Ok(None) } else { Err(not_all_asked().into()) };
        };
        response.into_body().discard();
        self.gateway.owners.learn(self.id, &owner);
        Ok(self.backend(&owner))
    }

    /// The backend that is known to keep the response, while there is such a backend.
    fn known(&self) -> Option<Arc<Backend>> {
        self.backend(&self.gateway.owners.of(self.id)?)
    }

    fn backend(&self, id: &BackendId) -> Option<Arc<Backend>> {
        let fleet = self.gateway.routing.fleet();
        fleet.backends.iter().find(|backend| backend.id == *id).cloned()
    }

    /// Asks the owner, if it is known, and unless that keeps it the others.
    async fn ask(&self, request: &str) -> Found {
        let mut found = Found { owner: None, refused: None, unknown: None, failed: 0 };
        let fleet = self.gateway.routing.fleet();
        let is_asked = |backend: &&Arc<Backend>| self.may_see(backend) && can_tell(backend);
        let mut backends: Vec<_> = fleet.backends.iter().filter(is_asked).cloned().collect();
        if let Some(known) = self.known().filter(|known| self.may_see(known)) {
            match backends.iter().position(|backend| backend.id == known.id) {
                Some(at) => {
                    let owner = backends.swap_remove(at);
                    let answer = self.send(&owner, request).await;
                    found.take(&owner.id, answer);
                    if found.refused.is_some() {
                        return found;
                    }
                }
                // It is away, and may come back.
                None => found.failed += 1,
            }
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

    /// Whether a backend has a model that the tenant may use.
    fn may_see(&self, backend: &Backend) -> bool {
        backend.models.iter().any(|served| self.tenant.may_use(served.id.as_str()))
    }

    async fn send(&self, backend: &Backend, request: &str) -> Option<Response<UpstreamBody>> {
        let key = self.gateway.fleet.current().key(&backend.id);
        let make = || {
            let (mut head, body) = Request::new(Outgoing::empty()).into_parts();
            head.method = self.method.clone();
            head.uri = Uri::from(self.target.clone());
            let id = HeaderValue::from_str(request);
            let id = id.unwrap_or_else(|_| HeaderValue::from_static("invalid"));
            headers::for_attempt(&mut head, &self.headers, id, key.as_ref(), None);
            Request::from_parts(head, body)
        };
        let connect = self.rules.timeouts.connect;
        match timeout(PATIENCE, self.gateway.upstream.send(&backend.url, connect, make)).await {
            Ok(Ok(response)) => {
                if response.status() == StatusCode::UNAUTHORIZED {
                    self.gateway.key_refused(request, Some(&backend.id));
                }
                Some(response)
            }
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
            StatusCode::TOO_MANY_REQUESTS => {
                Exchange::passing(body, lease, limits, Outcome::BackPressure, now)
            }
            _ => Exchange::passing(body, lease, limits, Outcome::ClientError, now),
        };
        exchange.release();
        Answer { head, exchange }
    }
}

/// Whether a backend can be asked for what it keeps: one that drains takes nothing new, but what it
/// has goes on.
fn can_tell(backend: &Backend) -> bool {
    matches!(backend.state, BackendState::Ready | BackendState::Draining)
}

fn not_all_asked() -> ApiError {
    let message = "not every engine could be asked for this response; try again";
    ApiError::new(ErrorCode::UpstreamUnavailable, message)
}

/// Whether a backend can ever go on with `model` from what it keeps. One that is down may come
/// back, and its client is told to try again.
///
/// # Errors
/// It cannot.
pub(crate) fn check_going_on(
    keeper: &Backend,
    model: &ModelId,
    tenant: &Tenant,
) -> Result<(), ApiError> {
    let instead = "send the conversation itself in `input`, without `previous_response_id`";
    let message = match keeper.state {
        BackendState::Draining | BackendState::Maintenance => {
            format!("the engine that keeps this response takes no more requests; {instead}")
        }
        BackendState::Joining | BackendState::Down => return Ok(()),
        BackendState::Ready if keeper.serves(model) => return Ok(()),
        BackendState::Ready => {
            let models = keeper.models.iter().map(|served| served.id.as_str());
            let models = models.filter(|model| tenant.may_use(model));
            let names: Vec<_> = models.take(MOST_NAMES).map(|m| format!("'{m}'")).collect();
            match names.is_empty() {
                true => format!("this response belongs to another model; {instead}"),
                false => format!(
                    "this response belongs to {}, not to the model that is asked for; ask for \
                     that one, or {instead}",
                    names.join(" or ")
                ),
            }
        }
    };
    let error = ApiError::new(ErrorCode::PreviousResponseUnusable, message);
    Err(error.with_param("previous_response_id"))
}
