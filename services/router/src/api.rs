//! What the admin port shows of the router.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router as Routes};
use serde_json::json;

use crate::Router;

/// `GET /admin/v1/explain/{request id}`, the gateway's id or the client's own, and `GET /admin/v1/backends`.
pub fn admin_routes(router: Arc<Router>) -> Routes {
    Routes::new()
        .route("/admin/v1/explain/{request}", get(explain))
        .route("/admin/v1/backends", get(backends))
        .with_state(router)
}

async fn explain(State(router): State<Arc<Router>>, Path(request): Path<String>) -> Response {
    match router.explain(&request) {
        Some(found) => Json(found).into_response(),
        None => {
            let message = "no decision of that request is kept: it is unknown or too long ago";
            let body = json!({ "error": { "code": "not_found", "message": message } });
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        }
    }
}

async fn backends(State(router): State<Arc<Router>>) -> Response {
    Json(router.view(lifecycle::monotonic())).into_response()
}
