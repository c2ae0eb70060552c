//! Values that callers see: slots, match results, statistics.

/// A backend rank in one index. It carries a generation: after `remove_rank` the old slot is
/// ignored by every call and never reaches the rank that takes its place.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug)]
pub struct Slot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Slot {
    /// Its number in the index, below the most ranks that the index ever had at once.
    pub fn number(self) -> usize {
        self.index as usize
    }
}

/// How a rank's engine keeps and evicts what it has computed.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Default)]
pub enum Eviction {
    /// vLLM: blocks in one free queue, least recently freed first, prompts from their tails.
    #[default]
    FreeQueue,
    /// SGLang: a radix tree of which whole leaves go, least recently used first.
    RadixLeaves,
    /// llama.cpp: so many slots of one sequence each, and saved sequences. The capacity is what
    /// both may hold together; no less than what the slots hold.
    Slots(u32),
}

/// How much of a prompt one rank holds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Matched {
    /// The rank.
    pub slot: Slot,
    /// Leading blocks that are resident or booked.
    pub blocks: u32,
    /// Leading blocks that are resident, bookings left out.
    pub confirmed_blocks: u32,
}

/// A beginning of a prompt that many ranks hold.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Shared {
    /// Ranks with some of it, listed ones included.
    pub ranks: u32,
    /// Its blocks. Some of the ranks may hold less of it.
    pub blocks: u32,
}

/// What the predicted start of a prefill did.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Started {
    /// Leading blocks of the prompt that were found in the rank's cache.
    pub cached_blocks: u32,
    /// Blocks of an earlier answer that follow those: found as well if the prompt goes on with
    /// it. Part of `cached_blocks` if the booking counted on it.
    pub answer_blocks: u32,
    /// Cached blocks, with or without a key, that had to go to make room.
    pub evicted_blocks: u32,
}

/// The state of one rank, in blocks of the index.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct RankStats {
    /// Blocks that can hold content.
    pub capacity: u32,
    /// Blocks that started requests hold, keyed or not. More than `capacity` when predictions
    /// started more than the engine can have.
    pub pinned_blocks: u32,
    /// Distinct keyed blocks that are resident, held by a request or not.
    pub resident_keyed_blocks: u32,
    /// Blocks with content and no key: of started requests, and cached outputs.
    pub anonymous_blocks: u32,
    /// Blocks that hold nothing; they are allocated before anything is evicted.
    pub free_blocks: u32,
    /// Bookings that were neither finished nor rolled back.
    pub bookings: u32,
}

/// The size of an index.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct IndexStats {
    /// Nodes of the tree.
    pub nodes: usize,
    /// Distinct prefixes of whole blocks that are resident or booked on at least one rank.
    /// Content of a removed rank counts until it is swept, that of slots does not.
    pub distinct_blocks: usize,
    /// Sum over the ranks of their distinct resident blocks.
    pub residencies: usize,
}
