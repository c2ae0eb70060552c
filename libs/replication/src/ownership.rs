//! Which router owns a pool: rendezvous hashing over the member list, and reigns.
//!
//! The list says who *should* own a pool. Who *does* is a [`Reign`]: it begins when a router
//! takes the pool over and ends when it hears of a higher one or hands the pool on.

use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::member::{Epoch, MemberId, MemberList, Process};

/// A pool: one model's backends in one region, or a part of them. A sub-pool is one more id.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(Arc<str>);

impl PoolId {
    /// Wraps the given name as it is.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PoolId {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The routers of `list` in the order in which they should own `pool`: the owner, its standby,
/// and who comes next when both are out of reach. A router that joins or leaves moves only the
/// pools that it gets or had. The order is part of the protocol: all members must agree on it.
pub fn order(pool: &PoolId, list: &MemberList) -> Vec<Process> {
    // The name is hashed and then seeds the other, so no two pairs of names run together.
    let seed = xxh3_64_with_seed(pool.as_str().as_bytes(), 0);
    let weight = |id: &MemberId| xxh3_64_with_seed(id.as_str().as_bytes(), seed);
    let mut routers: Vec<_> = list.routers().map(|p| (weight(&p.id), p.clone())).collect();
    routers.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    routers.into_iter().map(|(_, process)| process).collect()
}

/// One owner's time, and the name of the sequence of changes it publishes in it. The numbers
/// of two reigns have nothing to do with each other.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream {
    /// Above that of every reign its owner knew of.
    pub turn: u64,
    /// The owner.
    pub owner: Process,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}@{:?}", self.turn, self.owner)
    }
}

/// The claim of a serving owner. Of two, the higher one stays: first by the epoch of the list
/// it rests on, then by turn, then by name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reign {
    /// The list by which it took over. While the newest list has it as the owner, its reign
    /// moves along to that epoch, so that an owner that missed lists cannot win against one
    /// that serves by them.
    pub epoch: Epoch,
    /// Which reign; unchanged while the epoch moves along.
    pub stream: Stream,
}

impl Reign {
    /// The reign of `owner` that follows `before`, the highest it knows of. `turn` is the
    /// highest turn it knows of, which may be that of a lower reign: no owner names two streams
    /// the same.
    pub(crate) fn after(before: Option<&Reign>, turn: u64, epoch: Epoch, owner: Process) -> Reign {
        let least = before.map_or(Epoch::ZERO, |reign| reign.epoch);
        Reign { epoch: epoch.max(least), stream: Stream { turn: turn + 1, owner } }
    }
}

impl fmt::Debug for Reign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{:?}/{:?}", self.epoch, self.stream)
    }
}

#[cfg(test)]
mod tests;
