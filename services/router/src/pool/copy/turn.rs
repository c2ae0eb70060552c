//! A copy becomes what this router serves by, and a copy again.

use std::collections::HashSet;
use std::sync::Arc;

use domain::{BackendId, Moment};
use kv_index::feedback::Feedback;
use replication::Sessions;

use crate::metrics::Families;
use crate::pool::State;
use crate::pool::reconcile::Seat;

impl State {
    /// This router serves from now on, by the backends as seen here.
    pub(in crate::pool) fn begin(
        &mut self,
        families: &Arc<Families>,
        seats: &[Seat<'_>],
        now: Moment,
    ) {
        self.is_copy = false;
        self.show_in(families);
        self.scaled_by = self.bytes_per_token;
        for mirror in &mut self.mirrors {
            mirror.feedback = Feedback::default();
        }
        for rank in self.ranks.iter() {
            for &(mirror, slot) in rank.slots() {
                let mirror = &mut self.mirrors[mirror];
                mirror
                    .feedback
                    .set_told_capacity(slot, rank.profile.told(mirror.unit, self.scaled_by));
                if let Some(stats) = mirror.index.rank_stats(slot) {
                    mirror.feedback.follow_capacity(slot, stats.capacity);
                }
            }
        }
        self.remote.sessions = Sessions::take_over(&self.remote.book, now);
        self.changes.listen(true);
        let there: HashSet<&BackendId> = seats.iter().map(|seat| &seat.backend.id).collect();
        let is_gone = |id: &&BackendId| !there.contains(id);
        let gone: Vec<BackendId> = self.by_backend.keys().filter(is_gone).cloned().collect();
        self.reconcile(&gone, seats);
    }

    /// Another router serves from now on, and this is a copy.
    pub(in crate::pool) fn rest(&mut self) {
        self.changes.listen(false);
        self.is_copy = true;
        self.remote.sessions = Sessions::default();
        for rank in self.ranks.iter() {
            self.families.remove_rank(&self.model, &rank.id);
        }
        self.metrics.leases.set(0);
        let hidden = self.hidden.clone();
        self.show_in(&hidden);
    }

    fn show_in(&mut self, families: &Arc<Families>) {
        self.families = families.clone();
        self.metrics = families.pool(&self.model);
        self.metrics.leases.set(self.leases.len() as i64);
        for at in 0..self.ranks.len() {
            let rank = &mut self.ranks[at];
            rank.metrics = families.rank(&self.model, &rank.id);
            rank.metrics.evidence(rank.level);
            rank.metrics.breaker(rank.breaker.gate(self.now));
            rank.show_in_flight();
        }
    }
}
