//! What engines count themselves, beside what the gateway believes of them.

use std::collections::BTreeMap;

use domain::{BackendId, LoadSample};
use engine::RankReading;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};

const LABELS: &[&str] = &["backend", "rank"];

/// The families.
#[derive(Clone)]
pub(crate) struct EngineFamilies {
    queried: IntCounterVec,
    cached: IntCounterVec,
    preemptions: IntCounterVec,
    kv_usage: GaugeVec,
}

impl EngineFamilies {
    /// Registers them.
    ///
    /// # Errors
    /// When the registry already holds a family of one of the names.
    pub(crate) fn register(r: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str| {
            let vec = IntCounterVec::new(Opts::new(name, help), LABELS)?;
            r.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let kv_usage = GaugeVec::new(
            Opts::new(
                "warmpath_telemetry_engine_kv_usage_ratio",
                "Share of its KV blocks that an engine's live requests hold.",
            ),
            LABELS,
        )?;
        r.register(Box::new(kv_usage.clone()))?;
        Ok(Self {
            queried: counters(
                "warmpath_telemetry_engine_queried_tokens_total",
                "Prompt tokens that an engine looked up in its prefix cache.",
            )?,
            cached: counters(
                "warmpath_telemetry_engine_cached_tokens_total",
                "Prompt tokens that an engine found in its prefix cache.",
            )?,
            preemptions: counters(
                "warmpath_telemetry_engine_preemptions_total",
                "Requests that an engine preempted.",
            )?,
            kv_usage,
        })
    }
}

/// The series of one backend. Dropped, it takes them along.
pub(crate) struct EngineSeries {
    families: EngineFamilies,
    backend: BackendId,
    last: BTreeMap<u16, LoadSample>,
}

impl EngineSeries {
    pub(crate) fn new(families: &EngineFamilies, backend: &BackendId) -> Self {
        Self { families: families.clone(), backend: backend.clone(), last: BTreeMap::new() }
    }

    /// Shows a page's readings. Counters begin with the first one; what an engine counted before
    /// is none of ours.
    pub(crate) fn show(&mut self, readings: &[RankReading]) {
        let gone: Vec<u16> = (self.last.keys().copied())
            .filter(|rank| readings.iter().all(|r| r.rank != *rank))
            .collect();
        for rank in gone {
            self.last.remove(&rank);
            self.remove(rank);
        }
        for reading in readings {
            let before = self.last.insert(reading.rank, reading.load);
            self.show_rank(reading.rank, before.as_ref(), &reading.load);
        }
    }

    fn show_rank(&self, rank: u16, before: Option<&LoadSample>, now: &LoadSample) {
        let (f, rank) = (&self.families, rank.to_string());
        let labels = [self.backend.as_str(), rank.as_str()];
        if let Some(usage) = now.kv_usage {
            f.kv_usage.with_label_values(&labels).set(usage);
        }
        let grown = |counter: &IntCounterVec, read: fn(&LoadSample) -> Option<u64>| {
            if let Some(now) = read(now) {
                counter.with_label_values(&labels).inc_by(growth(before.map(read), now));
            }
        };
        grown(&f.queried, |load| load.prefix_cache.map(|(queried, _)| queried));
        grown(&f.cached, |load| load.prefix_cache.map(|(_, cached)| cached));
        grown(&f.preemptions, |load| load.preemptions);
    }

    fn remove(&self, rank: u16) {
        let (f, rank) = (&self.families, rank.to_string());
        let labels = [self.backend.as_str(), rank.as_str()];
        // A series that was never touched is not there: nothing to do about it.
        for counter in [&f.queried, &f.cached, &f.preemptions] {
            let _ = counter.remove_label_values(&labels);
        }
        let _ = f.kv_usage.remove_label_values(&labels);
    }
}

impl Drop for EngineSeries {
    fn drop(&mut self) {
        for rank in self.last.keys() {
            self.remove(*rank);
        }
    }
}

/// How much a counter has grown; one that fell has started over with its engine.
fn growth(before: Option<Option<u64>>, now: u64) -> u64 {
    match before {
        None => 0,
        Some(before) => now.checked_sub(before.unwrap_or(now)).unwrap_or(now),
    }
}

#[cfg(test)]
mod tests {
    use domain::Moment;

    use super::*;

    fn reading(rank: u16, prefix_cache: (u64, u64)) -> RankReading {
        let load = LoadSample {
            at: Moment::ZERO,
            running: 0,
            waiting: 0,
            kv_usage: Some(0.5),
            preemptions: None,
            prefix_cache: Some(prefix_cache),
            prefills: None,
        };
        RankReading { rank, cache: None, load }
    }

    #[test]
    fn counters_grow_with_the_engines_and_outlive_its_restarts() {
        let registry = Registry::new();
        let families = EngineFamilies::register(&registry).expect("an empty registry");
        let mut series = EngineSeries::new(&families, &"a".into());
        for total in [(100, 50), (160, 90), (30, 10)] {
            series.show(&[reading(1, total)]);
        }
        let page = instrumentation::encode(&registry);
        for line in [
            "warmpath_telemetry_engine_queried_tokens_total{backend=\"a\",rank=\"1\"} 90",
            "warmpath_telemetry_engine_cached_tokens_total{backend=\"a\",rank=\"1\"} 50",
            "warmpath_telemetry_engine_kv_usage_ratio{backend=\"a\",rank=\"1\"} 0.5",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in {page}");
        }
        assert!(!page.contains("preemptions_total{"), "{page}");
        series.show(&[reading(0, (1, 1))]);
        assert!(!instrumentation::encode(&registry).contains("rank=\"1\""));
        drop(series);
        assert!(!instrumentation::encode(&registry).contains("backend="));
    }
}
