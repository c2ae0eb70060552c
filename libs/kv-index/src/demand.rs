//! How many of its holders' requests are for one prefix.
//!
//! The count of a prefix fades over as many bookings for each rank of the pool as [`asks`] says, so
//! a prefix that is asked for as often as a rank gets requests on average has that count. Over its
//! holders, it tells which part of an average rank's requests each of them gets for it alone,
//! however large the pool is.
//!
//! [`asks`]: crate::asks

use crate::index::KvIndex;
use crate::matches::Matches;
use crate::node::Node;

/// A prefix and what it brings to those that hold it.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Demand {
    /// Its blocks.
    pub blocks: u32,
    /// Requests for it that each rank gets which holds some of its end or was booked to; 1 is
    /// what a rank of the pool gets on average in all.
    pub load: f64,
    /// Whether a booking that has not started brings it to one more rank.
    pub is_pending: bool,
}

impl KvIndex {
    /// The longest matched prefix of the prompt that brings its holders a load of more than
    /// `least`. Counts are those at the ends of the tree's nodes, so a prefix may be asked for
    /// more often than is told. What ranks with slots hold is not in the tree, and counts for
    /// nothing. The index must not have changed since the match.
    pub fn demand(&self, matches: &Matches, least: f64) -> Option<Demand> {
        if matches.version() != self.version {
            return None;
        }
        matches.path().rev().find_map(|(id, blocks)| {
            let node = self.tree.node(id);
            let (holders, confirmed) = self.count_holders(node);
            let load = node.asks.load(self.clock);
            let demand = || Demand {
                blocks,
                load: load / f64::from(holders),
                is_pending: confirmed < holders,
            };
            (holders > 0 && load > least * f64::from(holders)).then(demand)
        })
    }

    /// How often the longest matched prefix of the prompt was asked for lately; 0 if none is. The
    /// index must not have changed since the match.
    pub fn asks_of(&self, matches: &Matches) -> f64 {
        if matches.version() != self.version {
            return 0.0;
        }
        let held = |id| self.count_holders(self.tree.node(id)).0 > 0;
        let last = matches.path().rev().find(|(id, _)| held(*id));
        last.map_or(0.0, |(id, _)| f64::from(self.tree.node(id).asks.lately(self.clock)))
    }

    /// Ranks that have or were booked some of the node, and those that have.
    fn count_holders(&self, node: &Node) -> (u32, u32) {
        if !self.sweep.is_pending() {
            return (node.holders.len() as u32, node.confirmed);
        }
        let live = node.holders.iter().filter(|holder| self.is_live(holder.slot));
        live.fold((0, 0), |(all, confirmed), h| (all + 1, confirmed + u32::from(h.len > 0)))
    }
}
