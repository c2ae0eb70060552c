//! From a request's head to its answer.

mod body;
mod form;
mod forwarding;
mod intake;
mod realtime;

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
use http::{Request, Response, StatusCode, request};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use openai_api::{ApiError, Dialect, MAX_RESPONSE_ID_BYTES};

use self::realtime::{Ends, Held};
use crate::access::{Access, Denied};
use crate::endpoint::{self, Matched};
use crate::gateway::Gateway;
use crate::headers::{self, REQUEST_ID, X_REQUEST_ID};
use crate::metrics::Outcome;
use crate::models;
use crate::record::Record;
use crate::refusal::{self, ErrorForm, Refusal};
use crate::response::{EdgeBody, Watchlist};
use crate::rules::Rules;
use crate::server::Seat;
use crate::tenant::Tenant;
use crate::trace::RequestTrace;

/// The answer to `/version`.
const VERSION: &str = concat!("{\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}");

/// Answers a request. Never fails and never panics.
pub(crate) async fn handle(
    gateway: Arc<Gateway>,
    access: Arc<Access>,
    request: Request<Incoming>,
    watchlist: Watchlist,
) -> Response<EdgeBody> {
    let started = lifecycle::monotonic();
    let (mut head, body) = request.into_parts();
    let switch = Switch { client: head.extensions.remove(), seat: head.extensions.remove() };
    let matched = endpoint::find(&head.method, head.uri.path());
    let mut record = Record::new(
        Arc::clone(&gateway.families),
        Arc::clone(gateway.fleet.other()),
        gateway.ids.mint(),
        matched.endpoint(),
        started,
    );
    record.client_id = headers::client_request_id(&head.headers);
    record.client_retries = headers::client_retries(&head.headers);
    record.trace = RequestTrace::begin(&gateway.tracer, &head.headers);
    let dialect = endpoint::dialect(head.uri.path());
    let errors = ErrorForm { dialect, request: record.label() };
    let rules = Arc::clone(access.rules());
    let arrival = Arrival { gateway: &gateway, rules: &rules, head: &head, errors: &errors };
    let answering = AssertUnwindSafe(answer(arrival, access, matched, (body, switch), record));
    let mut answering = pin!(answering.catch_unwind());
    let answered = poll_fn(|cx| match answering.as_mut().poll(cx) {
        Poll::Pending if gateway.cut.load(Ordering::Relaxed) => Poll::Ready(None),
        other => other.map(Some),
    });
    let mut response = match answered.await {
        Some(Ok(response)) => response,
        None => {
            let message = "the gateway is shutting down; try again";
            Refusal::new(ApiError::new(ErrorCode::Overloaded, message)).into_response(&errors)
        }
        Some(Err(_)) => {
            gateway.families.panics.inc();
            let message = "the gateway failed; the request id tells which request it was";
            Refusal::new(ApiError::new(ErrorCode::Internal, message)).into_response(&errors)
        }
    };
    let status = response.status();
    match dialect {
        Dialect::Anthropic => {
            response.headers_mut().insert(REQUEST_ID, errors.request.clone());
        }
        Dialect::OpenAi | Dialect::Responses => {
            let took = lifecycle::monotonic() - started;
            headers::add_processing_time(response.headers_mut(), status, took);
        }
        Dialect::Cohere => {}
    }
    response.headers_mut().insert(X_REQUEST_ID, errors.request.clone());
    if head.version == http::Version::HTTP_2 {
        // A header of connections that serve one request at a time.
        response.headers_mut().remove(CONNECTION);
        return response.map(|body| body.watched_by(&watchlist));
    }
    if gateway.drain.is_draining() && status != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn answer(
    arrival: Arrival<'_>,
    access: Arc<Access>,
    matched: Matched<'_>,
    (mut body, switch): (Incoming, Switch),
    mut record: Record,
) -> Response<EdgeBody> {
    let found = match matched {
        // What is in the chunks is not known, and so neither is what would come after them.
        _ if headers::is_transfer_coded(&arrival.head.headers) => Err(Refusal::new(ApiError::new(
            ErrorCode::UnsupportedTransferCoding,
            "of transfer codings only `chunked` is taken, alone; send the body as it is",
        ))
        .closing(true)),
        Matched::NotFound => Err(Refusal::new(ApiError::new(
            ErrorCode::RouteNotFound,
            "there is no such route; see the API's documentation for those that exist",
        ))),
        Matched::EndlessResponse => Err(Refusal::new(
            ApiError::new(
                ErrorCode::InvalidRequest,
                format!("the id of a response has at most {MAX_RESPONSE_ID_BYTES} bytes"),
            )
            .with_param("response_id"),
        )),
        Matched::WrongMethod(_, methods) => Err(Refusal::new(ApiError::new(
            ErrorCode::MethodNotAllowed,
            format!("this route takes {methods}"),
        ))
        .allow(methods)),
        Matched::Health => Ok(refusal::json(Bytes::from_static(b"{\"status\":\"ok\"}"))),
        Matched::Version => version(arrival, access, &mut record),
        Matched::Models | Matched::Model(_) => listing(arrival, access, matched, &mut record),
        Matched::Realtime => {
            return realtime(arrival, access, (body, switch), record).await;
        }
        Matched::Forward(..) | Matched::Form(_) | Matched::Bodyless(_) | Matched::Response(_) => {
            return forwarding::forward(arrival, access, matched, body, record).await;
        }
    };
    // None of these routes wants a body; one that comes all the same is read off like that of any
    // refusal.
    let read = body::read_off(&mut body, &arrival.head.headers).await;
    match found {
        Ok(mut response) => {
            if !read {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            record.status = response.status().as_u16();
            record.end(Outcome::Ok, None);
            response
        }
        Err(refusal) => refuse(arrival.gateway, refusal.closing(!read), arrival.errors, record),
    }
}

/// What becomes of the client's connection if it switches protocols.
struct Switch {
    client: Option<OnUpgrade>,
    seat: Option<Arc<Seat>>,
}

/// Opens a session, and leaves it to a task of its own.
async fn realtime(
    arrival: Arrival<'_>,
    access: Arc<Access>,
    (mut body, switch): (Incoming, Switch),
    mut record: Record,
) -> Response<EdgeBody> {
    let Arrival { gateway, rules, errors, .. } = arrival;
    let opening = async {
        let tenant = identify(arrival, access, &mut record)?;
        let permit = forwarding::admit(&tenant, record.started, &mut None)?;
        let client = realtime::check(arrival, switch.client)?;
        let opened = realtime::open(arrival, &tenant, &mut record).await?;
        Ok::<_, Refusal>((opened, client, permit))
    };
    let (opened, client, permit) = match opening.await {
        Ok(opened) => opened,
        Err(refusal) => {
            let read = body::read_off(&mut body, &arrival.head.headers).await;
            return refuse(gateway, refusal.closing(!read), errors, record);
        }
    };
    record.status = opened.response.status().as_u16();
    if let Some(session) = opened.session {
        let held = Held::new(record, permit, switch.seat);
        let ends = Ends {
            drain: gateway.drain.clone(),
            notice: rules.drain_notice,
            idle: rules.timeouts.session_idle,
        };
        let carried = realtime::carry(session, client, held, ends);
        gateway.spawner.spawn("edge-realtime", carried);
    }
    opened.response
}

/// A request whose head has come.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    gateway: &'a Gateway,
    /// What the config file said when it came, which holds for all of it.
    rules: &'a Arc<Rules>,
    head: &'a request::Parts,
    errors: &'a ErrorForm,
}

/// Notes and counts a refusal, and makes it an answer.
fn refuse(
    gateway: &Gateway,
    refusal: Refusal,
    errors: &ErrorForm,
    mut record: Record,
) -> Response<EdgeBody> {
    let code = refusal.error.code;
    record.status = refusal.status(errors);
    // Where an engine failed, that was noted already.
    if code == ErrorCode::ClientClosedRequest {
        record.end(Outcome::Cancelled, Some(code));
    } else {
        record.end(Outcome::Rejected, Some(code));
        gateway.families.count_rejected(code);
    }
    refusal.into_response(errors)
}

fn listing(
    arrival: Arrival<'_>,
    access: Arc<Access>,
    matched: Matched<'_>,
    record: &mut Record,
) -> Result<Response<EdgeBody>, Refusal> {
    let tenant = identify(arrival, access, record)?;
    let (fleet, aliases) = (arrival.gateway.fleet.current(), &arrival.rules.aliases);
    let body = match matched {
        Matched::Model(name) => models::one(&fleet, &tenant, aliases, name).ok_or_else(|| {
            let message = "no such model; /v1/models lists those that there are";
            ApiError::new(ErrorCode::ModelNotFound, message).with_param("model")
        })?,
        _ => models::list(&fleet, &tenant, aliases),
    };
    Ok(refusal::json(body))
}

/// Versions are nobody's business who has no key.
fn version(
    arrival: Arrival<'_>,
    access: Arc<Access>,
    record: &mut Record,
) -> Result<Response<EdgeBody>, Refusal> {
    identify(arrival, access, record)?;
    Ok(refusal::json(Bytes::from_static(VERSION.as_bytes())))
}

/// Takes `access`: all keys and tenants of one moment are not kept for as long as a request lasts.
fn identify(
    arrival: Arrival<'_>,
    access: Arc<Access>,
    record: &mut Record,
) -> Result<Arc<Tenant>, Refusal> {
    let Arrival { gateway, head, .. } = arrival;
    let identified = gateway.access.identify(&access, &head.headers, record.started);
    let tenant = identified.map_err(|denied| match denied {
        Denied::NoKey => {
            let message = "no valid API key; send it as `Authorization: Bearer sk-wp-...` or as \
                           `x-api-key: sk-wp-...`";
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
