//! Series of a store.

use instrumentation::OVERHEAD_SECONDS;
use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry};

/// The series of the embedded store. `Default` gives unregistered ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) revision: IntGauge,
    pub(crate) writable: IntGauge,
    pub(crate) journal_bytes: IntGauge,
    pub(crate) document_bytes: IntGauge,
    pub(crate) sync_seconds: Histogram,
    pub(crate) changes: IntCounter,
    pub(crate) torn_bytes: IntCounter,
    pub(crate) index_rebuilds: IntCounter,
    pub(crate) index_on_disk: IntGauge,
    pub(crate) compactions: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let sync = HistogramOpts::new(
            "warmpath_store_sync_seconds",
            "Writing and syncing one group of changes to the journal.",
        )
        .buckets(OVERHEAD_SECONDS.to_vec());
        Self {
            revision: gauge("warmpath_store_revision", "Revision of the last change."),
            writable: gauge("warmpath_store_writable", "1 while changes are taken, else 0."),
            journal_bytes: gauge(
                "warmpath_store_journal_bytes",
                "Size of the newest segment of the journal.",
            ),
            document_bytes: gauge("warmpath_store_document_bytes", "Size of all documents."),
            sync_seconds: Histogram::with_opts(sync).expect("the name is valid"),
            changes: counter("warmpath_store_changes_total", "Changes made durable."),
            torn_bytes: counter(
                "warmpath_store_torn_bytes_total",
                "Bytes of half-written changes dropped at the start.",
            ),
            index_rebuilds: counter(
                "warmpath_store_index_rebuilds_total",
                "Times that the index was made anew from the journal.",
            ),
            index_on_disk: gauge(
                "warmpath_store_index_on_disk",
                "1 if the index is on disk, 0 if it had to be made in memory.",
            ),
            compactions: counter(
                "warmpath_store_compactions_total",
                "Times that a new segment of the journal was begun.",
            ),
        }
    }
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::with_opts(Opts::new(name, help)).expect("the name is valid")
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::with_opts(Opts::new(name, help)).expect("the name is valid")
}

impl Metrics {
    /// Adds the series to a registry.
    ///
    /// # Errors
    /// It has one of these names.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let (sizes, index) = ([&self.journal_bytes, &self.document_bytes], &self.index_on_disk);
        let gauges = [&self.revision, &self.writable, index].into_iter().chain(sizes);
        let counters = [&self.changes, &self.torn_bytes, &self.index_rebuilds, &self.compactions];
        let gauges = gauges.map(|g| Box::new(g.clone()) as Box<dyn Collector>);
        let counters = counters.into_iter().map(|c| Box::new(c.clone()) as Box<dyn Collector>);
        for collector in gauges.chain(counters) {
            registry.register(collector)?;
        }
        registry.register(Box::new(self.sync_seconds.clone()))
    }
}
