//! How often content is asked for, lately.
//!
//! What evicting a run of blocks costs depends on whether it will be asked for again. The best
//! that an index knows of that is how often it was asked for: on whichever rank, as popularity
//! belongs to content and not to a place. So each node has a count of the bookings that went over
//! it. The count fades over [`MEMORY_REQUESTS`] bookings for each rank, and outlives the content
//! for about as long: a document that was evicted everywhere and comes back is not a new one.

use domain::BlockKey;

/// For each rank, so many bookings of the pool later a count has faded to 1/e. In simulation,
/// half and twice of it do as well: shorter memories cannot tell a popular document from a rare
/// one, longer ones go on protecting conversations that have ended.
const MEMORY_REQUESTS: f32 = 150.0;

/// Below this share of the memory an exponential is not worth a call.
const SHORT: f32 = 1.0 / 32.0;

/// Counts of evicted runs that are kept for each rank: about those of as many of its requests as
/// a count is kept for.
const KEPT_PER_RANK: usize = 128;

/// Counts of evicted content in one piece of the table.
const PIECE: usize = 1024;

/// The time of a pool, in bookings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AskClock {
    bookings: u32,
    /// One over the bookings that a count fades over.
    per_booking: f32,
}

impl AskClock {
    /// The clock of a pool of so many ranks, at its beginning.
    pub fn new(ranks: usize) -> Self {
        let mut clock = Self::default();
        clock.set_ranks(ranks);
        clock
    }

    /// One booking later.
    pub fn tick(&mut self) {
        self.bookings = self.bookings.wrapping_add(1);
    }

    pub(crate) fn set_ranks(&mut self, ranks: usize) {
        self.per_booking = 1.0 / (MEMORY_REQUESTS * ranks.max(1) as f32);
    }

    /// What is left of a count that was right `then`.
    #[inline]
    pub(crate) fn faded_since(self, then: AskClock) -> f32 {
        self.fading(then.bookings)
    }

    #[inline]
    fn fading(self, then: u32) -> f32 {
        let x = self.bookings.wrapping_sub(then) as f32 * self.per_booking;
        if x < SHORT {
            // The first terms of the series, which are all that shows in an `f32`.
            return 1.0 - x * (1.0 - x * (0.5 - x * (1.0 / 6.0)));
        }
        (-x).exp()
    }
}

/// A fading count of the bookings that asked for a run of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asks {
    count: f32,
    /// The booking at which it was that much.
    at: u32,
}

impl Asks {
    /// A count as it stands now.
    pub(crate) fn of(count: f32, now: AskClock) -> Self {
        Self { count, at: now.bookings }
    }

    /// Counts the present booking.
    pub fn ask(&mut self, now: AskClock) {
        self.count = self.lately(now) + 1.0;
        self.at = now.bookings;
    }

    /// How often it was asked for, lately.
    pub fn lately(self, now: AskClock) -> f32 {
        if self.count == 0.0 { 0.0 } else { self.count * now.fading(self.at) }
    }

    /// The same over the count of something that is asked for as often as a rank gets requests on
    /// average.
    pub fn load(self, now: AskClock) -> f64 {
        f64::from(self.lately(now) / MEMORY_REQUESTS)
    }
}

/// A run that was evicted everywhere.
#[derive(Clone, Copy, Debug)]
struct Evicted {
    /// Its last key, which names the whole prefix up to there.
    last: BlockKey,
    blocks: u32,
    asks: Asks,
}

/// The counts of content that was evicted everywhere. A table of fixed size without chains: a
/// newer entry takes an older one's place.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    /// Allocated when first used; by the first key of a run.
    pieces: Vec<Vec<Evicted>>,
}

impl Forgotten {
    /// Makes it large enough for so many ranks. Entries may be lost by that.
    pub(crate) fn set_ranks(&mut self, ranks: usize) {
        self.pieces.resize_with((ranks * KEPT_PER_RANK).div_ceil(PIECE), Vec::new);
        if ranks == 0 {
            self.pieces = Vec::new();
        }
    }

    /// Keeps the count of these blocks, which are going.
    pub(crate) fn put(&mut self, run: &[BlockKey], asks: Asks) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
        let Some((piece, at)) = self.place(*first) else { return };
        let piece = &mut self.pieces[piece];
        if piece.is_empty() {
            let nothing = Evicted { last: BlockKey(0), blocks: 0, asks: Asks::default() };
            *piece = vec![nothing; PIECE];
        }
        let blocks = u32::try_from(run.len()).unwrap_or(u32::MAX);
        piece[at] = Evicted { last: *last, blocks, asks };
    }

    /// How many leading ones of these blocks went together, and their count then.
    pub(crate) fn get(&self, keys: &[BlockKey]) -> Option<(usize, Asks)> {
        let (piece, at) = self.place(*keys.first()?)?;
        let entry = self.pieces[piece].get(at)?;
        let blocks = entry.blocks as usize;
        let last = keys.get(blocks.checked_sub(1)?)?;
        (*last == entry.last).then_some((blocks, entry.asks))
    }

    fn place(&self, first: BlockKey) -> Option<(usize, usize)> {
        // The golden ratio spreads keys that are small numbers.
        let mixed = first.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let piece = ((mixed >> 40) as usize).checked_rem(self.pieces.len())?;
        Some((piece, (mixed >> 20) as usize % PIECE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut clock: AskClock, bookings: u32) -> AskClock {
        (0..bookings).for_each(|_| clock.tick());
        clock
    }

    #[test]
    fn a_count_fades_with_the_bookings_of_its_pool() {
        let start = AskClock::new(2);
        let mut asks = Asks::default();
        assert_eq!(asks.lately(start), 0.0);
        asks.ask(start);
        asks.ask(start);
        assert_eq!(asks.lately(start), 2.0);
        let later = after(start, 300);
        assert!((asks.lately(later) - 2.0 / 1.0_f32.exp()).abs() < 1e-5);
        asks.ask(later);
        assert!((asks.lately(later) - 1.0 - 2.0 / 1.0_f32.exp()).abs() < 1e-5);
        assert!((later.faded_since(start) - 1.0 / 1.0_f32.exp()).abs() < 1e-5);
    }

    #[test]
    fn counts_of_evicted_content_are_found_until_others_take_their_place() {
        let run = [7, 8, 9].map(BlockKey);
        let mut table = Forgotten::default();
        let mut asks = Asks::default();
        asks.ask(AskClock::new(1));
        table.put(&run, asks);
        assert_eq!(table.get(&run), None, "there is no rank");
        table.set_ranks(1);
        table.put(&run, asks);
        assert_eq!(table.get(&run), Some((3, asks)));
        assert_eq!(table.get(&[7, 8, 9, 10].map(BlockKey)), Some((3, asks)));
        assert_eq!(table.get(&run[..2]), None);
        assert_eq!(table.get(&[7, 8, 11].map(BlockKey)), None, "it went on in another way");
        assert_eq!(table.get(&[]), None);
        (100..1_000_000).for_each(|key| table.put(&[BlockKey(key)], Asks::default()));
        assert_eq!(table.get(&run), None);
        table.put(&run, asks);
        table.set_ranks(0);
        assert_eq!(table.get(&run), None);
    }
}
