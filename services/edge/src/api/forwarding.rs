//! Requests that an engine answers.

use std::sync::Arc;

use bytes::Bytes;
use domain::{Backend, BackendId, ErrorCode, ModelId};
use http::uri::PathAndQuery;
use http::{HeaderMap, Response};
use hyper::body::Incoming;
use openai_api::{ApiError, RouteKind};

use super::intake::Intake;
use super::{Arrival, body, form, identify, refuse};
use crate::access::Access;
use crate::aliases::digest;
use crate::debug_headers;
use crate::endpoint::{Endpoint, Matched, is_response_id};
use crate::fleet::{FleetView, ModelView};
use crate::forward::{Answer, Call, Forward};
use crate::gateway::Gateway;
use crate::guard;
use crate::headers;
use crate::limits::{Permit, RateState};
use crate::lookup::{self, Lookup};
use crate::memory::Full;
use crate::models;
use crate::payload::Payload;
use crate::prepare::{Desk, Prepared, Unprepared, prepare, unread, unread_form};
use crate::record::Record;
use crate::refusal::{self, Refusal};
use crate::response::{EdgeBody, ForwardBody};
use crate::tenant::Tenant;
use crate::upstream::Pieces;

/// Bodies up to this length are read and rendered where they arrive: at most a few tenths of a
/// millisecond, about what moving them to another thread and back costs on a busy machine.
const INLINE_BYTES: usize = 64 * 1024;
/// So many bytes are tokenised there too, if they were not before: about a millisecond.
const INLINE_TOKENIZED_BYTES: usize = 4 * 1024;

pub(super) async fn forward(
    arrival: Arrival<'_>,
    access: Arc<Access>,
    matched: Matched<'_>,
    body: Incoming,
    mut record: Record,
) -> Response<EdgeBody> {
    let Arrival { gateway, head, errors, .. } = arrival;
    let (mut body, mut rate) = (Some(body), None);
    let forwarded = async {
        let tenant = identify(arrival, access, &mut record)?;
        let permit = admit(&tenant, record.started, &mut rate)?;
        let answer = match matched {
            Matched::Forward(..) | Matched::Form(_) if headers::is_encoded(&head.headers) => {
                let message = "bodies must not be compressed; send it without `content-encoding`";
                return Err(ApiError::new(ErrorCode::UnsupportedContentCoding, message).into());
            }
            Matched::Forward(_, kind) => {
                with_body(arrival, kind, &mut body, &tenant, &mut record).await?
            }
            Matched::Form(_) => {
                let form =
                    form::read(&mut body, &head.headers, arrival.intake(record.endpoint)).await?;
                let fleet = gateway.fleet.current();
                let prepared = {
                    let desk = desk(arrival, &fleet, &tenant);
                    unread_form(form.model, form.payload, &desk, record.request.as_str())?
                };
                run(arrival, &tenant, prepared, None, &mut record).await?
            }
            Matched::Response(id) => {
                let lookup = arrival.lookup(id, &tenant, head.method.clone())?;
                lookup.pass(errors.clone(), &mut record).await?
            }
            _ => {
                let model = only_model(arrival, &tenant)?;
                let body = Payload::Held(Pieces::default());
                let fleet = gateway.fleet.current();
                let prepared = unread(model.id.as_str(), body, &fleet);
                run(arrival, &tenant, prepared, None, &mut record).await?
            }
        };
        Ok::<_, Refusal>((answer, permit, tenant))
    }
    .await;
    let mut response = match forwarded {
        Ok((answer, permit, tenant)) => pass(answer, permit, &tenant, record),
        Err(refusal) => {
            let read = match &mut body {
                Some(body) => body::read_off(body, &head.headers).await,
                // An engine had it, as far as it came.
                None => false,
            };
            refuse(gateway, refusal.closing(!read), errors, record)
        }
    };
    if let Some(state) = rate {
        refusal::add_rate(response.headers_mut(), state, errors.dialect);
    }
    response
}

