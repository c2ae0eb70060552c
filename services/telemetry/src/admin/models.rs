//! `/admin/v1/models`: where the tokenizers of models are.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use config_store::typed::Stored;
use domain::desired::{Model, UnknownFields};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::auth::Author;
use super::extract::{Condition, Document, Id, Params, Tagged};
use super::page::{Page, PageQuery};
use super::problem::{Changing, Listing, Problem, Reading, Replacing};

/// Where a model's tokenizer is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ModelSpec {
    /// The folder on the machines of the services, or `builtin`.
    #[schema(min_length = 1, max_length = 4096, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    folder: String,
}

/// A model whose prompts are followed by tokens.
#[derive(Debug, Serialize, ToSchema)]
struct ModelView {
    /// The name as the engines list it.
    id: String,
    /// The folder of its tokenizer.
    folder: String,
    /// The revision of this state.
    revision: u64,
}

impl From<Stored<Model>> for ModelView {
    fn from(stored: Stored<Model>) -> Self {
        let Stored { document, revision, .. } = stored;
        Self { id: document.id.to_string(), folder: document.folder, revision: revision.0 }
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, delete))
}

/// Lists the models that have a tokenizer.
#[utoipa::path(get, path = "/admin/v1/models", tag = "models", params(PageQuery),
    responses((status = 200, body = Page<ModelView>, description = "A page of models"), Listing))]
async fn list(
    State(api): State<Arc<Api>>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<ModelView>>, Problem> {
    Ok(Json(api.page(&query, |_: &Model| true, ModelView::from).await?))
}

/// Shows a model.
#[utoipa::path(get, path = "/admin/v1/models/{id}", tag = "models",
    params(("id" = String, Path, description = "Its name; slashes as %2F", min_length = 1,
        max_length = 256)),
    responses((status = 200, body = ModelView, description = "The model",
        headers(("etag" = String, description = "Its revision"))), Reading))]
async fn get(State(api): State<Arc<Api>>, Id(id): Id) -> Result<Tagged<ModelView>, Problem> {
    let stored = api.get::<Model>(&id).await?;
    Ok(Tagged::ok(stored.revision, stored.into()))
}

/// Adds a model (`If-None-Match: *`) or replaces one (`If-Match`).
#[utoipa::path(put, path = "/admin/v1/models/{id}", tag = "models",
    params(("id" = String, Path, description = "Its name; slashes as %2F", min_length = 1,
        max_length = 256),
        ("if-match" = Option<String>, Header, description = "The ETag of what is replaced, or `*`"),
        ("if-none-match" = Option<String>, Header, description = "`*` to add")),
    request_body = ModelSpec,
    responses(
        (status = 200, body = ModelView, description = "Replaced",
            headers(("etag" = String, description = "Its revision"))),
        (status = 201, body = ModelView, description = "Added",
            headers(("etag" = String, description = "Its revision"))),
        Replacing))]
async fn put(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
    Document(spec): Document<ModelSpec>,
) -> Result<Tagged<ModelView>, Problem> {
    let make = |before: Option<&Model>| Model {
        id: id.as_str().into(),
        folder: spec.folder.clone(),
        unknown: before.map_or_else(UnknownFields::new, |before| before.unknown.clone()),
    };
    let put = api.put(&id, &condition, &by, make).await?;
    Ok(Tagged::put(put.created, put.stored.revision, put.stored.into()))
}

/// Removes a model: its prompts are followed by text from then on.
#[utoipa::path(delete, path = "/admin/v1/models/{id}", tag = "models",
    params(("id" = String, Path, description = "Its name; slashes as %2F", min_length = 1,
        max_length = 256),
        ("if-match" = Option<String>, Header, description = "The ETag of what is removed, or `*`")),
    responses((status = 204, description = "Removed"), Changing))]
async fn delete(
    State(api): State<Arc<Api>>,
    by: Author,
    condition: Condition,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    api.delete::<Model>(&id, &condition, &by).await?;
    Ok(StatusCode::NO_CONTENT)
}
