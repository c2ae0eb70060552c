//! The series of one rank of one pool.

use domain::{EvidenceLevel, ModelId, RankId};
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use super::{counters, gauges};
use crate::breaker::Gate;
use crate::pacing::Hold;

const RANK_LABELS: &[&str] = &["model", "backend", "rank"];

/// The families whose series belong to ranks.
pub(super) struct RankFamilies {
    predicted_cached: IntCounterVec,
    delivered_cached: IntCounterVec,
    cached_predictions: IntCounterVec,
    predicted_ttft: CounterVec,
    delivered_ttft: CounterVec,
    ejections: IntCounterVec,
    queue_delay: GaugeVec,
    in_flight: IntGaugeVec,
    resident: IntGaugeVec,
    capacity: IntGaugeVec,
    told_capacity: IntGaugeVec,
    capacity_corrections: IntCounterVec,
    purges: IntCounterVec,
    belief_gap: GaugeVec,
    prefill_check: GaugeVec,
    running_ceiling: IntGaugeVec,
    evidence: IntGaugeVec,
    breaker: IntGaugeVec,
    held_back: IntGaugeVec,
}

impl RankFamilies {
    pub(super) fn register(r: &Registry) -> Result<Self, prometheus::Error> {
        const WITH_OUTCOME: &[&str] = &["model", "backend", "rank", "outcome"];
        const WITH_LEVEL: &[&str] = &["model", "backend", "rank", "level"];
        const WITH_STATE: &[&str] = &["model", "backend", "rank", "state"];
        Ok(Self {
            predicted_cached: counters(
                r,
                "warmpath_router_predicted_cached_tokens_total",
                "Prompt tokens expected in the cache, of requests whose engine told what it found.",
                RANK_LABELS,
            )?,
            delivered_cached: counters(
                r,
                "warmpath_router_delivered_cached_tokens_total",
                "Prompt tokens the engine found in its cache.",
                RANK_LABELS,
            )?,
            cached_predictions: counters(
                r,
                "warmpath_router_cached_predictions_total",
                "Predictions of cached tokens by how they came out: within one block, over, under.",
                WITH_OUTCOME,
            )?,
            predicted_ttft: sums(
                r,
                "warmpath_router_predicted_ttft_seconds_total",
                "Predicted time to first token, summed over requests whose first token was seen.",
            )?,
            delivered_ttft: sums(
                r,
                "warmpath_router_delivered_ttft_seconds_total",
                "Time from decision to first token, summed over the same requests.",
            )?,
            ejections: counters(
                r,
                "warmpath_router_ejections_total",
                "Times the rank's breaker opened.",
                RANK_LABELS,
            )?,
            queue_delay: real_gauges(
                r,
                "warmpath_router_queue_delay_seconds",
                "Predicted wait until the rank can begin another prefill.",
            )?,
            in_flight: gauges(
                r,
                "warmpath_router_in_flight_requests",
                "Open leases on the rank.",
                RANK_LABELS,
            )?,
            resident: gauges(
                r,
                "warmpath_router_resident_blocks",
                "Blocks that the mirror of the rank's cache holds.",
                RANK_LABELS,
            )?,
            capacity: gauges(
                r,
                "warmpath_router_capacity_blocks",
                "Blocks that the rank's cache is modelled to hold.",
                RANK_LABELS,
            )?,
            told_capacity: gauges(
                r,
                "warmpath_router_told_capacity_blocks",
                "Blocks that the rank's cache can hold as its engine tells, or as assumed for it.",
                RANK_LABELS,
            )?,
            capacity_corrections: counters(
                r,
                "warmpath_router_capacity_corrections_total",
                "Changes of the modelled capacity by what the engine found.",
                RANK_LABELS,
            )?,
            purges: counters(
                r,
                "warmpath_router_purges_total",
                "Beliefs given up as the engine found less: of a prefix, or of the whole rank.",
                &["model", "backend", "rank", "scope"],
            )?,
            belief_gap: real_gauges(
                r,
                "warmpath_router_belief_gap_ratio",
                "What the rank's cache was believed to hold of prompts less what its engine found, \
                 as a share of the prompts, averaged over the last reports.",
            )?,
            prefill_check: real_gauges(
                r,
                "warmpath_router_prefill_check_ratio",
                "Prefill time by the engine's counters over what the fit says; 0 while unknown.",
            )?,
            running_ceiling: gauges(
                r,
                "warmpath_router_running_ceiling_requests",
                "Requests that the engine was seen to run at once at most; 0 while unknown.",
                RANK_LABELS,
            )?,
            evidence: gauges(
                r,
                "warmpath_router_evidence_level",
                "1 for the level at which the rank's cache content is known.",
                WITH_LEVEL,
            )?,
            breaker: gauges(
                r,
                "warmpath_router_breaker_state",
                "1 for the state of the rank's breaker.",
                WITH_STATE,
            )?,
            held_back: gauges(
                r,
                "warmpath_router_held_back",
                "1 while new requests are kept from the rank as long as others can take them.",
                &["model", "backend", "rank", "reason"],
            )?,
        })
    }

