//! Series of the router's end of sessions.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) streams: IntGauge,
    refused: IntCounterVec,
    pub(crate) held: IntGauge,
    pub(crate) not_owner: IntCounter,
    pub(crate) malformed: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let refused =
            Opts::new("warmpath_router_sessions_refused_total", "Sessions that were refused.");
        Self {
            streams: gauge("warmpath_router_session_streams", "Streams that edges hold."),
            refused: IntCounterVec::new(refused, &["reason"]).expect("name and label are valid"),
            held: gauge(
                "warmpath_router_routes_held",
                "Routes that wait for a ready backend or for a router to serve their pool.",
            ),
            not_owner: counter(
                "warmpath_router_not_owner_total",
                "Messages for pools that another router serves.",
            ),
            malformed: counter(
                "warmpath_router_malformed_total",
                "Messages of edges that made no sense or were too large.",
            ),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        for gauge in [&self.streams, &self.held] {
            registry.register(Box::new(gauge.clone()))?;
        }
        registry.register(Box::new(self.not_owner.clone()))?;
        registry.register(Box::new(self.malformed.clone()))?;
        registry.register(Box::new(self.refused.clone()))
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.with_label_values(&[reason]).inc();
    }
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("the name is valid")
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect("the name is valid")
}
