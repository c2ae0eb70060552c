//! The ranks as operators see them.

use domain::{BackendId, BackendState, Moment};
use serde_json::{Value, json};

use super::State;
use crate::pacing::Hold;

impl State {
    /// `role` is what this router is to the pool, `state_of` what it sees of backends.
    pub(super) fn view(
        &self,
        role: &str,
        state_of: &dyn Fn(&BackendId) -> Option<BackendState>,
        now: Moment,
    ) -> Vec<Value> {
        self.ranks
            .iter()
            .map(|rank| {
                let fit = rank.fit.coefficients();
                let caches: Vec<Value> = rank
                    .slots()
                    .iter()
                    .filter_map(|&(mirror, slot)| {
                        let mirror = &self.mirrors[mirror];
                        let stats = mirror.index.rank_stats(slot)?;
                        Some(json!({
                            "unit": mirror.unit,
                            "capacity_blocks": stats.capacity,
                            "told_blocks": mirror.feedback.told_blocks(slot),
                            "trust": mirror.feedback.trust(slot),
                            "gap": mirror.feedback.gap(slot),
                            "resident_blocks": stats.resident_keyed_blocks,
                            "pinned_blocks": stats.pinned_blocks,
                            "output_blocks": stats.anonymous_blocks,
                            "free_blocks": stats.free_blocks,
                            "bookings": stats.bookings,
                        }))
                    })
                    .collect();
                json!({
                    "model": self.model,
                    "role": role,
                    "backend": rank.id.backend,
                    "rank": rank.id.rank,
                    "incarnation": rank.id.incarnation,
                    "url": &*rank.seen.url,
                    "engine": rank.seen.engine,
                    "state": state_of(&rank.id.backend).unwrap_or(rank.seen.state),
                    "breaker": rank.breaker.gate(now).as_str(),
                    "held_back": rank.hold(now).map(Hold::as_str),
                    "evidence": rank.level,
                    "in_flight": rank.load.in_flight(),
                    "foreign_requests": rank.load.foreign_requests(now),
                    "queue_delay_seconds": rank.load.queue_delay_seconds(now),
                    "network_seconds": rank.seen.network.as_secs_f64(),
                    "caches": caches,
                    "prefill_fit": {
                        "latency_seconds": fit.latency_seconds,
                        "fixed_seconds": fit.fixed_seconds,
                        "per_token_seconds": fit.per_token_seconds,
                        "per_pair_seconds": fit.per_pair_seconds,
                        "decode_step_seconds": fit.decode_step_seconds,
                        "decode_running_seconds": fit.decode_running_seconds,
                        "samples": rank.fit.samples(),
                    },
                })
            })
            .collect()
    }
}
