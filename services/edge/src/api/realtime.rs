//! Realtime sessions: a WebSocket between a client and the engine with the least load. What is
//! said in it is theirs; the gateway opens it, carries it and ends it.

mod heard;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::{ErrorCode, FailureClass, Route};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version, response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use lifecycle::Drain;
use openai_api::ApiError;
use tokio::io::copy_bidirectional;

use self::heard::HeardIo;
use super::Arrival;
use super::forwarding::only_model;
use crate::access::ANONYMOUS;
use crate::fleet::ModelView;
use crate::gateway::{Gateway, KEY_REFUSED};
use crate::headers;
use crate::lease::Lease;
use crate::limits::Permit;
use crate::metrics::Outcome;
use crate::record::Record;
use crate::refusal::Refusal;
use crate::response::EdgeBody;
use crate::server::Seat;
use crate::tenant::Tenant;
use crate::upstream::{Outgoing, Switched};

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
/// How often the router is told that a session lasts: it takes a booking for lost of which it hears
/// nothing for an hour.
const ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// The one version that there is of WebSockets.
const VERSION: &[u8] = b"13";

/// An answer, and the session that begins with it, if one does.
pub(super) struct Opened {
    pub(super) response: Response<EdgeBody>,
    pub(super) session: Option<Session>,
}

/// The engine's end of a session.
pub(super) struct Session {
    engine: Upgraded,
    lease: Lease,
}

/// Everything that lives as long as a session.
pub(super) struct Held {
    record: Record,
    _permit: Permit,
    /// The client's connection counts on.
    _seat: Option<Arc<Seat>>,
}

impl Held {
    pub(super) fn new(record: Record, permit: Permit, seat: Option<Arc<Seat>>) -> Self {
        Self { record, _permit: permit, _seat: seat }
    }
}

/// The client's end of the WebSocket that a request asks for (RFC 6455 section 4.2.1).
pub(super) fn check(arrival: Arrival<'_>, client: Option<OnUpgrade>) -> Result<OnUpgrade, Refusal> {
    let (head, headers) = (arrival.head, &arrival.head.headers);
    let asks = head.version == Version::HTTP_11
        && headers::lists(headers, CONNECTION, "upgrade")
        && headers::lists(headers, UPGRADE, "websocket");
    let Some(client) = client.filter(|_| asks) else {
        let message = "this route takes WebSocket connections over HTTP/1.1: `connection: upgrade` \
                       and `upgrade: websocket`";
        return Err(ApiError::new(ErrorCode::InvalidRequest, message).into());
    };
    if only(headers, SEC_WEBSOCKET_VERSION) != Some(VERSION) {
        let message = "this route takes WebSocket version 13; see `sec-websocket-version`";
        return Err(ApiError::new(ErrorCode::UpgradeRequired, message).into());
    }
    if !only(headers, SEC_WEBSOCKET_KEY).is_some_and(is_key) {
        let message = "`sec-websocket-key` must be 16 bytes in base64";
        return Err(ApiError::new(ErrorCode::InvalidRequest, message).into());
    }
    let has_body = only(headers, CONTENT_LENGTH).unwrap_or(b"0") != b"0";
    if has_body || headers.contains_key(TRANSFER_ENCODING) {
        let message = "a request that opens a session has no body; what comes behind it is said in \
                       the session";
        return Err(ApiError::new(ErrorCode::InvalidRequest, message).into());
    }
    Ok(client)
}

/// The value of a header that is given once.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&[u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.as_bytes().trim_ascii();
    values.next().is_none().then_some(value)
}

/// Whether these are 16 bytes in base64: 22 letters, and two signs for what is missing of the last
/// three bytes.
fn is_key(value: &[u8]) -> bool {
    let letters = value.strip_suffix(b"==").unwrap_or_default();
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    letters.len() == 22 && letters.iter().all(is_letter)
}

/// Finds an engine that takes the session.
pub(super) async fn open(
    arrival: Arrival<'_>,
    tenant: &Tenant,
    record: &mut Record,
) -> Result<Opened, Refusal> {
    let (gateway, rules) = (arrival.gateway, arrival.rules);
    let headers = arrival.headers(tenant)?;
    let model = only_model(arrival, tenant)?;
    record.model = Some(model.id.clone());
    record.model_metrics = Arc::clone(&model.metrics);
    let (mut excluded, mut refusals, mut fault) = (Vec::new(), Refusals::default(), None);
    for attempt in 0..u32::try_from(rules.max_attempts).unwrap_or(u32::MAX) {
        let now = lifecycle::monotonic();
        let Some(turn) = model.retries.turn(rules.retry_budget, attempt, now) else {
            record.deny_retry();
            break;
        };
        let route = route(&model, record, attempt, excluded.clone());
        let Ok(decision) = gateway.routing.route(route).await else {
            model.retries.unused(turn);
            break;
        };
        if let Some(class) = fault {
            gateway.families.count_retry(class);
        }
        let now = lifecycle::monotonic();
        let mut lease = Lease::new(Arc::clone(&gateway.routing), decision.lease, now);
        let rank = decision.chosen.rank.clone();
        record.attempts += 1;
        record.backend = Some(rank.backend.clone());
        record.evidence = Some(decision.evidence);
        record.sending(now);
        excluded.push(rank.clone());
        let pinned = decision.chosen.pin_rank.then_some(rank.rank);
        let key = gateway.fleet.current().key(&rank.backend);
        let request = request(arrival, &headers, record, key.as_ref(), pinned);
        let asking =
            gateway.upstream.upgrade(&decision.chosen.url, rules.timeouts.connect, request);
        let class = match tokio::time::timeout(rules.timeouts.first_token, asking).await {
            Ok(Ok(Switched::To(mut head, engine))) => {
                agree(&mut head.headers);
                let response = Response::from_parts(head, EdgeBody::full(""));
                return Ok(Opened { response, session: Some(Session { engine, lease }) });
            }
            Ok(Ok(Switched::Refused(head, body))) => {
                refusals.take(gateway, record, &mut lease, (head, body))
            }
            Ok(Err(_)) => FailureClass::Connection,
            Err(_) => FailureClass::Timeout,
        };
        lease.fail(class);
        if class == FailureClass::ClientError {
            break;
        }
        fault = Some(class);
    }
    refusals.end(record)
}

