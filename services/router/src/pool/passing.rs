//! What happens to a pool as time passes: prefills begin, lost leases end, gauges move.

use domain::{LeaseId, Moment};
use scheduling::Due;

use super::change::{Change, ChangeLog};
use super::lease::{BookedBlocks, Lease};
use super::report::Closing;
use super::{Mirror, State};
use crate::explain::{Ending, Outcome};

/// A lease of which nothing was heard for so long is lost: a stream reports its progress every
/// second or so, and whole answers end well before within the edge's limits.
const LEASE_LIFETIME_SECONDS: f64 = 3600.0;

impl State {
    /// Begins the prefills whose predicted time has come, and ends what holds ranks back.
    pub(super) fn advance(&mut self, now: Moment) {
        let mut from = 0;
        while let Some(at) = self.ranks.next_due(from, now) {
            self.advance_rank(at, now);
            from = at + 1;
        }
    }

    pub(super) fn advance_rank(&mut self, at: usize, now: Moment) {
        let (mirrors, leases, changes) = (&mut self.mirrors, &mut self.leases, &mut self.changes);
        let rank = &mut self.ranks[at];
        rank.pacing.pass(now);
        rank.load.start_due(now, |lease, due| {
            let Some(lease) = leases.get_mut(&lease) else { return true };
            let starts = due == Due::Finished || has_room(mirrors, lease.blocks.as_ref());
            if starts {
                start(mirrors, lease, changes);
            }
            starts
        });
    }

    /// Ends the leases that were lost. They are numbered in the order of their booking, so the
    /// young ones are not looked at; the old ones that still report are the few long streams.
    pub(super) fn reap(&mut self, now: Moment) -> Vec<(LeaseId, Outcome)> {
        let lost: Vec<(LeaseId, f64)> = self
            .leases
            .iter()
            .map(|(&id, lease)| (id, lease, now.seconds_since(lease.at)))
            .take_while(|(_, _, age)| *age >= LEASE_LIFETIME_SECONDS)
            .filter(|(_, lease, _)| now.seconds_since(lease.heard) >= LEASE_LIFETIME_SECONDS)
            // What other processes hold they say once a second.
            .filter(|(_, lease, _)| lease.key.is_none())
            .map(|(id, _, age)| (id, age))
            .collect();
        lost.into_iter()
            .map(|(id, seconds)| {
                tracing::warn!(model = %self.model, lease = id.0, "a lease was never closed");
                self.metrics.leases_reaped.inc();
                self.close(id, Closing::default(), now);
                (id, Outcome::Ended { ending: Ending::Reaped, seconds })
            })
            .collect()
    }

    /// Brings the gauges up to date.
    pub(super) fn show(&mut self, now: Moment) {
        for rank in self.ranks.iter() {
            rank.metrics.queue_delay.set(rank.load.queue_delay_seconds(now));
            rank.metrics.prefill_check.set(rank.check.ratio().unwrap_or(0.0));
            let ceiling = rank.load.running_ceiling().unwrap_or(0);
            rank.metrics.running_ceiling.set(i64::from(ceiling));
            rank.metrics.breaker(rank.breaker.gate(now));
            rank.metrics.held_back(rank.hold(now));
            rank.show_in_flight();
            let (mut resident, mut capacity, mut told_capacity) = (0, 0, 0);
            for &(mirror, slot) in rank.slots() {
                let mirror = &self.mirrors[mirror];
                if let Some(stats) = mirror.index.rank_stats(slot) {
                    resident += i64::from(stats.resident_keyed_blocks);
                    if capacity < i64::from(stats.capacity) {
                        capacity = i64::from(stats.capacity);
                        told_capacity = mirror.feedback.told_blocks(slot).map_or(0, i64::from);
                    }
                }
            }
            rank.metrics.resident.set(resident);
            rank.metrics.capacity.set(capacity);
            rank.metrics.told_capacity.set(told_capacity);
        }
    }
}

/// Whether the engine can start the lease's prompt beside those that run.
pub(super) fn has_room(mirrors: &[Mirror], blocks: Option<&BookedBlocks>) -> bool {
    blocks.is_none_or(|b| mirrors[b.mirror].index.has_room(&b.booking))
}

/// The lease's prefill is taken to begin: its blocks are allocated, others evicted for it.
pub(super) fn start(mirrors: &mut [Mirror], lease: &mut Lease, changes: &mut ChangeLog) {
    if let Some(blocks) = &mut lease.blocks
        && !blocks.started
    {
        blocks.started = true;
        let Mirror { index, feedback, .. } = &mut mirrors[blocks.mirror];
        feedback.start(index, &mut blocks.booking, &mut blocks.sample);
        if let Some(key) = &lease.key {
            changes.record(|| Change::Started { lease: key.clone() });
        }
    }
}