    /// The handles of one rank of one pool.
    pub(super) fn rank(&self, model: &ModelId, id: &RankId) -> RankMetrics {
        let number = id.rank.to_string();
        let labels = [model.as_str(), id.backend.as_str(), number.as_str()];
        let with = |last| [labels[0], labels[1], labels[2], last];
        let f = self;
        RankMetrics {
            predicted_cached: f.predicted_cached.with_label_values(&labels),
            delivered_cached: f.delivered_cached.with_label_values(&labels),
            cached_predictions: CachedPrediction::ALL
                .map(|o| f.cached_predictions.with_label_values(&with(o.as_str()))),
            predicted_ttft: f.predicted_ttft.with_label_values(&labels),
            delivered_ttft: f.delivered_ttft.with_label_values(&labels),
            ejections: f.ejections.with_label_values(&labels),
            queue_delay: f.queue_delay.with_label_values(&labels),
            in_flight: f.in_flight.with_label_values(&labels),
            resident: f.resident.with_label_values(&labels),
            capacity: f.capacity.with_label_values(&labels),
            told_capacity: f.told_capacity.with_label_values(&labels),
            capacity_corrections: f.capacity_corrections.with_label_values(&labels),
            purges: Purge::ALL.map(|p| f.purges.with_label_values(&with(p.as_str()))),
            belief_gap: f.belief_gap.with_label_values(&labels),
            prefill_check: f.prefill_check.with_label_values(&labels),
            running_ceiling: f.running_ceiling.with_label_values(&labels),
            evidence: EvidenceLevel::ALL.map(|l| f.evidence.with_label_values(&with(l.as_str()))),
            breaker: Gate::ALL.map(|g| f.breaker.with_label_values(&with(g.as_str()))),
            held_back: Hold::NAMES.map(|reason| f.held_back.with_label_values(&with(reason))),
        }
    }

    /// Drops the series of a rank that is no more.
    pub(super) fn remove_rank(&self, model: &ModelId, id: &RankId) {
        let number = id.rank.to_string();
        let labels = [model.as_str(), id.backend.as_str(), number.as_str()];
        let with = |last| [labels[0], labels[1], labels[2], last];
        let f = self;
        let counters =
            [&f.predicted_cached, &f.delivered_cached, &f.ejections, &f.capacity_corrections];
        for counter in counters {
            let _ = counter.remove_label_values(&labels);
        }
        for sum in [&f.predicted_ttft, &f.delivered_ttft] {
            let _ = sum.remove_label_values(&labels);
        }
        let counts = [&f.in_flight, &f.resident, &f.capacity, &f.told_capacity, &f.running_ceiling];
        for gauge in counts {
            let _ = gauge.remove_label_values(&labels);
        }
        for gauge in [&f.queue_delay, &f.belief_gap, &f.prefill_check] {
            let _ = gauge.remove_label_values(&labels);
        }
        for purge in Purge::ALL {
            let _ = f.purges.remove_label_values(&with(purge.as_str()));
        }
        for outcome in CachedPrediction::ALL {
            let _ = f.cached_predictions.remove_label_values(&with(outcome.as_str()));
        }
        for level in EvidenceLevel::ALL {
            let _ = f.evidence.remove_label_values(&with(level.as_str()));
        }
        for reason in Hold::NAMES {
            let _ = f.held_back.remove_label_values(&with(reason));
        }
        for gate in Gate::ALL {
            let _ = f.breaker.remove_label_values(&with(gate.as_str()));
        }
    }
}

