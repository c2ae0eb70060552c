//! Series of the edge's end of sessions.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The series. `Default` gives unregistered ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) streams: IntGauge,
    pub(crate) connects: IntCounter,
    connect_failures: IntCounterVec,
    alone: IntCounterVec,
    pub(crate) is_alone: IntGauge,
    pub(crate) asked_again: IntCounter,
    pub(crate) resumed: IntCounter,
    pub(crate) moved: IntCounter,
    pub(crate) reports_dropped: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            streams: valid(IntGauge::new(
                "warmpath_session_streams",
                "Streams to routers that are open now.",
            )),
            connects: counter("warmpath_session_connects_total", "Streams that were opened."),
            connect_failures: counters(
                "warmpath_session_connect_failures_total",
                "Streams that could not be opened, or were refused.",
                &["reason"],
            ),
            alone: counters(
                "warmpath_session_decided_alone_total",
                "Attempts that the edge placed by itself, as no router answered in time.",
                &["attempt"],
            ),
            is_alone: valid(IntGauge::new(
                "warmpath_session_alone",
                "1 from a decision without a router to the next one of a router.",
            )),
            asked_again: counter(
                "warmpath_session_asked_again_total",
                "Routes that were asked of another router, or on another stream.",
            ),
            resumed: counter(
                "warmpath_session_resumed_leases_total",
                "Leases that were told to a router one by one.",
            ),
            moved: counter(
                "warmpath_session_moved_total",
                "Decisions that came after the edge had placed the request by itself.",
            ),
            reports_dropped: counter(
                "warmpath_session_reports_dropped_total",
                "Reports that no router was there for. Audits make up for them.",
            ),
        }
    }
}

impl Metrics {
    /// Adds the series to a registry.
    ///
    /// # Errors
    /// It has one of these names.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let all: [Box<dyn Collector>; 9] = [
            Box::new(self.streams.clone()),
            Box::new(self.connects.clone()),
            Box::new(self.connect_failures.clone()),
            Box::new(self.alone.clone()),
            Box::new(self.is_alone.clone()),
            Box::new(self.asked_again.clone()),
            Box::new(self.resumed.clone()),
            Box::new(self.moved.clone()),
            Box::new(self.reports_dropped.clone()),
        ];
        all.into_iter().try_for_each(|family| registry.register(family))
    }

    pub(crate) fn connect_failed(&self, reason: &'static str) {
        self.connect_failures.with_label_values(&[reason]).inc();
    }

    pub(crate) fn decided_alone(&self, is_first: bool) {
        let attempt = if is_first { "first" } else { "again" };
        self.alone.with_label_values(&[attempt]).inc();
    }
}

fn counter(name: &str, help: &str) -> IntCounter {
    valid(IntCounter::new(name, help))
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    valid(IntCounterVec::new(Opts::new(name, help), labels))
}

fn valid<T>(metric: prometheus::Result<T>) -> T {
    metric.expect("the names and labels here are constant and valid")
}
