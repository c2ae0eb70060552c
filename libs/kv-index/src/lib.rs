//! Which backend rank holds which prefix, and what its engine will evict next.
mod booking;
mod index;
mod matches;
mod node;
mod order;
mod rank;
mod structure;
mod sweep;
#[cfg(test)]
mod tests;
mod tree;
mod types;

pub use booking::Booking;
pub use index::KvIndex;
pub use matches::Matches;
pub use types::{IndexStats, Matched, RankStats, Slot, Started};
