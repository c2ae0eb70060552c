//! What is shown of the config in force.

use std::time::{SystemTime, UNIX_EPOCH};

use instrumentation::Registry;
use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec, Opts};

/// What came of reading a config again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Applied,
    Invalid,
    NeedsRestart,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Applied, Self::Invalid, Self::NeedsRestart];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Invalid => "invalid",
            Self::NeedsRestart => "needs_restart",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Metrics {
    reloads: IntCounterVec,
    stale: IntGauge,
    loaded: Gauge,
    info: IntGaugeVec,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let reloads = IntCounterVec::new(
            Opts::new("warmpath_config_reloads_total", "Times that the config was read again."),
            &["result"],
        )?;
        for outcome in Outcome::ALL {
            reloads.with_label_values(&[outcome.as_str()]);
        }
        let stale = IntGauge::new(
            "warmpath_config_stale",
            "1 while the config that was read last is refused, and an older one is in force.",
        )?;
        let loaded = Gauge::new(
            "warmpath_config_loaded_timestamp_seconds",
            "When the config in force was read, in seconds since 1970.",
        )?;
        let info = IntGaugeVec::new(
            Opts::new("warmpath_config_info", "Always 1; the label tells the config in force."),
            &["hash"],
        )?;
        registry.register(Box::new(reloads.clone()))?;
        registry.register(Box::new(stale.clone()))?;
        registry.register(Box::new(loaded.clone()))?;
        registry.register(Box::new(info.clone()))?;
        Ok(Self { reloads, stale, loaded, info })
    }

    pub(super) fn in_force(&self, hash: &str) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.loaded.set(since.as_secs_f64());
        self.info.reset();
        self.info.with_label_values(&[hash]).set(1);
    }

    pub(super) fn reloaded(&self, outcome: Outcome) {
        self.reloads.with_label_values(&[outcome.as_str()]).inc();
        self.stale.set((outcome != Outcome::Applied).into());
    }
}
