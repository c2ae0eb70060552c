//! `/admin/v1/tenants`: who shares limits, and the limits.
//!
//! A tenant and its limits are two documents, so each has an entity tag of its own.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use config_store::typed::Stored;
use domain::desired::{ApiKey, Limits, Tenant, UnknownFields};
use domain::{ModelId, TenantId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::auth::Author;
use super::extract::{Condition, Document, Id, Params, Tagged};
use super::page::{Page, PageQuery};
use super::problem::{Changing, Code, Listing, Problem, Reading, Replacing};

/// A tenant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TenantSpec {
    /// Models that it may use; all if absent.
    #[schema(value_type = Option<Vec<String>>)]
    models: Option<Vec<ModelId>>,
    /// Whether answers tell in headers which backend was chosen and why.
    #[serde(default)]
    debug_headers: bool,
}

/// How much a tenant may ask for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LimitsSpec {
    /// Requests per minute; unlimited if absent.
    #[schema(minimum = 0, maximum = 4294967295u32)]
    requests_per_minute: Option<u32>,
    /// Requests open at once; unlimited if absent.
    #[schema(minimum = 0, maximum = 4294967295u32)]
    max_concurrency: Option<u32>,
}

/// A tenant with its limits.
#[derive(Debug, Serialize, ToSchema)]
struct TenantView {
    /// Its name.
    id: String,
    /// Models that it may use; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<String>>,
    /// Whether answers tell which backend was chosen and why.
    debug_headers: bool,
    /// How much it may ask for; without limits if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<LimitsView>,
    /// The revision of the tenant, without its limits.
    revision: u64,
}

/// Limits.
#[derive(Debug, Serialize, ToSchema)]
struct LimitsView {
    /// Requests per minute; unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_minute: Option<u32>,
    /// Requests open at once; unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_concurrency: Option<u32>,
    /// Their revision.
    revision: u64,
}

impl TenantView {
    fn new(stored: Stored<Tenant>, limits: Option<Stored<Limits>>) -> Self {
        let Stored { document, revision, .. } = stored;
        Self {
            id: document.id.to_string(),
            models: document.models.map(|m| m.iter().map(ModelId::to_string).collect()),
            debug_headers: document.debug_headers,
            limits: limits.map(LimitsView::from),
            revision: revision.0,
        }
    }
}

impl From<Stored<Limits>> for LimitsView {
    fn from(stored: Stored<Limits>) -> Self {
        let Limits { requests_per_minute, max_concurrency, .. } = stored.document;
        Self { requests_per_minute, max_concurrency, revision: stored.revision.0 }
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, delete)).routes(routes!(
        get_limits,
        put_limits,
        delete_limits
    ))
}

/// Lists the tenants.
#[utoipa::path(get, path = "/admin/v1/tenants", tag = "tenants", params(PageQuery),
    responses((status = 200, body = Page<TenantView>, description = "A page of tenants"), Listing))]
async fn list(
    State(api): State<Arc<Api>>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<TenantView>>, Problem> {
    let (_, limits) = api.all::<Limits>().await?;
    let by_tenant = limits.into_iter().map(|stored| (stored.document.tenant.clone(), stored));
    let limits: HashMap<TenantId, Stored<Limits>> = by_tenant.collect();
    let view = |stored: Stored<Tenant>| {
        let limits = limits.get(&stored.document.id).cloned();
        TenantView::new(stored, limits)
    };
    Ok(Json(api.page(&query, |_| true, view).await?))
}

/// Shows a tenant with its limits.
#[utoipa::path(get, path = "/admin/v1/tenants/{id}", tag = "tenants",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$")),
    responses((status = 200, body = TenantView, description = "The tenant",
        headers(("etag" = String, description = "The revision of the tenant, without its limits"))),
        Reading))]
async fn get(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Tagged<TenantView>, Problem> {
    let stored = api.get::<Tenant>(&id).await?;
    let limits = api.find::<Limits>(&id).await?;
    Ok(Tagged::ok(stored.revision, TenantView::new(stored, limits)))
}

/// Adds a tenant (`If-None-Match: *`) or replaces one (`If-Match`). Its limits stay.
#[utoipa::path(put, path = "/admin/v1/tenants/{id}", tag = "tenants",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "The ETag of what is replaced, or `*`"),
        ("if-none-match" = Option<String>, Header, description = "`*` to add")),
    request_body = TenantSpec,
    responses(
        (status = 200, body = TenantView, description = "Replaced",
            headers(("etag" = String, description = "Its revision"))),
        (status = 201, body = TenantView, description = "Added",
            headers(("etag" = String, description = "Its revision"))),
        Replacing))]
