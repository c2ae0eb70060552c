//! Room in the rank's cache: how long prompts wait for it.
//!
//! An engine admits prompts in order, each when its blocks fit beside those that running requests
//! hold. Under overload that is what a prompt waits for, however little there is to compute, and
//! it gets room as fast as running requests end. So the wait is what stands in line, in blocks of
//! prompts, over the blocks of prompts that ended in a second, lately. Whether there is a wait at
//! all is for the caller to say: it takes the whole picture of the cache to know.

use std::collections::BTreeMap;

use domain::{LeaseId, Moment};

use super::arrivals::Rate;

/// Time over which ends are averaged, in seconds: some tens of them on a rank without room, whose
/// requests run for seconds each and come free in bursts.
const WINDOW_SECONDS: u32 = 30;

/// A longer wait is a fault elsewhere.
const MAX_WAIT_SECONDS: f64 = 3_600.0;

#[derive(Clone, Copy, Debug)]
struct Claim {
    blocks: u32,
    admitted: bool,
}

/// The open leases of one rank with their claims.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    leases: BTreeMap<LeaseId, Claim>,
    /// Σ of those that were not admitted.
    waiting: u64,
    /// Blocks of requests that ended after they were.
    ended: Rate<WINDOW_SECONDS>,
}

impl Default for Claims {
    fn default() -> Self {
        Self { leases: BTreeMap::new(), waiting: 0, ended: Rate::new() }
    }
}

impl Claims {
    /// Open leases.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Their names, the youngest first.
    pub(super) fn youngest_first(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.leases.keys().rev().copied()
    }

    pub(super) fn book(&mut self, lease: LeaseId, blocks: u32) {
        self.leases.insert(lease, Claim { blocks, admitted: false });
        self.waiting += u64::from(blocks);
    }

    /// The prompt of `lease` was computed.
    pub(super) fn admit(&mut self, lease: LeaseId) {
        if let Some(claim) = self.leases.get_mut(&lease)
            && !std::mem::replace(&mut claim.admitted, true)
        {
            self.waiting -= u64::from(claim.blocks);
        }
    }

    /// `false` if the lease is not open.
    pub(super) fn end(&mut self, lease: LeaseId, now: Moment) -> bool {
        let Some(claim) = self.leases.remove(&lease) else { return false };
        if claim.admitted {
            self.ended.record(f64::from(claim.blocks), now);
        } else {
            self.waiting -= u64::from(claim.blocks);
        }
        true
    }

    /// Seconds until a prompt of so many blocks has room, after all that wait; 0 while nothing is
    /// known of that.
    pub(super) fn wait_seconds(&self, blocks: u32, now: Moment) -> f64 {
        let rate = self.ended.per_second(now);
        let line = self.waiting as f64 + f64::from(blocks);
        if rate > 0.0 { (line / rate).min(MAX_WAIT_SECONDS) } else { 0.0 }
    }
}
