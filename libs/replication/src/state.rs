//! What a pool's state must offer to be kept in step on another router.

use domain::RankId;

use crate::ownership::Stream;

/// A state that is changed by deltas alone, and equally on every router.
///
/// The owner's own changes go through [`apply`](Self::apply) as well, so that there is one code
/// path. Nothing in it may depend on a clock, on chance, on the order of a hash map or on the
/// process: deltas carry ages, not moments.
pub trait Replicated: Sized {
    /// One change.
    type Delta: Clone;
    /// A part of a snapshot, small enough to be one message.
    type Chunk: Clone;

    /// Makes a change. One that does not fit (it speaks of what is not there) is ignored, and
    /// so is it everywhere.
    fn apply(&mut self, delta: &Self::Delta);

    /// Bytes that a delta takes in the owner's ring, about.
    fn weight(delta: &Self::Delta) -> usize;

    /// The whole state in parts.
    fn snapshot(&self) -> Vec<Self::Chunk>;

    /// A state without content, with the same configuration, to load a snapshot into.
    fn empty(&self) -> Self;

    /// Adds a part of a snapshot, in their order.
    fn load(&mut self, chunk: Self::Chunk);

    /// A checksum for each rank, ordered by rank. It is asked for with every heartbeat, so it
    /// should be kept with the changes rather than computed over the content.
    fn checksums(&self) -> Vec<(RankId, u64)>;
}

/// Exactly which state somebody has: the first `seq` changes of that stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Whose changes.
    pub stream: Stream,
    /// How many of them.
    pub seq: u64,
}
