//! What can go wrong when the router is built.

/// The router could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A metric could not be registered; the registry holds one of that name already.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}
