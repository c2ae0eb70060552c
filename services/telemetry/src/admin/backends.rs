//! `/admin/v1/backends`: the engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use config_store::Revision;
use config_store::typed::Stored;
use domain::desired::{Backend, LifecycleWish, UnknownFields};
use domain::{BackendId, EngineKind, Moment};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, missing};
use super::auth::Author;
use super::extract::{Condition, Document, Id, Params, Tagged};
use super::observed::Observed;
use super::page::{Page, PageQuery};
use super::problem::{Changing, Claiming, Code, Listing, Problem, Reading};
use crate::claims::Taken;

/// What is wanted of an engine.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BackendSpec {
    /// Scheme, host and port: `http://10.0.0.7:8000`.
    #[schema(max_length = 512, pattern = r"^https?://[A-Za-z0-9._~:\[\]-]+$")]
    url: String,
    /// The software behind it; found out by itself if absent.
    #[schema(value_type = Option<String>, pattern = "^(vllm|sglang|llama-cpp|other)$")]
    engine: Option<EngineKind>,
    /// The name under which the services' own config has the credential for it.
    #[schema(pattern = "^[!-~]{1,128}$")]
    credential: Option<String>,
    /// What is wanted of it: `ready` if absent.
    #[serde(default)]
    #[schema(value_type = String, pattern = "^(ready|draining|maintenance)$", default = "ready")]
    wish: LifecycleWish,
}

/// An engine: what is wanted of it, and what was seen.
#[derive(Debug, Serialize, ToSchema)]
struct BackendView {
    /// Its name.
    id: String,
    /// Scheme, host and port.
    url: String,
    /// The software behind it, where it was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'static str>,
    /// The name of the credential that it asks for: every edge needs an entry of that name in its
    /// own config.
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<String>,
    /// `ready`, `draining` or `maintenance`.
    wish: &'static str,
    /// `operator`, `announced`, or `config` for one that stands in telemetry's config file: of it the
    /// wish alone can be changed here, until telemetry ends.
    source: &'static str,
    /// The join token that it announced itself with.
    #[serde(skip_serializing_if = "Option::is_none")]
    announced_by: Option<String>,
    /// The revision of what is wanted; absent for one of the config file.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    /// What was seen of it last; absent until telemetry has taken it up.
    #[serde(skip_serializing_if = "Option::is_none")]
    observed: Option<Observed>,
}

impl BackendView {
    fn stored(stored: Stored<Backend>, seen: Option<&domain::Backend>, now: Moment) -> Self {
        let Stored { document, revision, .. } = stored;
        let source = if document.announced.is_some() { "announced" } else { "operator" };
        Self {
            id: document.id.to_string(),
            url: document.url,
            engine: document.engine.map(EngineKind::as_str),
            credential: document.credential,
            wish: document.wish.as_str(),
            source,
            announced_by: document.announced.map(|announced| announced.token),
            revision: Some(revision.0),
            observed: seen.map(|backend| Observed::of(backend, now)),
        }
    }

    fn of_config(seen: &domain::Backend, wish: LifecycleWish, now: Moment) -> Self {
        Self {
            id: seen.id.to_string(),
            url: seen.url.to_string(),
            engine: None,
            credential: seen.credential.as_deref().map(str::to_owned),
            wish: wish.as_str(),
            source: "config",
            announced_by: None,
            revision: None,
            observed: Some(Observed::of(seen, now)),
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, put, delete))
        .routes(routes!(drain))
        .routes(routes!(maintain))
        .routes(routes!(ready))
}

/// Lists the engines, wanted and seen.
#[utoipa::path(get, path = "/admin/v1/backends", tag = "backends", params(PageQuery),
    responses((status = 200, body = Page<BackendView>, description = "A page of engines"), Listing))]
async fn list(
    State(api): State<Arc<Api>>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<BackendView>>, Problem> {
    let (revision, stored) = api.all::<Backend>().await?;
    let (fleet, now) = (api.fleet.borrow().clone(), lifecycle::monotonic());
    let of_config = |seen: &Arc<domain::Backend>| {
        (seen.id.clone(), BackendView::of_config(seen, api.file.wish(&seen.id), now))
    };
    let mut views: BTreeMap<BackendId, BackendView> =
        fleet.backends.iter().map(of_config).collect();
    // What the file has comes before a document of that name, which counts for nothing.
    for stored in stored.into_iter().filter(|s| !api.file.has(s.document.id.as_str())) {
        let id = stored.document.id.clone();
        let seen = fleet.backend(&id).map(|seen| &**seen);
        views.insert(id, BackendView::stored(stored, seen, now));
    }
    Ok(Json(query.cut(revision, views.into_values().collect(), |view| &view.id, |view| view)))
}

/// Shows an engine.
#[utoipa::path(get, path = "/admin/v1/backends/{id}", tag = "backends",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$")),
    responses((status = 200, body = BackendView, description = "The engine",
        headers(("etag" = String, description = "The revision of what is wanted; absent for an \
            engine of the config file"))), Reading))]
