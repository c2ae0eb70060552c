//! From a request's head to its answer.

mod body;

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use domain::ErrorCode;
use futures_util::FutureExt;
use http::header::{CONNECTION, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, request};
use http_body::Body;
use hyper::body::Incoming;
use openai_api::{ApiError, RouteKind};

use crate::access::Denied;
use crate::endpoint::{self, Matched};
use crate::forward::{Answer, Forward};
use crate::gateway::Gateway;
use crate::headers::{self, X_REQUEST_ID};
use crate::limits::{Permit, RateState};
use crate::metrics::Outcome;
use crate::prepare::{Prepared, Unprepared, prepare};
use crate::record::Record;
use crate::refusal::{self, Refusal};
use crate::response::{EdgeBody, ForwardBody, Watchlist};
use crate::tenant::Tenant;
use crate::trace::RequestTrace;
use crate::{debug_headers, models};

/// Bodies up to this length are read and rendered where they arrive: at most a few tenths of a
/// millisecond, about what moving them to another thread and back costs on a busy machine.
const INLINE_BYTES: usize = 64 * 1024;
/// So many bytes are tokenised there too, if they were not before: about a millisecond.
const INLINE_TOKENIZED_BYTES: usize = 4 * 1024;

/// Answers a request. Never fails and never panics.
pub(crate) async fn handle(
    gateway: Arc<Gateway>,
    request: Request<Incoming>,
    watchlist: Watchlist,
) -> Response<EdgeBody> {
    let started = lifecycle::monotonic();
    let (head, body) = request.into_parts();
    let matched = endpoint::find(&head.method, head.uri.path());
    let mut record = Record::new(
        Arc::clone(&gateway.families),
        Arc::clone(gateway.fleet.other()),
        gateway.ids.mint(),
        matched.endpoint(),
        started,
    );
    record.client_id = headers::client_request_id(&head.headers);
    record.trace = RequestTrace::begin(&gateway.tracer, &head.headers);
    let label = record.label();
    let answering = AssertUnwindSafe(answer(&gateway, &head, matched, body, record));
    let mut answering = pin!(answering.catch_unwind());
    let answered = poll_fn(|cx| match answering.as_mut().poll(cx) {
        Poll::Pending if gateway.cut.load(Ordering::Relaxed) => Poll::Ready(None),
        other => other.map(Some),
    });
    let mut response = match answered.await {
        Some(Ok(response)) => response,
        None => {
            let message = "the gateway is shutting down; try again";
            Refusal::new(ApiError::new(ErrorCode::Overloaded, message)).into_response()
        }
        Some(Err(_)) => {
            gateway.families.panics.inc();
            let message = "the gateway failed; the request id tells which request it was";
            Refusal::new(ApiError::new(ErrorCode::Internal, message)).into_response()
        }
    };
    response.headers_mut().insert(X_REQUEST_ID, label);
    if head.version == http::Version::HTTP_2 {
        // A header of connections that serve one request at a time.
        response.headers_mut().remove(CONNECTION);
        return response.map(|body| body.watched_by(&watchlist));
    }
    if gateway.drain.is_draining() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn answer(
    gateway: &Gateway,
    head: &request::Parts,
    matched: Matched<'_>,
    body: Incoming,
    mut record: Record,
) -> Response<EdgeBody> {
    let found = match matched {
        Matched::NotFound => Err(Refusal::new(ApiError::new(
            ErrorCode::RouteNotFound,
            "there is no such route; see the API's documentation for those that exist",
        ))),
        Matched::WrongMethod(_, methods) => Err(Refusal::new(ApiError::new(
            ErrorCode::MethodNotAllowed,
            format!("this route takes {methods}"),
        ))
        .allow(methods)),
        Matched::Health => Ok(refusal::json(Bytes::from_static(b"{\"status\":\"ok\"}"))),
        Matched::Models | Matched::Model(_) => listing(gateway, head, matched, &mut record),
        Matched::Forward(_, kind) => return forward(gateway, head, kind, body, record).await,
    };
    match found {
        Ok(response) => {
            record.status = response.status().as_u16();
            record.end(Outcome::Ok, None);
            response
        }
        Err(refusal) => refuse(gateway, refusal, record),
    }
}

/// Notes and counts a refusal, and makes it an answer.
fn refuse(gateway: &Gateway, refusal: Refusal, mut record: Record) -> Response<EdgeBody> {
    let code = refusal.error.code;
    record.status = code.http_status();
    // Where an engine failed, that was noted already.
    record.end(Outcome::Rejected, Some(code));
    gateway.families.count_rejected(code);
    refusal.into_response()
}

fn listing(
    gateway: &Gateway,
    head: &request::Parts,
    matched: Matched<'_>,
    record: &mut Record,
) -> Result<Response<EdgeBody>, Refusal> {
    let tenant = identify(gateway, &head.headers, record)?;
    let fleet = gateway.fleet.current();
    let body = match matched {
        Matched::Model(name) => models::one(&fleet, &tenant, name).ok_or_else(|| {
            let message = "no such model; /v1/models lists those that there are";
            ApiError::new(ErrorCode::ModelNotFound, message).with_param("model")
        })?,
        _ => models::list(&fleet, &tenant),
    };
    Ok(refusal::json(body))
}

fn identify(
    gateway: &Gateway,
    headers: &HeaderMap,
    record: &mut Record,
) -> Result<Arc<Tenant>, Refusal> {
    let identified = gateway.access.identify(headers, record.started);
    let tenant = identified.map_err(|denied| match denied {
        Denied::NoKey => {
            let message = "no valid API key; send it as `Authorization: Bearer sk-wp-...`";
            Refusal::new(ApiError::new(ErrorCode::InvalidApiKey, message))
        }
        Denied::CannotTell => {
            let message = "keys cannot be checked at the moment; try again";
            Refusal::new(ApiError::new(ErrorCode::Overloaded, message))
                .retry_after(Some(std::time::Duration::from_secs(1)))
        }
    })?;
    record.tenant = Some(tenant.id().clone());
    Ok(tenant)
}

async fn forward(
    gateway: &Gateway,
    head: &request::Parts,
    kind: RouteKind,
    mut body: Incoming,
    mut record: Record,
) -> Response<EdgeBody> {
    let mut rate = None;
    let forwarded = async {
        let tenant = identify(gateway, &head.headers, &mut record)?;
        let permit = admit(&tenant, record.started, &mut rate)?;
        // The memory is given back when the engine has the body.
        let (bytes, _memory) = body::read(&mut body, &head.headers, gateway).await?;
        let prepared = prepare_somewhere(gateway, bytes, kind, &tenant).await?;
        note(&prepared, &mut record, gateway);
        let target = head.uri.path_and_query().cloned();
        let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let headers = headers::for_engine(&head.headers);
        // Large, as it holds the exchange; it lives on the heap with the handler all the same.
        let answer =
            Box::pin(Forward::new(gateway, prepared, target, headers).run(&mut record)).await?;
        Ok::<_, Refusal>((answer, permit, tenant))
    }
    .await;
    let mut response = match forwarded {
        Ok((answer, permit, tenant)) => pass(answer, permit, &tenant, record),
        Err(refusal) => {
            let read = body.is_end_stream() || body::drain(&mut body, &head.headers).await;
            refuse(gateway, refusal.closing(!read), record)
        }
    };
    if let Some(state) = rate {
        refusal::add_rate(response.headers_mut(), state);
    }
    response
}

/// The cheap checks: how many requests are open, and how many came.
fn admit(
    tenant: &Tenant,
    now: domain::Moment,
    rate: &mut Option<RateState>,
) -> Result<Permit, Refusal> {
    // The permit first: a request that the rate refuses gives it back, while one that finds no
    // room must not have been counted against the rate.
    let permit = tenant.open().ok_or_else(|| {
        let message = "too many requests are open for this key; wait for one to end";
        Refusal::new(ApiError::new(ErrorCode::ConcurrencyLimitExceeded, message))
            .retry_after(Some(std::time::Duration::from_secs(1)))
    })?;
    match tenant.take(now) {
        Ok(state) => {
            *rate = state;
            Ok(permit)
        }
        Err(exceeded) => {
            *rate = Some(exceeded.state);
            let message = "too many requests per minute for this key; slow down";
            Err(Refusal::new(ApiError::new(ErrorCode::RateLimitExceeded, message))
                .retry_after(Some(exceeded.retry_after)))
        }
    }
}

/// Prepares a body here, or on a thread for long work.
async fn prepare_somewhere(
    gateway: &Gateway,
    bytes: Bytes,
    kind: RouteKind,
    tenant: &Arc<Tenant>,
) -> Result<Prepared, Refusal> {
    let fleet = gateway.fleet.current();
    if bytes.len() <= INLINE_BYTES {
        let secret = gateway.region_secret.expose();
        match prepare(&bytes, kind, &fleet, tenant, secret, INLINE_TOKENIZED_BYTES) {
            Ok(prepared) => return Ok(prepared),
            Err(Unprepared::Refused(error)) => return Err(error.into()),
            Err(Unprepared::TooLong) => {}
        }
    }
    let internal = || ApiError::new(ErrorCode::Internal, "the gateway failed to read the request");
    let turn = gateway.heavy.turn(bytes.len()).await.ok_or_else(internal)?;
    let (tenant, secret) = (Arc::clone(tenant), gateway.region_secret.clone());
    let working = tokio::task::spawn_blocking(move || {
        let prepared = prepare(&bytes, kind, &fleet, &tenant, secret.expose(), usize::MAX);
        drop(turn);
        prepared
    });
    match working.await {
        Ok(Ok(prepared)) => Ok(prepared),
        Ok(Err(Unprepared::Refused(error))) => Err(error.into()),
        Ok(Err(Unprepared::TooLong)) | Err(_) => Err(internal().into()),
    }
}

fn note(prepared: &Prepared, record: &mut Record, gateway: &Gateway) {
    record.stream = prepared.stream;
    record.model = Some(prepared.model.clone());
    if let Some(view) = &prepared.view {
        record.model_metrics = Arc::clone(&view.metrics);
    }
    if let Some(took) = prepared.keys_took {
        gateway.families.tokenize.observe(took.as_secs_f64());
    }
}

/// Makes an engine's answer the client's.
fn pass(answer: Answer, permit: Permit, tenant: &Tenant, mut record: Record) -> Response<EdgeBody> {
    let Answer { mut head, exchange } = answer;
    head.version = http::Version::HTTP_11;
    head.extensions.clear();
    headers::for_client(&mut head.headers);
    if headers::is_event_stream(&head.headers) {
        headers::for_event_stream(&mut head.headers);
    }
    record.usage = exchange.summary().usage;
    if tenant.debug_headers() {
        debug_headers::add(&mut head.headers, &record);
    }
    record.status = head.status.as_u16();
    Response::from_parts(head, EdgeBody::Forward(ForwardBody::new(exchange, record, permit)))
}
