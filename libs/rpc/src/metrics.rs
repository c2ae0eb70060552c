//! Series of a gRPC server.

use prometheus::{IntCounter, IntGauge, Registry};

/// The series of a server. `Default` gives unregistered ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) connections: IntGauge,
    pub(crate) accepted: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let connections =
            IntGauge::new("warmpath_rpc_connections", "Connections that peers hold to this port.");
        let accepted =
            IntCounter::new("warmpath_rpc_accepted_total", "Connections that peers made.");
        Self {
            connections: connections.expect("the name is valid"),
            accepted: accepted.expect("the name is valid"),
        }
    }
}

impl Metrics {
    /// Adds the series to a registry.
    ///
    /// # Errors
    /// It has one of these names.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.connections.clone()))?;
        registry.register(Box::new(self.accepted.clone()))
    }
}
