//! `/admin/v1/keys`: API keys of tenants. A key is shown once, when it is made; its hash never.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use config_store::typed::Stored;
use credentials::GeneratedKey;
use domain::desired::{ApiKey, Tenant, UnknownFields};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::auth::Author;
use super::extract::{Condition, Document, Id, Params, Tagged};
use super::page::{Limit, Page, PageQuery};
use super::problem::{Changing, Code, Creating, Listing, Problem, Reading};

/// Whose key is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    /// The tenant; it must exist.
    #[schema(pattern = "^[!-~]{1,128}$")]
    tenant: String,
}

/// A key without its secret.
#[derive(Debug, Serialize, ToSchema)]
struct KeyView {
    /// The public part.
    id: String,
    /// Whose key it is.
    tenant: String,
    /// The revision at which it was made.
    revision: u64,
}

/// A new key, the only time that it is shown.
#[derive(Debug, Serialize, ToSchema)]
struct NewKey {
    /// The public part.
    id: String,
    /// Whose key it is.
    tenant: String,
    /// The revision at which it was made.
    revision: u64,
    /// The key as its holder sends it. It is stored nowhere.
    key: String,
}

/// Which keys.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct KeyQuery {
    /// Begin behind this id: the `next` of the page before.
    after: Option<String>,
    /// Entries at most.
    #[param(minimum = 1, maximum = 1000, default = 1000)]
    limit: Limit,
    /// Only keys of this tenant.
    tenant: Option<String>,
}

impl From<Stored<ApiKey>> for KeyView {
    fn from(stored: Stored<ApiKey>) -> Self {
        let Stored { document, revision, .. } = stored;
        Self { id: document.id, tenant: document.tenant.to_string(), revision: revision.0 }
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, revoke))
}

/// Lists the keys, without secrets and hashes.
#[utoipa::path(get, path = "/admin/v1/keys", tag = "keys", params(KeyQuery),
    responses((status = 200, body = Page<KeyView>, description = "A page of keys"), Listing))]
async fn list(
    State(api): State<Arc<Api>>,
    Params(query): Params<KeyQuery>,
) -> Result<Json<Page<KeyView>>, Problem> {
    let KeyQuery { after, limit, tenant } = query;
    let wanted =
        |key: &ApiKey| tenant.as_deref().is_none_or(|tenant| key.tenant.as_str() == tenant);
    Ok(Json(api.page(&PageQuery { after, limit }, wanted, KeyView::from).await?))
}

/// Makes a key. The answer holds its secret, this once.
#[utoipa::path(post, path = "/admin/v1/keys", tag = "keys", request_body = KeyRequest,
    responses((status = 201, body = NewKey, description = "Made",
        headers(("etag" = String, description = "Its revision"),
            ("location" = String, description = "Its path"))), Creating))]
async fn create(
    State(api): State<Arc<Api>>,
    by: Author,
    Document(request): Document<KeyRequest>,
) -> Result<Tagged<NewKey>, Problem> {
    if api.find::<Tenant>(&request.tenant).await?.is_none() {
        let tenant = &request.tenant;
        let detail = format!(
            "there is no tenants/{tenant}; make it first: `warmpath tenant set {tenant}`, or PUT \
             /admin/v1/tenants/{tenant}"
        );
        return Err(Problem::new(Code::InvalidDocument, detail).at("tenant"));
    }
    let minted = GeneratedKey::generate(&request.tenant)
        .map_err(|error| Problem::new(Code::StoreUnavailable, error.to_string()))?;
    let key = ApiKey {
        id: minted.id().to_owned(),
        tenant: request.tenant.as_str().into(),
        sha256: minted.digest_hex(),
        unknown: UnknownFields::new(),
    };
    let stored = api.create(&key, &by).await?;
    let (id, tenant) = (stored.document.id, request.tenant);
    let location = format!("/admin/v1/keys/{id}");
    let (revision, key) = (stored.revision.0, minted.secret_text().to_owned());
    Ok(Tagged::made(location, stored.revision, NewKey { id, tenant, revision, key }))
}

/// Shows a key, without its secret and hash.
#[utoipa::path(get, path = "/admin/v1/keys/{id}", tag = "keys",
    params(("id" = String, Path, description = "Its public part", pattern = "^[!-~]{1,128}$")),
    responses((status = 200, body = KeyView, description = "The key",
        headers(("etag" = String, description = "Its revision"))), Reading))]
async fn get(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Tagged<KeyView>, Problem> {
    let stored = api.get::<ApiKey>(&id).await?;
    Ok(Tagged::ok(stored.revision, stored.into()))
}

/// Revokes a key. Edges that hear of it refuse it within a second.
#[utoipa::path(delete, path = "/admin/v1/keys/{id}", tag = "keys",
    params(("id" = String, Path, description = "Its public part", pattern = "^[!-~]{1,128}$"),
        ("if-match" = Option<String>, Header, description = "Only if it is at that ETag")),
    responses((status = 204, description = "Revoked"), Changing))]
async fn revoke(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    api.delete::<ApiKey>(&id, &condition, &by).await?;
    Ok(StatusCode::NO_CONTENT)
}
