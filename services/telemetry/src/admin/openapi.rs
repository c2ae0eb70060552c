//! The document of the API, made of the handlers themselves.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;

use super::api::Api;
use super::problem::Problem;
use super::{backends, events, join_tokens, keys, models, status, tenants};

/// The name of the one way to be let in.
const SCHEME: &str = "token";

#[derive(OpenApi)]
#[openapi(
    info(title = "Warmpath admin API", description = "What operators want of a region: engines, \
        models, tenants and their limits, keys, join tokens. Problems are RFC 9457."),
    components(schemas(Problem)),
    tags(
        (name = "backends", description = "Engines, wanted and seen"),
        (name = "models", description = "Where tokenizers are"),
        (name = "tenants", description = "Who shares limits, and the limits"),
        (name = "keys", description = "API keys of tenants"),
        (name = "join-tokens", description = "Tokens with which engines announce themselves"),
        (name = "events", description = "The audit log"),
        (name = "status", description = "Everything at a glance"),
    )
)]
struct Base;

/// All routes, with what the document says of them.
pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    let mut base = Base::openapi();
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = base.components.get_or_insert_default();
    components.add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    base.security = Some(vec![SecurityRequirement::new(SCHEME, [] as [&str; 0])]);
    OpenApiRouter::with_openapi(base)
        .merge(backends::routes())
        .merge(models::routes())
        .merge(tenants::routes())
        .merge(keys::routes())
        .merge(join_tokens::routes())
        .merge(events::routes())
        .merge(status::routes())
}

/// The document itself, at its own route.
pub(super) fn served(document: utoipa::openapi::OpenApi) -> Router<Arc<Api>> {
    // Made of literals: it always serialises.
    let text: Arc<str> = document.to_json().unwrap_or_default().into();
    let answer =
        move || std::future::ready(([(CONTENT_TYPE, "application/json")], text.to_string()));
    Router::new().route("/admin/v1/openapi.json", get(answer))
}

/// The document of the API.
pub fn document() -> utoipa::openapi::OpenApi {
    routes().to_openapi()
}
