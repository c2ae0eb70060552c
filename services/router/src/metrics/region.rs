//! Series of a router among others.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use replication::ResyncReason;

/// What is shown of this router's part in its region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) pools_served: IntGauge,
    pub(crate) pools_followed: IntGauge,
    pub(crate) malformed: IntCounter,
    pub(crate) copies: CopyMetrics,
}

impl Region {
    /// Registers everything.
    ///
    /// # Errors
    /// When the registry already holds a family of one of the names.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name, help| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let malformed = IntCounter::new(
            "warmpath_router_replication_malformed_total",
            "Messages of other routers that made no sense.",
        )?;
        registry.register(Box::new(malformed.clone()))?;
        let copies = CopyMetrics::default();
        copies.register(registry)?;
        Ok(Self {
            pools_served: gauge(
                "warmpath_router_pools_served",
                "Pools that this router decides for.",
            )?,
            pools_followed: gauge(
                "warmpath_router_pools_followed",
                "Pools of other routers of which a copy is in step.",
            )?,
            malformed,
            copies,
        })
    }
}

/// What is counted of copies.
#[derive(Clone, Debug)]
pub(crate) struct CopyMetrics {
    takeovers: IntCounterVec,
    resyncs: IntCounterVec,
    pub(crate) dropped: IntCounter,
}

impl Default for CopyMetrics {
    fn default() -> Self {
        let vec = |name, help, label| {
            IntCounterVec::new(Opts::new(name, help), &[label]).expect("name and label are valid")
        };
        Self {
            takeovers: vec(
                "warmpath_router_takeovers_total",
                "Pools that this router began to serve: warm with a copy of what was known of \
                 them, cold without.",
                "state",
            ),
            resyncs: vec(
                "warmpath_router_resyncs_total",
                "Whole copies of pools that were taken from their owners, by the reason.",
                "reason",
            ),
            dropped: IntCounter::new(
                "warmpath_router_replication_dropped_total",
                "Messages for other routers that were dropped, as too many waited.",
            )
            .expect("the name is valid"),
        }
    }
}

impl CopyMetrics {
    fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.takeovers.clone()))?;
        registry.register(Box::new(self.resyncs.clone()))?;
        registry.register(Box::new(self.dropped.clone()))
    }

    pub(crate) fn took_over(&self, warm: bool) {
        self.takeovers.with_label_values(&[if warm { "warm" } else { "cold" }]).inc();
    }

    pub(crate) fn resyncs(&self, reason: ResyncReason) {
        let reason = match reason {
            ResyncReason::NewStream => "new_stream",
            ResyncReason::PastRing => "past_ring",
            ResyncReason::Checksum => "checksum",
        };
        self.resyncs.with_label_values(&[reason]).inc();
    }
}