/// What engines said that take no session.
#[derive(Default)]
struct Refusals {
    /// The last one that may reach the client.
    last: Option<Response<EdgeBody>>,
    /// Whether one wants a key that this edge has not.
    key: bool,
}

impl Refusals {
    fn take(
        &mut self,
        gateway: &Gateway,
        record: &Record,
        lease: &mut Lease,
        (mut head, body): (response::Parts, Bytes),
    ) -> FailureClass {
        if head.status == StatusCode::UNAUTHORIZED {
            gateway.key_refused(record.request.as_str(), record.backend.as_ref());
            self.key = true;
            lease.turned_away();
            return FailureClass::BackPressure;
        }
        // Servers say 403 of any session that they close before they have agreed to it.
        let class = if head.status == StatusCode::FORBIDDEN {
            lease.turned_away();
            FailureClass::BackPressure
        } else {
            let class = class_of(head.status);
            lease.refused(class, &head.headers);
            class
        };
        headers::for_client(&mut head.headers);
        head.headers.remove(CONTENT_LENGTH);
        self.last = Some(Response::from_parts(head, EdgeBody::full(body)));
        class
    }

    /// No attempt is left: the last engine's own answer, or an error of ours.
    fn end(self, record: &mut Record) -> Result<Opened, Refusal> {
        if let Some(response) = self.last {
            let client = response.status().is_client_error();
            let outcome = if client { Outcome::ClientError } else { Outcome::UpstreamError };
            record.end(outcome, None);
            return Ok(Opened { response, session: None });
        }
        record.end(Outcome::UpstreamError, Some(ErrorCode::UpstreamUnavailable));
        let message = match self.key {
            true => KEY_REFUSED,
            false => "no engine could take the session; try again",
        };
        Err(ApiError::new(ErrorCode::UpstreamUnavailable, message).into())
    }
}

fn route(model: &ModelView, record: &Record, attempt: u32, excluded: Vec<domain::RankId>) -> Route {
    Route {
        request: record.request.clone(),
        client_request: record.client_label(),
        attempt,
        tenant: record.tenant.clone().unwrap_or_else(|| ANONYMOUS.into()),
        model: model.id.clone(),
        prompt: None,
        max_output_tokens: None,
        stream: false,
        excluded,
        hold: Duration::ZERO,
        ranked: Vec::new(),
    }
}

fn request(
    arrival: Arrival<'_>,
    headers: &HeaderMap,
    record: &Record,
    key: Option<&HeaderValue>,
    rank: Option<u16>,
) -> Request<Outgoing> {
    let (mut head, body) = Request::new(Outgoing::empty()).into_parts();
    head.uri = Uri::from(arrival.target());
    let id = HeaderValue::from_str(record.request.as_str());
    let id = id.unwrap_or_else(|_| HeaderValue::from_static("invalid"));
    headers::for_attempt(&mut head, headers, id, key, rank);
    agree(&mut head.headers);
    Request::from_parts(head, body)
}

/// The headers that both sides say of the switch.
fn agree(headers: &mut HeaderMap) {
    headers::for_client(headers);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
}

const fn class_of(status: StatusCode) -> FailureClass {
    match status.as_u16() {
        429 | 503 => FailureClass::BackPressure,
        400..500 => FailureClass::ClientError,
        _ => FailureClass::ServerError,
    }
}

/// When the gateway ends a session of its own accord.
pub(super) struct Ends {
    pub(super) drain: Drain,
    /// So long after a drain has begun.
    pub(super) notice: Duration,
    /// When neither side has said anything for so long.
    pub(super) idle: Duration,
}

/// Carries a session until one side ends it, or the gateway does.
pub(super) async fn carry(session: Session, client: OnUpgrade, mut held: Held, ends: Ends) {
    let Session { engine, mut lease } = session;
    let Ok(client) = client.await else { return };
    let (mut client, mut engine) = (HeardIo::new(TokioIo::new(client)), TokioIo::new(engine));
    let heard = client.heard();
    let mut carried = pin!(copy_bidirectional(&mut client, &mut engine));
    let mut draining = pin!(async {
        ends.drain.signaled().await;
        tokio::time::sleep(ends.notice).await;
    });
    let outcome = loop {
        let left = (heard.at() + ends.idle) - lifecycle::monotonic();
        tokio::select! {
            ended = carried.as_mut() => break match ended {
                Ok(_) => Outcome::Ok,
                // Sessions end as often as not with a reset by their client.
                Err(_) => Outcome::Cancelled,
            },
            () = draining.as_mut() => break Outcome::Shutdown,
            () = tokio::time::sleep(left.min(ALIVE_INTERVAL)) => {
                let now = lifecycle::monotonic();
                if now - heard.at() >= ends.idle {
                    break Outcome::Cancelled;
                }
                lease.alive(now);
            }
        }
    };
    lease.finish(None);
    held.record.end(outcome, None);
    drop(held);
}
