//! One booking of one attempt.

use domain::{LeaseId, Moment};
use kv_index::Booking;
use kv_index::feedback::Sample;
use replication::LeaseKey;

use super::measure::Measure;
use super::rank::RankKey;

/// Numbers of pools and leases share 64 bits, so that a report finds its pool by the lease
/// alone. Forty bits of leases last a pool for three years at 10,000 a second.
const LEASE_BITS: u32 = 40;

/// The lease `sequence` of pool `pool`.
pub(crate) const fn lease_id(pool: u32, sequence: u64) -> LeaseId {
    LeaseId(((pool as u64) << LEASE_BITS) | (sequence & ((1 << LEASE_BITS) - 1)))
}

/// The pool that issued `lease`.
pub(crate) const fn pool_of(lease: LeaseId) -> u64 {
    lease.0 >> LEASE_BITS
}

/// An open lease. It names the very rank object it was booked on: when that rank is gone, a
/// successor of the same name is not touched.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The rank.
    pub(crate) rank: RankKey,
    /// When it was booked.
    pub(crate) at: Moment,
    /// When a report spoke of it last.
    pub(crate) heard: Moment,
    /// Its blocks; none where nothing of the prompt is known or the rank caches nothing.
    pub(crate) blocks: Option<BookedBlocks>,
    /// What was foretold.
    pub(crate) forecast: Forecast,
    /// What was sent.
    pub(crate) size: Size,
    /// Whether its answer streams.
    pub(crate) stream: bool,
    /// Whether it is the trial of a broken rank.
    pub(crate) trial: bool,
    /// Whether its first token was seen.
    pub(crate) first_token: bool,
    /// Output tokens so far.
    pub(crate) generated: u32,
    /// Its name, where another process holds it.
    pub(crate) key: Option<LeaseKey>,
    /// Whether it was put on its rank without a decision of ours: nothing was foretold.
    pub(crate) adopted: bool,
}

/// A lease's part in a KV index.
#[derive(Debug)]
pub(crate) struct BookedBlocks {
    /// Which of the pool's indexes.
    pub(crate) mirror: usize,
    /// The booking there.
    pub(crate) booking: Booking,
    /// What is compared when the engine tells what it found.
    pub(crate) sample: Sample,
    /// Whether the prefill is taken to have begun.
    pub(crate) started: bool,
    /// How the request lies in blocks.
    pub(crate) measure: Measure,
    /// Leading blocks that have keys.
    pub(crate) keyed: u32,
}

/// The size of a prompt on its rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) tokens: u32,
    pub(crate) text_bytes: u32,
    pub(crate) uncached_tokens: u32,
}

/// What a decision foretold, to be held against what came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast {
    pub(crate) cached_tokens: u32,
    pub(crate) ttft_seconds: f64,
    /// Tokens in a block of the engine's, the grain of any prediction.
    pub(crate) grain: u32,
    /// The prompt's text, to learn the bytes per token from.
    pub(crate) text_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_leads_back_to_its_pool() {
        assert_eq!(pool_of(lease_id(7, 123_456)), 7);
        assert_ne!(lease_id(7, 1), lease_id(8, 1));
    }
}
