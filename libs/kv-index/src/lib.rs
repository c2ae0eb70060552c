//! Radix tree of block keys to holders, with the engine's eviction mirrored; synchronous, no
//! clock, no I/O.

mod matches;
mod model;
mod types;

pub use matches::Matches;
pub use model::{Booking, KvIndex};
pub use types::{IndexStats, Matched, RankStats, Slot, Started};
