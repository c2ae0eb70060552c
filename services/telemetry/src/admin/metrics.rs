//! Series of the admin API.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// The series.
#[derive(Clone)]
pub(super) struct Metrics {
    requests: IntCounterVec,
    pub(super) refused: IntCounter,
}

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// When the registry already holds a family of one of the names.
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new(
                "warmpath_telemetry_admin_requests_total",
                "Requests to the admin API that were let in.",
            ),
            &["route", "method", "status"],
        )?;
        let refused = IntCounter::new(
            "warmpath_telemetry_admin_refused_total",
            "Requests to the admin API without a token that is known.",
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(refused.clone()))?;
        Ok(Self { requests, refused })
    }

    /// Counts an answer. `route` and `method` are of the API's own list.
    pub(super) fn answered(&self, route: &str, method: &str, status: &str) {
        self.requests.with_label_values(&[route, method, status]).inc();
    }
}
