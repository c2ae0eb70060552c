//! The router's metrics, registered once; handles with resolved labels go to the pools.
//!
//! Labels come from the fleet alone (models that backends list, backends that the operator
//! named), never from a request.

mod rank;
mod region;

use domain::{DecisionReason, EvidenceLevel, ModelId, RankId, RejectReason};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use rank::RankFamilies;
pub(crate) use rank::{Purge, RankMetrics};
pub(crate) use region::{CopyMetrics, Region};

/// From 5 µs: a decision is expected to take tens of microseconds.
const DECISION_BUCKETS: &[f64] =
    &[5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1];

/// From a millisecond, the noise of a network, to ten seconds, a prompt at the end of a queue.
const TTFT_ERROR_BUCKETS: &[f64] =
    &[1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 5e-1, 1.0, 2.5, 5.0, 10.0];

/// All families.
pub(crate) struct Families {
    decisions: IntCounterVec,
    rejections: IntCounterVec,
    pub(crate) decision_seconds: Histogram,
    leases: IntGaugeVec,
    leases_reaped: IntCounterVec,
    rollbacks: IntCounterVec,
    ttft_error: HistogramVec,
    evidence_changes: IntCounterVec,
    ranks: RankFamilies,
}

fn counters(
    r: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    let vec = IntCounterVec::new(Opts::new(name, help), labels)?;
    r.register(Box::new(vec.clone()))?;
    Ok(vec)
}

fn gauges(
    r: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntGaugeVec, prometheus::Error> {
    let vec = IntGaugeVec::new(Opts::new(name, help), labels)?;
    r.register(Box::new(vec.clone()))?;
    Ok(vec)
}

impl Families {
    /// Registers everything.
    ///
    /// # Errors
    /// When the registry already holds a family of one of the names.
    pub(crate) fn register(r: &Registry) -> Result<Self, prometheus::Error> {
        let decision_seconds = Histogram::with_opts(
            HistogramOpts::new(
                "warmpath_router_decision_duration_seconds",
                "Time to choose and book a rank.",
            )
            .buckets(DECISION_BUCKETS.to_vec()),
        )?;
        r.register(Box::new(decision_seconds.clone()))?;
        let ttft_error = HistogramVec::new(
            HistogramOpts::new(
                "warmpath_router_ttft_error_seconds",
                "Distance between predicted and delivered time to first token.",
            )
            .buckets(TTFT_ERROR_BUCKETS.to_vec()),
            &["model"],
        )?;
        r.register(Box::new(ttft_error.clone()))?;
        Ok(Self {
            decisions: counters(
                r,
                "warmpath_router_decisions_total",
                "Routing decisions by the reason the rank won.",
                &["model", "reason"],
            )?,
            rejections: counters(
                r,
                "warmpath_router_rejections_total",
                "Routes without a decision.",
                &["reason"],
            )?,
            decision_seconds,
            leases: gauges(r, "warmpath_router_leases", "Open leases.", &["model"])?,
            leases_reaped: counters(
                r,
                "warmpath_router_leases_reaped_total",
                "Leases that were never closed and ran out.",
                &["model"],
            )?,
            rollbacks: counters(
                r,
                "warmpath_router_rollbacks_total",
                "Bookings undone before their prefill began.",
                &["model"],
            )?,
            ttft_error,
            evidence_changes: counters(
                r,
                "warmpath_router_evidence_changes_total",
                "Changes of a rank's evidence level, by the new level.",
                &["model", "level"],
            )?,
            ranks: RankFamilies::register(r)?,
        })
    }

    /// A route without a decision.
    pub(crate) fn rejected(&self, reason: RejectReason) {
        self.rejections.with_label_values(&[reason.as_str()]).inc();
    }

    /// The handles of one pool.
    pub(crate) fn pool(&self, model: &ModelId) -> PoolMetrics {
        let m = model.as_str();
        PoolMetrics {
            decisions: REASONS.map(|r| self.decisions.with_label_values(&[m, r.as_str()])),
            leases: self.leases.with_label_values(&[m]),
            leases_reaped: self.leases_reaped.with_label_values(&[m]),
            rollbacks: self.rollbacks.with_label_values(&[m]),
            ttft_error: self.ttft_error.with_label_values(&[m]),
            evidence_changes: EvidenceLevel::ALL
                .map(|l| self.evidence_changes.with_label_values(&[m, l.as_str()])),
        }
    }

    /// The handles of one rank of one pool.
    pub(crate) fn rank(&self, model: &ModelId, id: &RankId) -> RankMetrics {
        self.ranks.rank(model, id)
    }

    /// Drops the series of a rank that is no more.
    pub(crate) fn remove_rank(&self, model: &ModelId, id: &RankId) {
        self.ranks.remove_rank(model, id);
    }

    /// Drops the series of a pool that is no more.
    pub(crate) fn remove_pool(&self, model: &ModelId) {
        let m = model.as_str();
        // A series that was never touched is not there: nothing to do about it.
        for reason in REASONS {
            let _ = self.decisions.remove_label_values(&[m, reason.as_str()]);
        }
        for level in EvidenceLevel::ALL {
            let _ = self.evidence_changes.remove_label_values(&[m, level.as_str()]);
        }
        let _ = self.leases.remove_label_values(&[m]);
        let _ = self.leases_reaped.remove_label_values(&[m]);
        let _ = self.rollbacks.remove_label_values(&[m]);
        let _ = self.ttft_error.remove_label_values(&[m]);
    }
}

const REASONS: [DecisionReason; 8] = [
    DecisionReason::OnlyCandidate,
    DecisionReason::WarmPrefix,
    DecisionReason::WarmerRankTooBusy,
    DecisionReason::HotPrefix,
    DecisionReason::Cold,
    DecisionReason::AllSaturated,
    DecisionReason::LeastLoad,
    DecisionReason::RoundRobin,
];

/// The handles of a pool.
pub(crate) struct PoolMetrics {
    decisions: [IntCounter; 8],
    pub(crate) leases: IntGauge,
    pub(crate) leases_reaped: IntCounter,
    pub(crate) rollbacks: IntCounter,
    ttft_error: Histogram,
    evidence_changes: [IntCounter; 3],
}

impl PoolMetrics {
    pub(crate) fn decided(&self, reason: DecisionReason) {
        if let Some(i) = REASONS.iter().position(|r| *r == reason) {
            self.decisions[i].inc();
        }
    }

    pub(crate) fn evidence_changed(&self, level: EvidenceLevel) {
        if let Some(i) = EvidenceLevel::ALL.iter().position(|l| *l == level) {
            self.evidence_changes[i].inc();
        }
    }

    pub(crate) fn first_token(&self, rank: &RankMetrics, predicted: f64, delivered: f64) {
        self.ttft_error.observe((predicted - delivered).abs());
        rank.first_token(predicted, delivered);
    }
}
