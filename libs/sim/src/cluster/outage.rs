//! Engines that die and come back with nothing in their caches.

use domain::Moment;

use super::Cluster;
use super::queue::Event;
use crate::engine::EngineModel;

/// A time for which an engine is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The engine.
    pub rank: usize,
    /// When it dies.
    pub from: Moment,
    /// When it is back.
    pub until: Moment,
}

impl Cluster<'_> {
    pub(super) fn plan_outages(&mut self) {
        for outage in &self.config.outages {
            self.queue.push(outage.from, Event::Dies(outage.rank));
            self.queue.push(outage.until, Event::Returns(outage.rank));
        }
    }

    /// What it generates for ends there. What it had not begun to answer is sent again, as edges
    /// do.
    pub(super) fn dies(&mut self, rank: usize, now: Moment) {
        if let Ok(mut anew) = EngineModel::new(self.config.engines[rank].clone()) {
            anew.omit_token_events();
            self.engines[rank] = anew;
        }
        for index in 0..self.records.len() {
            if self.records[index].rank != rank {
                continue;
            }
            let Some(lease) = self.leases[index].take() else { continue };
            self.gateway.failed(lease, now);
            if self.records[index].first_token.is_some() {
                self.end(index, now);
            } else {
                self.queue.push(now, Event::Send(index));
            }
        }
        self.gateway.set_away(rank, true);
    }

    pub(super) fn returns(&mut self, rank: usize) {
        self.gateway.set_away(rank, false);
    }
}
