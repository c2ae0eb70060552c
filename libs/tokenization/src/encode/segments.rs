//! The memory of tokenised segments: bounded in bytes, shared by threads.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::size_of;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Locks that the segments are spread over.
const SHARDS: usize = 16;

/// Bytes an entry takes beside its tokens: key and value in a table at most 7/8 full with a
/// control byte each, the place in the queue, and the allocator's header.
const ENTRY_BYTES: usize = (size_of::<(u128, Segment)>() + 1) * 8 / 7 + size_of::<u128>() + 16;

/// Figures of a model folder's memory of tokenised text, all since the folder was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Segments of text found in memory.
    pub hits: u64,
    /// Segments that had to be tokenised.
    pub misses: u64,
    /// Bytes of text in the segments found.
    pub hit_bytes: u64,
    /// Segments in memory now.
    pub entries: u64,
    /// Bytes of memory the segments take now, overhead included.
    pub resident_bytes: u64,
    /// Bytes of memory the tables of words take now.
    pub word_bytes: u64,
}

/// Tokens by the hash of their text.
///
/// The hash has 128 bits and a seed drawn at start, so equal hashes of different texts need not
/// be reckoned with; they would cost a wrong choice of backend, never a wrong answer.
pub(super) struct Segments {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: usize,
    seed: u64,
}

#[derive(Default)]
struct Shard {
    segments: HashMap<u128, Segment, BuildKeyHasher>,
    /// Second-chance order: the front goes first, unless it was used since it was queued.
    queue: VecDeque<u128>,
    bytes: usize,
    hits: u64,
    misses: u64,
    hit_bytes: u64,
}

struct Segment {
    tokens: Box<[u32]>,
    used: bool,
}

impl Segment {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + size_of_val(&*self.tokens)
    }
}

impl Segments {
    pub(super) fn new(bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let seed = RandomState::new().build_hasher().finish();
        Self { shards, shard_bytes: bytes / SHARDS, seed }
    }

    pub(super) fn key(&self, text: &str) -> u128 {
        xxh3_128_with_seed(text.as_bytes(), self.seed)
    }

    /// Appends the tokens of the text with that key and length, if they are known.
    pub(super) fn get(&self, key: u128, text_bytes: usize, out: &mut Vec<u32>) -> bool {
        let mut shard = self.shard(key).lock();
        let Some(segment) = shard.segments.get_mut(&key) else {
            shard.misses += 1;
            return false;
        };
        segment.used = true;
        out.extend_from_slice(&segment.tokens);
        shard.hits += 1;
        shard.hit_bytes += text_bytes as u64;
        true
    }

    /// Whether the key is known. Leaves figures and order alone.
    pub(super) fn has(&self, key: u128) -> bool {
        self.shard(key).lock().segments.contains_key(&key)
    }

    /// Remembers the tokens, and forgets others until the bytes fit. What alone would fill more
    /// than a quarter of its shard is not remembered.
    pub(super) fn insert(&self, key: u128, tokens: &[u32]) {
        let segment = Segment { tokens: tokens.into(), used: false };
        let bytes = segment.bytes();
        if bytes > self.shard_bytes / 4 {
            return;
        }
        let mut shard = self.shard(key).lock();
        if shard.segments.insert(key, segment).is_some() {
            // Another thread was first, with the same tokens; the key is queued.
            return;
        }
        shard.queue.push_back(key);
        shard.bytes += bytes;
        while shard.bytes > self.shard_bytes {
            shard.forget_one();
        }
    }

    pub(super) fn stats(&self) -> CacheStats {
        let mut stats = CacheStats::default();
        for shard in &self.shards {
            let shard = shard.lock();
            stats.hits += shard.hits;
            stats.misses += shard.misses;
            stats.hit_bytes += shard.hit_bytes;
            stats.entries += shard.segments.len() as u64;
            stats.resident_bytes += shard.bytes as u64;
        }
        stats
    }

    pub(super) fn reset(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }

    fn shard(&self, key: u128) -> &Mutex<Shard> {
        // The table uses the low half; the shard comes from the high one.
        &self.shards[(key >> 64) as usize % SHARDS]
    }
}

impl Shard {
    fn forget_one(&mut self) {
        while let Some(key) = self.queue.pop_front() {
            let Some(segment) = self.segments.get_mut(&key) else { continue };
            if std::mem::take(&mut segment.used) {
                self.queue.push_back(key);
                continue;
            }
            self.bytes -= segment.bytes();
            self.segments.remove(&key);
            return;
        }
        self.bytes = 0;
    }
}

/// Keys are hashes already.
#[derive(Clone, Copy, Default)]
struct BuildKeyHasher;

#[derive(Default)]
struct KeyHasher(u64);

impl BuildHasher for BuildKeyHasher {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(0)
    }
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_within_its_bound_and_the_used_survive() {
        let bound = 1 << 20;
        let cache = Segments::new(bound);
        let mut out = Vec::new();
        let hot = cache.key("hot");
        cache.insert(hot, &[1, 2, 3]);
        for n in 0..50_000_u32 {
            cache.insert(cache.key(&n.to_string()), &[n; 64]);
            assert!(cache.get(hot, 3, &mut out), "used between any two evictions, lost at {n}");
        }
        let stats = cache.stats();
        assert!(stats.resident_bytes <= bound as u64);
        assert!(stats.resident_bytes > bound as u64 * 9 / 10);
        let each = 64 * 4 + ENTRY_BYTES as u64;
        assert!(stats.resident_bytes.abs_diff(stats.entries * each) < 300);
        assert_eq!(stats.hits, 50_000);
    }

    #[test]
    fn a_segment_too_large_for_its_shard_is_not_kept() {
        let cache = Segments::new(SHARDS * 1024);
        let key = cache.key("large");
        cache.insert(key, &[0; 1024]);
        assert!(!cache.has(key));
        assert_eq!(cache.stats().resident_bytes, 0);
    }
}
