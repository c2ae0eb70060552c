//! Another config, while the edge runs.

use std::sync::Arc;

use crate::config::Config;
use crate::gateway::Gateway;

/// Puts other configs in force. A cheap handle.
#[derive(Clone)]
pub struct Reload(Arc<Gateway>);

impl Reload {
    pub(crate) fn new(gateway: Arc<Gateway>) -> Self {
        Self(gateway)
    }

    /// From now on requests that come go by this config; those that are open go on by the one
    /// that they began with. Its address, its bounds for the whole process and where its spans go
    /// are those that the edge was built with.
    pub fn apply(&self, config: Config) {
        // Every part is here, or is one that takes a restart.
        let Config {
            rules,
            engine_keys,
            listen: _,
            body_memory_bytes: _,
            max_connections: _,
            traces: _,
        } = config;
        // Keys first: what the new rules let in may need them.
        self.0.fleet.rekey(engine_keys, || self.0.routing.fleet());
        self.0.access.renew(rules, lifecycle::monotonic());
    }
}
