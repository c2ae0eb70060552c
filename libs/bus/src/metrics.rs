//! Series of a bus.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// The series of a bus. `Default` gives unregistered ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) connected: IntGauge,
    pub(crate) connects: IntCounter,
    pub(crate) published: IntCounter,
    pub(crate) publish_dropped: IntCounterVec,
    pub(crate) received: IntCounter,
    pub(crate) received_dropped: IntCounter,
    pub(crate) gaps: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let dropped = Opts::new(
            "warmpath_bus_publish_dropped_total",
            "Messages that were not handed to the bus.",
        );
        Self {
            connected: IntGauge::new("warmpath_bus_connected", "1 while messages go through.")
                .expect("the name is valid"),
            connects: counter("warmpath_bus_connects_total", "Connections made."),
            published: counter("warmpath_bus_published_total", "Messages handed to the bus."),
            publish_dropped: IntCounterVec::new(dropped, &["reason"])
                .expect("name and label are valid"),
            received: counter("warmpath_bus_received_total", "Messages heard, per subscription."),
            received_dropped: counter(
                "warmpath_bus_received_dropped_total",
                "Messages dropped because their subscriber was slow.",
            ),
            gaps: counter(
                "warmpath_bus_cuts_total",
                "Times that messages may have been missed, as the connection was cut.",
            ),
        }
    }
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("the name is valid")
}

impl Metrics {
    /// Adds the series to a registry.
    ///
    /// # Errors
    /// It has one of these names.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let counters =
            [&self.connects, &self.published, &self.received, &self.received_dropped, &self.gaps];
        for counter in counters {
            registry.register(Box::new(counter.clone()) as Box<dyn Collector>)?;
        }
        registry.register(Box::new(self.publish_dropped.clone()))?;
        registry.register(Box::new(self.connected.clone()))
    }

    pub(crate) fn dropped(&self, reason: &'static str) {
        self.publish_dropped.with_label_values(&[reason]).inc();
    }
}
