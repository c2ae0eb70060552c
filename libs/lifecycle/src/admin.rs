//! The admin port's common routes.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use instrumentation::Registry;
use serde_json::json;

use crate::Readiness;

/// What Prometheus expects of the text format 0.0.4.
const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `/healthz` (200 while the process runs), `/readyz` (200, or 503 with what is missing as JSON)
/// and `/metrics`. Services add their own routes with `Router::merge`.
pub fn router(registry: Registry, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

async fn readyz(State(readiness): State<Readiness>) -> impl IntoResponse {
    let (missing, draining) = (readiness.missing(), readiness.is_draining());
    let ready = missing.is_empty() && !draining;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": ready, "draining": draining, "missing": missing })))
}

async fn metrics(State(registry): State<Registry>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_CONTENT_TYPE)], instrumentation::encode(&registry))
}
