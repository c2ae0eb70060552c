//! What can go wrong when telemetry is built.

/// Telemetry could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A metric could not be registered; the registry holds one of that name already.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A backend is reached by https and the machine's certificates cannot be read.
    #[error("TLS: {0}")]
    Tls(String),
    /// The folder of the desired state cannot be opened.
    #[error("telemetry.store: {0}")]
    Store(#[from] config_store::StoreError),
}