async fn get(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Response, Problem> {
    let now = lifecycle::monotonic();
    let seen = seen(&api, &id);
    if !api.file.has(&id)
        && let Some(stored) = api.find::<Backend>(&id).await?
    {
        let revision = stored.revision;
        let view = BackendView::stored(stored, seen.as_deref(), now);
        return Ok(Tagged::ok(revision, view).into_response());
    }
    let seen = seen.ok_or_else(|| missing::<Backend>(&id))?;
    Ok(Json(BackendView::of_config(&seen, api.file.wish(&seen.id), now)).into_response())
}

/// Adds an engine (`If-None-Match: *`) or replaces what is wanted of one (`If-Match`).
#[utoipa::path(put, path = "/admin/v1/backends/{id}", tag = "backends",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "The ETag of what is replaced, or `*`"),
        ("if-none-match" = Option<String>, Header, description = "`*` to add")),
    request_body = BackendSpec,
    responses(
        (status = 200, body = BackendView, description = "Replaced",
            headers(("etag" = String, description = "Its revision"))),
        (status = 201, body = BackendView, description = "Added",
            headers(("etag" = String, description = "Its revision"))),
        Claiming))]
async fn put(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
    Document(spec): Document<BackendSpec>,
) -> Result<Tagged<BackendView>, Problem> {
    if let Err(message) = crate::config::parse_url(&spec.url) {
        return Err(Problem::new(Code::InvalidDocument, message).at("url"));
    }
    let (_, stored) = api.all::<Backend>().await?;
    let stored = stored.iter().map(|stored| &stored.document);
    if let Some(taken) = api.file.taken(&id, &spec.url, stored) {
        return Err(Problem::new(Code::Taken, taken.to_string()).at(taken.field()));
    }
    let make = |before: Option<&Backend>| Backend {
        id: id.as_str().into(),
        url: spec.url.clone(),
        engine: spec.engine,
        credential: spec.credential.clone(),
        wish: spec.wish,
        announced: before.and_then(|before| before.announced.clone()).map(operated),
        unknown: before.map_or_else(UnknownFields::new, |before| before.unknown.clone()),
    };
    let put = api.put(&id, &condition, &by, make).await?;
    let revision = put.stored.revision;
    let view = BackendView::stored(put.stored, seen(&api, &id).as_deref(), lifecycle::monotonic());
    Ok(Tagged::put(put.created, revision, view))
}

/// Removes an engine. What it still runs goes on to its end; drain it first to wait for that.
#[utoipa::path(delete, path = "/admin/v1/backends/{id}", tag = "backends",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "The ETag of what is removed, or `*`")),
    responses((status = 204, description = "Removed"), Claiming))]
async fn delete(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    match api.delete::<Backend>(&id, &condition, &by).await {
        // There is one, and it is not in the store.
        Err(problem) if problem.is(Code::NotFound) && api.file.has(&id) => Err(of_file()),
        outcome => outcome.map(|()| StatusCode::NO_CONTENT),
    }
}

/// A backend of the config file cannot be changed so.
fn of_file() -> Problem {
    Problem::new(Code::Taken, Taken::Name.to_string()).at(Taken::Name.field())
}

/// An operator has decided: the wish is no longer one that the engine's silence made.
fn operated(announced: domain::desired::Announced) -> domain::desired::Announced {
    domain::desired::Announced { withdrawn: false, ..announced }
}

fn seen(api: &Api, id: &str) -> Option<Arc<domain::Backend>> {
    api.fleet.borrow().backend(&BackendId::new(id)).cloned()
}

async fn wish(
    api: &Api,
    id: &str,
    condition: &Condition,
    by: &Author,
    wish: LifecycleWish,
) -> Result<Response, Problem> {
    if api.file.has(id) {
        return wish_of_file(api, id, condition, by, wish);
    }
    let change = |backend: &mut Backend| {
        backend.wish = wish;
        backend.announced = backend.announced.take().map(operated);
    };
    let stored = api.modify(id, condition, by, change).await?;
    let revision = stored.revision;
    let view = BackendView::stored(stored, seen(api, id).as_deref(), lifecycle::monotonic());
    Ok(Tagged::ok(revision, view).into_response())
}

/// Of an engine of the config file a wish holds as long as the process: the store has no document
/// of it, and the file is not ours to write.
fn wish_of_file(
    api: &Api,
    id: &str,
    condition: &Condition,
    by: &Author,
    wish: LifecycleWish,
) -> Result<Response, Problem> {
    let seen = seen(api, id).ok_or_else(|| missing::<Backend>(id))?;
    condition.check(Some(Revision::ZERO))?;
    api.file.want(&seen.id, wish);
    tracing::info!(
        backend.id = %seen.id, wish = wish.as_str(), author = %by.0,
        "an operator's wish for a backend of the config file, until telemetry ends",
    );
    Ok(Json(BackendView::of_config(&seen, wish, lifecycle::monotonic())).into_response())
}

macro_rules! wishes {
    ($($(#[$doc:meta])* $name:ident $path:literal $wish:expr;)*) => {$(
        $(#[$doc])*
        #[utoipa::path(post, path = $path, tag = "backends",
            params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$"),
                ("if-match" = Option<String>, Header, description = "Only if it is at that ETag")),
            responses((status = 200, body = BackendView, description = "The engine as it is wanted",
                headers(("etag" = String, description = "Its revision; absent for an engine of the \
                    config file"))), Changing))]
        async fn $name(
            State(api): State<Arc<Api>>,
            by: Author,
            condition: Condition,
            Id(id): Id,
        ) -> Result<Response, Problem> {
            wish(&api, &id, &condition, &by, $wish).await
        }
    )*};
}

wishes! {
    /// Wants an engine to finish what it has and to take nothing new.
    drain "/admin/v1/backends/{id}/drain" LifecycleWish::Draining;
    /// Takes an engine out of service: nothing new, and its probes raise no alarm.
    maintain "/admin/v1/backends/{id}/maintenance" LifecycleWish::Maintenance;
    /// Wants an engine to take requests, once its probes succeed.
    ready "/admin/v1/backends/{id}/ready" LifecycleWish::Ready;
}