async fn with_body(
    arrival: Arrival<'_>,
    kind: RouteKind,
    body: &mut Option<Incoming>,
    tenant: &Arc<Tenant>,
    record: &mut Record,
) -> Result<Answer, Refusal> {
    let intake = arrival.intake(record.endpoint);
    let bytes = match body {
        Some(body) => body::read(body, intake).await?,
        None => Bytes::new(),
    };
    // What an engine is not sent must not stay while it is asked: a body may be long.
    let again = (kind == RouteKind::Responses).then(|| bytes.clone());
    let prepared = prepare_somewhere(arrival, bytes, kind, tenant, None).await?;
    let (prepared, keeper) = match (prepared.previous.clone(), again) {
        (Some(id), Some(bytes)) => {
            going_on(arrival, (bytes, prepared), &id, tenant, record).await?
        }
        _ => (prepared, None),
    };
    let only = keeper.as_ref().map(|keeper| &keeper.id);
    run(arrival, tenant, prepared, only, record).await
}

/// Finds the backend that keeps the response gone on from. Each turn of such a conversation has
/// another beginning, so of an alias's models it may have drawn one that is not the response's.
async fn going_on(
    arrival: Arrival<'_>,
    (bytes, mut prepared): (Bytes, Prepared),
    id: &str,
    tenant: &Arc<Tenant>,
    record: &Record,
) -> Result<(Prepared, Option<Arc<Backend>>), Refusal> {
    let lookup = arrival.lookup(id, tenant, http::Method::GET)?;
    let keeper = lookup.keeper(kept_at(id), record.request.as_str()).await?;
    if let Some(keeper) = &keeper {
        if prepared.replaced && !keeper.serves(&prepared.model) {
            let keeper = Some(Arc::clone(keeper));
            prepared = prepare_somewhere(arrival, bytes, prepared.kind, tenant, keeper).await?;
        }
        lookup::check_going_on(keeper, &prepared.model, tenant)?;
    }
    Ok((prepared, keeper))
}

/// Where an engine tells of a response.
fn kept_at(id: &str) -> Option<PathAndQuery> {
    let path = is_response_id(id).then(|| format!("/v1/responses/{id}"))?;
    PathAndQuery::try_from(path).ok()
}

async fn run(
    arrival: Arrival<'_>,
    tenant: &Tenant,
    prepared: Prepared,
    only: Option<&BackendId>,
    record: &mut Record,
) -> Result<Answer, Refusal> {
    note(&prepared, record, arrival.gateway);
    let call = Call {
        method: arrival.head.method.clone(),
        target: arrival.target(),
        headers: arrival.headers(tenant)?,
        errors: arrival.errors.clone(),
    };
    // Large, as it holds the exchange; it lives on the heap with the handler all the same.
    Box::pin(Forward::new((arrival.gateway, arrival.rules), prepared, call, only).run(record)).await
}

impl<'a> Arrival<'a> {
    /// The path and query the client used.
    pub(super) fn target(&self) -> PathAndQuery {
        let target = self.head.uri.path_and_query().cloned();
        target.unwrap_or_else(|| PathAndQuery::from_static("/"))
    }

    /// The client's headers as an engine gets them.
    ///
    /// # Errors
    /// One of them is not open to the tenant.
    pub(super) fn headers(&self, tenant: &Tenant) -> Result<HeaderMap, ApiError> {
        let mut headers = headers::for_engine(&self.head.headers);
        guard::check_headers(&self.head.headers, tenant.fields(), &mut headers)?;
        Ok(headers)
    }

    /// The bounds of a body on a route.
    fn intake(&self, endpoint: Endpoint) -> Intake<'a> {
        let rules = self.rules;
        Intake {
            memory: &self.gateway.body_memory,
            limit: rules.terms.body_limit_bytes(endpoint),
            patience: rules.timeouts.body,
        }
    }

    fn lookup(
        &self,
        id: &'a str,
        tenant: &'a Tenant,
        method: http::Method,
    ) -> Result<Lookup<'a>, ApiError> {
        let Self { gateway, rules, .. } = *self;
        let (target, headers) = (self.target(), self.headers(tenant)?);
        Ok(Lookup { gateway, rules, tenant, id, method, target, headers })
    }
}

