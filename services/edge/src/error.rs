//! Why an edge could not be built.

/// A fault while the edge was built. Faults of single requests are answers, not errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The registry has a metric of the same name.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// Request ids are made of it.
    #[error("the system's random source is not available: {0}")]
    Random(getrandom::Error),
    /// Spans cannot be made or sent.
    #[error("edge.traces: {0}")]
    Traces(#[from] traces::Error),
    /// The listener's address could not be read.
    #[error("the listening socket: {0}")]
    Listener(#[from] std::io::Error),
}
