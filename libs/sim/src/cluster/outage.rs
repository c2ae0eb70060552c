//! Engines that die and come back with nothing in their caches.

use std::collections::HashSet;

use domain::Moment;

use super::Cluster;
use super::queue::Event;
use crate::engine::EngineModel;
use crate::error::Error;

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
    pub(super) fn plan_outages(&mut self) -> Result<(), Error> {
        let outages = &self.config.outages;
        let away: HashSet<usize> = outages.iter().map(|outage| outage.rank).collect();
        if outages.iter().any(|o| o.rank >= self.engines.len() || o.from >= o.until) {
            return Err(refused("of an engine that there is, ending after its beginning"));
        }
        if !outages.is_empty() && away.len() >= self.engines.len() {
            return Err(refused("sparing one engine"));
        }
        for outage in outages {
            self.queue.push(outage.from, Event::Dies(outage.rank));
            self.queue.push(outage.until, Event::Returns(outage.rank));
        }
        Ok(())
    }

    /// What it generates for ends there. What it had not begun to answer is sent again, as edges
    /// do.
    pub(super) fn dies(&mut self, rank: usize, now: Moment) {
        self.lost_preemptions += self.engines[rank].counters().preemptions;
        let anew = EngineModel::new(self.config.engines[rank].clone());
        self.engines[rank] = anew.expect("its configuration was taken before");
        self.engines[rank].omit_token_events();
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

fn refused(expected: &'static str) -> Error {
    Error::Config { field: "outages", expected }
}