fn sums(r: &Registry, name: &str, help: &str) -> Result<CounterVec, prometheus::Error> {
    let vec = CounterVec::new(Opts::new(name, help), RANK_LABELS)?;
    r.register(Box::new(vec.clone()))?;
    Ok(vec)
}

fn real_gauges(r: &Registry, name: &str, help: &str) -> Result<GaugeVec, prometheus::Error> {
    let vec = GaugeVec::new(Opts::new(name, help), RANK_LABELS)?;
    r.register(Box::new(vec.clone()))?;
    Ok(vec)
}

/// How a prediction of cached tokens came out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CachedPrediction {
    WithinOneBlock,
    Over,
    Under,
}

impl CachedPrediction {
    const ALL: [CachedPrediction; 3] =
        [CachedPrediction::WithinOneBlock, CachedPrediction::Over, CachedPrediction::Under];

    const fn as_str(self) -> &'static str {
        match self {
            CachedPrediction::WithinOneBlock => "within_one_block",
            CachedPrediction::Over => "over",
            CachedPrediction::Under => "under",
        }
    }
}

/// How much was purged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purge {
    Prefix,
    Rank,
}

impl Purge {
    const ALL: [Purge; 2] = [Purge::Prefix, Purge::Rank];

    const fn as_str(self) -> &'static str {
        match self {
            Purge::Prefix => "prefix",
            Purge::Rank => "rank",
        }
    }
}

/// The handles of a rank.
pub(crate) struct RankMetrics {
    predicted_cached: IntCounter,
    delivered_cached: IntCounter,
    cached_predictions: [IntCounter; 3],
    predicted_ttft: Counter,
    delivered_ttft: Counter,
    pub(crate) ejections: IntCounter,
    pub(crate) queue_delay: Gauge,
    pub(crate) in_flight: IntGauge,
    pub(crate) resident: IntGauge,
    pub(crate) capacity: IntGauge,
    pub(crate) told_capacity: IntGauge,
    pub(crate) capacity_corrections: IntCounter,
    purges: [IntCounter; 2],
    pub(crate) belief_gap: Gauge,
    pub(crate) prefill_check: Gauge,
    pub(crate) running_ceiling: IntGauge,
    evidence: [IntGauge; 3],
    breaker: [IntGauge; 3],
    held_back: [IntGauge; 2],
}

impl RankMetrics {
    pub(super) fn first_token(&self, predicted: f64, delivered: f64) {
        self.predicted_ttft.inc_by(predicted.max(0.0));
        self.delivered_ttft.inc_by(delivered.max(0.0));
    }

    pub(crate) fn cached(&self, predicted: u64, delivered: u64, block_tokens: u64) {
        self.predicted_cached.inc_by(predicted);
        self.delivered_cached.inc_by(delivered);
        let outcome = if predicted.abs_diff(delivered) <= block_tokens {
            0
        } else if predicted > delivered {
            1
        } else {
            2
        };
        self.cached_predictions[outcome].inc();
    }

    pub(crate) fn purged(&self, purge: Purge) {
        self.purges[usize::from(purge == Purge::Rank)].inc();
    }

    pub(crate) fn evidence(&self, level: EvidenceLevel) {
        for (gauge, l) in self.evidence.iter().zip(EvidenceLevel::ALL) {
            gauge.set(i64::from(l == level));
        }
    }

    pub(crate) fn held_back(&self, hold: Option<Hold>) {
        for (gauge, name) in self.held_back.iter().zip(Hold::NAMES) {
            gauge.set(i64::from(hold.is_some_and(|hold| hold.as_str() == name)));
        }
    }

    pub(crate) fn breaker(&self, gate: Gate) {
        for (gauge, g) in self.breaker.iter().zip(Gate::ALL) {
            gauge.set(i64::from(g == gate));
        }
    }
}
