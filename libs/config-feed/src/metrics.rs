//! Series of a client.

use prometheus::core::Collector;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::Refusal;

/// The series of a client. `Default` gives unregistered ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) live: IntGauge,
    pub(crate) staleness: Gauge,
    pub(crate) revision: IntGauge,
    pub(crate) watches: IntCounter,
    pub(crate) undecoded: IntCounter,
    pub(crate) members: IntGauge,
    pub(crate) name_taken: IntGauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            live: gauge("warmpath_feed_live", "1 while telemetry is heard."),
            staleness: Gauge::new(
                "warmpath_feed_staleness_seconds",
                "Time since telemetry was heard last, or since the start.",
            )
            .expect("the name is valid"),
            revision: gauge(
                "warmpath_feed_revision",
                "Revision of the desired state that this process goes by.",
            ),
            watches: counter("warmpath_feed_watches_total", "Watches that were begun."),
            undecoded: counter(
                "warmpath_feed_undecoded_total",
                "Documents that could not be read and count as deleted.",
            ),
            members: gauge("warmpath_feed_members", "Services on the newest member list."),
            name_taken: gauge(
                "warmpath_feed_name_taken",
                "1 while another process is the member that this one's name stands for.",
            ),
        }
    }
}

/// Calls that telemetry refused, by reason. `Default` gives unregistered ones.
#[derive(Clone, Debug)]
pub struct Refusals(IntCounterVec);

impl Default for Refusals {
    fn default() -> Self {
        let opts = Opts::new(
            "warmpath_telemetry_member_refusals_total",
            "Calls of edges and routers that were refused.",
        );
        let refusals = IntCounterVec::new(opts, &["reason"]).expect("the name is valid");
        for refusal in Refusal::ALL {
            refusals.with_label_values(&[refusal.as_str()]);
        }
        Self(refusals)
    }
}

impl Refusals {
    /// Adds the series to a registry.
    ///
    /// # Errors
    /// The registry already holds it.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.0.clone()))
    }

    pub(crate) fn count(&self, refusal: Refusal) {
        self.0.with_label_values(&[refusal.as_str()]).inc();
    }
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("the name is valid")
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect("the name is valid")
}

impl Metrics {
    /// Adds the series to a registry.
    ///
    /// # Errors
    /// The registry already holds one of them.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let all: [Box<dyn Collector>; 7] = [
            Box::new(self.live.clone()),
            Box::new(self.staleness.clone()),
            Box::new(self.revision.clone()),
            Box::new(self.watches.clone()),
            Box::new(self.undecoded.clone()),
            Box::new(self.members.clone()),
            Box::new(self.name_taken.clone()),
        ];
        all.into_iter().try_for_each(|series| registry.register(series))
    }
}
