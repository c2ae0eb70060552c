//! Telemetry's metrics. The series of a backend go with the handle that sets them.

mod engine;

use std::collections::BTreeSet;
use std::sync::Arc;

use ::engine::RankReading;
use domain::{BackendId, ModelId};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry,
};

use self::engine::{EngineFamilies, EngineSeries};
use crate::http_client::Fault;

/// From a page out of memory on this machine to the time limit.
const SCRAPE_BUCKETS: &[f64] = &[1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0];

/// All families.
pub(crate) struct Families {
    pub(crate) state: IntGaugeVec,
    probe_failures: IntCounterVec,
    scrape_failures: IntCounterVec,
    listing_failures: IntCounterVec,
    undecoded: IntCounterVec,
    restarts: IntCounterVec,
    metrics_age: GaugeVec,
    network: GaugeVec,
    parity_mismatch: IntGaugeVec,
    left_out: IntGaugeVec,
    scrape_seconds: Histogram,
    engine: EngineFamilies,
    pub(crate) revision: IntGauge,
    pub(crate) prober_restarts: IntCounter,
    pub(crate) registry_revision: IntGauge,
    /// Documents of backends that count for nothing.
    pub(crate) refused: IntGauge,
    pub(crate) watchers: IntGauge,
}

impl Families {
    /// Registers everything.
    ///
    /// # Errors
    /// When the registry already holds a family of one of the names.
    pub(crate) fn register(r: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntCounterVec::new(Opts::new(name, help), labels)?;
            r.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let int_gauges = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntGaugeVec::new(Opts::new(name, help), labels)?;
            r.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let gauges = |name: &str, help: &str| {
            let vec = GaugeVec::new(Opts::new(name, help), &["backend"])?;
            r.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let scrape_seconds = Histogram::with_opts(
            HistogramOpts::new(
                "warmpath_telemetry_scrape_duration_seconds",
                "Time to fetch and read a backend's metrics page.",
            )
            .buckets(SCRAPE_BUCKETS.to_vec()),
        )?;
        r.register(Box::new(scrape_seconds.clone()))?;
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            r.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let prober_restarts = IntCounter::new(
            "warmpath_telemetry_prober_restarts_total",
            "Probers that had to be started again.",
        )?;
        r.register(Box::new(prober_restarts.clone()))?;
        Ok(Self {
            state: int_gauges(
                "warmpath_telemetry_backend_state",
                "1 for the state that a backend is in.",
                &["backend", "state"],
            )?,
            probe_failures: counters(
                "warmpath_telemetry_probe_failures_total",
                "Failed health probes.",
                &["backend", "reason"],
            )?,
            scrape_failures: counters(
                "warmpath_telemetry_scrape_failures_total",
                "Metrics pages that could not be fetched.",
                &["backend", "reason"],
            )?,
            listing_failures: counters(
                "warmpath_telemetry_listing_failures_total",
                "Model lists that could not be fetched or read.",
                &["backend"],
            )?,
            undecoded: counters(
                "warmpath_telemetry_undecoded_total",
                "Lines and entries of a backend's answers that could not be read.",
                &["backend"],
            )?,
            restarts: counters(
                "warmpath_telemetry_backend_restarts_total",
                "New incarnations of a backend: its engine restarted and its cache is empty.",
                &["backend"],
            )?,
            metrics_age: gauges(
                "warmpath_telemetry_metrics_age_seconds",
                "Time since a backend's load was read last.",
            )?,
            network: gauges(
                "warmpath_telemetry_network_seconds",
                "Smoothed round trip to a backend.",
            )?,
            parity_mismatch: int_gauges(
                "warmpath_telemetry_parity_mismatch",
                "1 if a backend renders or tokenises a model otherwise than its model folder.",
                &["backend", "model"],
            )?,
            left_out: int_gauges(
                "warmpath_telemetry_left_out",
                "Ranks and models that a backend tells and that are too many, or no names.",
                &["backend", "what"],
            )?,
            scrape_seconds,
            engine: EngineFamilies::register(r)?,
            revision: gauge(
                "warmpath_telemetry_fleet_revision",
                "Revision of the observed state that was published last.",
            )?,
            prober_restarts,
            registry_revision: gauge(
                "warmpath_telemetry_registry_revision",
                "Revision of the desired state that the probers follow.",
            )?,
            watchers: gauge(
                "warmpath_telemetry_watchers",
                "Edges and routers that watch desired and observed state.",
            )?,
            refused: gauge(
                "warmpath_telemetry_registry_refused",
                "Documents of backends that count for nothing, as their id or address is taken or \
                 they cannot be read.",
            )?,
        })
    }
}

/// What an engine may tell too much of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeftOut {
    Ranks,
    Models,
}