async fn put(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
    Document(spec): Document<TenantSpec>,
) -> Result<Tagged<TenantView>, Problem> {
    let make = |before: Option<&Tenant>| Tenant {
        id: id.as_str().into(),
        models: spec.models.clone(),
        debug_headers: spec.debug_headers,
        unknown: before.map_or_else(UnknownFields::new, |before| before.unknown.clone()),
    };
    if condition == Condition::Absent {
        drop_leftover_limits(&api, &id, &by).await?;
    }
    let put = api.put(&id, &condition, &by, make).await?;
    let limits = api.find::<Limits>(&id).await?;
    let revision = put.stored.revision;
    Ok(Tagged::put(put.created, revision, TenantView::new(put.stored, limits)))
}

/// Removes a tenant and its limits. One that has keys is not removed: revoke them first.
#[utoipa::path(delete, path = "/admin/v1/tenants/{id}", tag = "tenants",
    params(("id" = String, Path, description = "Its name", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "The ETag of what is removed, or `*`")),
    responses((status = 204, description = "Removed"), Changing))]
async fn delete(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    let present = api.get::<Tenant>(&id).await?;
    condition.check(Some(present.revision))?;
    let (_, keys) = api.all::<ApiKey>().await?;
    let held = keys.iter().filter(|key| key.document.tenant.as_str() == id).count();
    if held > 0 {
        let detail = format!("tenants/{id} has {held} keys: revoke them first");
        return Err(Problem::new(Code::InUse, detail));
    }
    // Read before: one of that name that is made in between keeps its own.
    let limits = api.find::<Limits>(&id).await?;
    api.delete::<Tenant>(&id, &condition, &by).await?;
    // The tenant goes first: without limits it must never be. Limits that a crash leaves behind
    // are limits of nobody, and go when a tenant of that name is made.
    let Some(limits) = limits else { return Ok(StatusCode::NO_CONTENT) };
    match api.delete::<Limits>(&id, &Condition::At(vec![limits.revision]), &by).await {
        Err(problem) if !gone_already(&problem) => Err(problem),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Shows a tenant's limits.
#[utoipa::path(get, path = "/admin/v1/tenants/{id}/limits", tag = "tenants",
    params(("id" = String, Path, description = "The tenant", pattern = "^[!-~]{1,128}$")),
    responses((status = 200, body = LimitsView, description = "The limits",
        headers(("etag" = String, description = "Their revision"))), Reading))]
async fn get_limits(
    State(api): State<Arc<Api>>,
    Id(id): Id,
) -> Result<Tagged<LimitsView>, Problem> {
    let stored = api.get::<Limits>(&id).await?;
    Ok(Tagged::ok(stored.revision, stored.into()))
}

/// Sets a tenant's limits: first ones by `If-None-Match: *`, others by `If-Match`.
#[utoipa::path(put, path = "/admin/v1/tenants/{id}/limits", tag = "tenants",
    params(("id" = String, Path, description = "The tenant", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "The ETag of what is replaced, or `*`"),
        ("if-none-match" = Option<String>, Header, description = "`*` to set the first")),
    request_body = LimitsSpec,
    responses(
        (status = 200, body = LimitsView, description = "Replaced",
            headers(("etag" = String, description = "Their revision"))),
        (status = 201, body = LimitsView, description = "Set",
            headers(("etag" = String, description = "Their revision"))),
        Replacing))]
async fn put_limits(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
    Document(spec): Document<LimitsSpec>,
) -> Result<Tagged<LimitsView>, Problem> {
    api.get::<Tenant>(&id).await?;
    let make = |before: Option<&Limits>| Limits {
        tenant: id.as_str().into(),
        requests_per_minute: spec.requests_per_minute,
        max_concurrency: spec.max_concurrency,
        unknown: before.map_or_else(UnknownFields::new, |before| before.unknown.clone()),
    };
    let put = api.put(&id, &condition, &by, make).await?;
    Ok(Tagged::put(put.created, put.stored.revision, put.stored.into()))
}

/// Lifts a tenant's limits.
#[utoipa::path(delete, path = "/admin/v1/tenants/{id}/limits", tag = "tenants",
    params(("id" = String, Path, description = "The tenant", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "The ETag of what is lifted, or `*`")),
    responses((status = 204, description = "Lifted"), Changing))]
async fn delete_limits(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    api.delete::<Limits>(&id, &condition, &by).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes limits of a tenant that is not there: a crash in the midst of a removal leaves them.
async fn drop_leftover_limits(api: &Api, id: &str, by: &Author) -> Result<(), Problem> {
    // Read before it is looked for the tenant: if somebody else makes it meanwhile, the limits
    // that they set are at another revision, and stay.
    let Some(left) = api.find::<Limits>(id).await? else { return Ok(()) };
    if api.find::<Tenant>(id).await?.is_some() {
        return Ok(());
    }
    let condition = Condition::At(vec![left.revision]);
    match api.delete::<Limits>(id, &condition, by).await {
        Err(problem) if !gone_already(&problem) => Err(problem),
        _ => Ok(()),
    }
}

fn gone_already(problem: &Problem) -> bool {
    problem.is(Code::NotFound) || problem.is(Code::PreconditionFailed)
}