/// The model of a request that has no body: the one in its query, else the only one there is.
pub(super) fn only_model(arrival: Arrival<'_>, tenant: &Tenant) -> Result<Arc<ModelView>, Refusal> {
    let fleet = arrival.gateway.fleet.current();
    let named = arrival.head.uri.query().map(models::named_in_query).transpose()?.flatten();
    if let Some(name) = named {
        let may_use = |name: &str| tenant.may_use(name);
        // There is no conversation yet to keep to a model.
        let draw = || digest(arrival.errors.request.as_bytes());
        let stands = arrival.rules.aliases.resolve(&name, (&fleet, None), draw, may_use);
        let served = fleet.model(stands.map_or(name.as_str(), ModelId::as_str));
        let model = served.filter(|_| tenant.may_use(&name)).cloned();
        return model.ok_or_else(|| {
            let message = "no such model; /v1/models lists those that there are";
            ApiError::new(ErrorCode::ModelNotFound, message).with_param("model").into()
        });
    }
    let mut allowed = fleet.models().filter(|model| tenant.may_use(model.id.as_str()));
    match (allowed.next(), allowed.next()) {
        (Some(only), None) => Ok(Arc::clone(only)),
        (None, _) => {
            let message = "no backend of a model that this key may use is ready";
            Err(ApiError::new(ErrorCode::UpstreamUnavailable, message).into())
        }
        _ => {
            let message = "there are several models; name one in the query: ?model=...";
            Err(ApiError::new(ErrorCode::InvalidRequest, message).with_param("model").into())
        }
    }
}

/// The cheap checks: how many requests are open, and how many came.
pub(super) fn admit(
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
    arrival: Arrival<'_>,
    bytes: Bytes,
    kind: RouteKind,
    tenant: &Arc<Tenant>,
    keeper: Option<Arc<Backend>>,
) -> Result<Prepared, Refusal> {
    let gateway = arrival.gateway;
    let fleet = gateway.fleet.current();
    if bytes.len() <= INLINE_BYTES {
        let desk = Desk { keeper: keeper.as_deref(), ..desk(arrival, &fleet, tenant) };
        match prepare(bytes.clone(), kind, &desk, INLINE_TOKENIZED_BYTES) {
            Ok(prepared) => return Ok(prepared),
            Err(Unprepared::Refused(error)) => return Err(error.into()),
            Err(Unprepared::Full) => return Err(Full.into()),
            Err(Unprepared::TooLong) => {}
        }
    }
    let internal = || ApiError::new(ErrorCode::Internal, "the gateway failed to read the request");
    let turn = gateway.heavy.turn(bytes.len()).await.ok_or_else(internal)?;
    let (tenant, secret) = (Arc::clone(tenant), gateway.region_secret.clone());
    let (rules, memory) = (Arc::clone(arrival.rules), Arc::clone(&gateway.body_memory));
    let working = tokio::task::spawn_blocking(move || {
        let (aliases, region_secret) = (&rules.aliases, secret.expose().as_slice());
        let (tenant, memory, keeper) = (&tenant, &memory, keeper.as_deref());
        let desk = Desk { fleet: &fleet, tenant, aliases, region_secret, memory, keeper };
        let prepared = prepare(bytes, kind, &desk, usize::MAX);
        drop(turn);
        prepared
    });
    match working.await {
        Ok(Ok(prepared)) => Ok(prepared),
        Ok(Err(Unprepared::Refused(error))) => Err(error.into()),
        Ok(Err(Unprepared::Full)) => Err(Full.into()),
        Ok(Err(Unprepared::TooLong)) | Err(_) => Err(internal().into()),
    }
}

fn desk<'a>(arrival: Arrival<'a>, fleet: &'a FleetView, tenant: &'a Tenant) -> Desk<'a> {
    let region_secret = arrival.gateway.region_secret.expose();
    let memory = &arrival.gateway.body_memory;
    let aliases = &arrival.rules.aliases;
    Desk { fleet, tenant, aliases, region_secret, memory, keeper: None }
}

fn note(prepared: &Prepared, record: &mut Record, gateway: &Gateway) {
    record.stream = prepared.stream;
    record.model = Some(prepared.model.clone());
    if let Some(view) = &prepared.view {
        record.model_metrics = Arc::clone(&view.metrics);
    }
    // Any other prompt has at least a list of none.
    if prepared.prompt.as_ref().is_some_and(|prompt| prompt.keys.is_empty()) {
        gateway.families.unkeyed.inc();
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
    record.answered(exchange.summary());
    if tenant.debug_headers() {
        debug_headers::add(&mut head.headers, &record);
    }
    record.status = head.status.as_u16();
    Response::from_parts(head, EdgeBody::Forward(ForwardBody::new(exchange, record, permit)))
}