impl LeftOut {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Models => "models",
        }
    }
}

/// The handles of one backend. Dropped, it takes their series along.
pub(crate) struct BackendMetrics {
    families: Arc<Families>,
    backend: BackendId,
    listing_failures: IntCounter,
    undecoded: IntCounter,
    restarts: IntCounter,
    metrics_age: Gauge,
    network: Gauge,
    engine: EngineSeries,
    /// Models that have a parity series.
    models: BTreeSet<ModelId>,
}

impl BackendMetrics {
    pub(crate) fn new(families: &Arc<Families>, backend: &BackendId) -> Self {
        let id = backend.as_str();
        let f = families;
        Self {
            listing_failures: f.listing_failures.with_label_values(&[id]),
            undecoded: f.undecoded.with_label_values(&[id]),
            restarts: f.restarts.with_label_values(&[id]),
            metrics_age: f.metrics_age.with_label_values(&[id]),
            network: f.network.with_label_values(&[id]),
            engine: EngineSeries::new(&f.engine, backend),
            models: BTreeSet::new(),
            backend: backend.clone(),
            families: families.clone(),
        }
    }

    pub(crate) fn probe_failed(&self, fault: Fault) {
        let labels = [self.backend.as_str(), fault.as_str()];
        self.families.probe_failures.with_label_values(&labels).inc();
    }

    pub(crate) fn scrape_failed(&self, fault: Fault) {
        let labels = [self.backend.as_str(), fault.as_str()];
        self.families.scrape_failures.with_label_values(&labels).inc();
    }

    pub(crate) fn listing_failed(&self) {
        self.listing_failures.inc();
    }

    pub(crate) fn scraped(&self, seconds: f64, undecoded: u32) {
        self.families.scrape_seconds.observe(seconds);
        self.undecoded.inc_by(u64::from(undecoded));
    }

    /// What the engine's page told of its ranks.
    pub(crate) fn load(&mut self, readings: &[RankReading]) {
        self.engine.show(readings);
    }

    pub(crate) fn listed(&self, undecoded: u32) {
        self.undecoded.inc_by(u64::from(undecoded));
    }

    /// Shows how much of something is left out; returns whether that begins now.
    pub(crate) fn left_out(&self, what: LeftOut, count: u32) -> bool {
        let labels = [self.backend.as_str(), what.as_str()];
        let gauge = self.families.left_out.with_label_values(&labels);
        let before = gauge.get();
        gauge.set(i64::from(count));
        before == 0 && count > 0
    }

    pub(crate) fn restarted(&self) {
        self.restarts.inc();
    }

    pub(crate) fn metrics_age(&self, seconds: f64) {
        self.metrics_age.set(seconds);
    }

    pub(crate) fn network(&self, seconds: f64) {
        self.network.set(seconds);
    }

    /// Shows the outcome of each model's parity check; those that are not given lose their series.
    pub(crate) fn parity<'a>(&mut self, checks: impl Iterator<Item = (&'a ModelId, bool)>) {
        let mut current = BTreeSet::new();
        for (model, passed) in checks {
            let labels = [self.backend.as_str(), model.as_str()];
            self.families.parity_mismatch.with_label_values(&labels).set(i64::from(!passed));
            current.insert(model.clone());
        }
        for model in self.models.difference(&current) {
            self.remove_parity(model);
        }
        self.models = current;
    }

    fn remove_parity(&self, model: &ModelId) {
        let labels = [self.backend.as_str(), model.as_str()];
        let _ = self.families.parity_mismatch.remove_label_values(&labels);
    }
}

impl Drop for BackendMetrics {
    fn drop(&mut self) {
        let (f, id) = (&self.families, self.backend.as_str());
        // A series that was never touched is not there: nothing to do about it.
        for fault in Fault::ALL {
            let _ = f.probe_failures.remove_label_values(&[id, fault.as_str()]);
            let _ = f.scrape_failures.remove_label_values(&[id, fault.as_str()]);
        }
        for counter in [&f.listing_failures, &f.undecoded, &f.restarts] {
            let _ = counter.remove_label_values(&[id]);
        }
        for gauge in [&f.metrics_age, &f.network] {
            let _ = gauge.remove_label_values(&[id]);
        }
        for what in [LeftOut::Ranks, LeftOut::Models] {
            let _ = f.left_out.remove_label_values(&[id, what.as_str()]);
        }
        for model in &self.models {
            self.remove_parity(model);
        }
    }
}
