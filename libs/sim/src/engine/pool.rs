//! The physical blocks of a KV cache and their free queue, after vLLM's rules:
//!
//! - A block with references is in use. One without is free and stands in one doubly linked
//!   queue, whether it still caches something or not.
//! - Allocation takes the front of the queue; a block that still carries a hash loses it then,
//!   and only then: that is an eviction.
//! - A hit on a free block takes it out of the middle of the queue.
//! - Blocks are released tail first. One that carries a hash goes to the back of the queue, one
//!   without to the front, where it is reused first.
//! - The same hash can be on several blocks: a fully cached prompt has its last block computed
//!   again. The oldest copy is the one that is hit; each copy is evicted on its own.
//! - Block 0 is never handed out: `n` blocks make `n - 1` usable ones. Here it serves as the
//!   anchor of the circular free queue.

use std::collections::HashMap;

/// The anchor of the free queue and the block nobody gets.
const NULL: u32 = 0;

/// A change of the cache's content, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Full blocks of one request got their hashes.
    Stored {
        /// Chain hashes, in the order of the prompt.
        hashes: Vec<u64>,
        /// The hash of the block before the first one, `None` at the start of a prompt.
        parent: Option<u64>,
    },
    /// One copy of a block was evicted.
    Removed {
        /// Its chain hash.
        hash: u64,
    },
    /// The whole cache was dropped.
    Cleared,
}

#[derive(Clone, Debug)]
struct Block {
    prev: u32,
    next: u32,
    references: u32,
    hash: Option<u64>,
}

/// Which blocks carry a hash, oldest first.
#[derive(Debug)]
enum Copies {
    One(u32),
    Many(Vec<u32>),
}

impl Copies {
    fn oldest(&self) -> u32 {
        match self {
            Copies::One(block) => *block,
            Copies::Many(blocks) => blocks[0],
        }
    }
}

/// The blocks of one engine.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    free: u32,
    cached: HashMap<u64, Copies>,
    log: Option<Vec<CacheEvent>>,
}

impl BlockPool {
    /// A pool of `blocks` blocks, one of which is never handed out. At least 2.
    pub(crate) fn new(blocks: u32) -> Self {
        assert!(blocks >= 2, "a pool needs the null block and one more");
        let link = |i: u32| Block {
            prev: i.checked_sub(1).unwrap_or(blocks - 1),
            next: (i + 1) % blocks,
            references: 0,
            hash: None,
        };
        Self {
            blocks: (0..blocks).map(link).collect(),
            free: blocks - 1,
            cached: HashMap::new(),
            log: None,
        }
    }

    /// Starts the log of [`CacheEvent`]s. Whoever starts it must keep taking it.
    pub(crate) fn record_events(&mut self) {
        self.log.get_or_insert_default();
    }

    /// The events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Blocks that can be handed out in all.
    pub(crate) fn usable(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    /// Blocks without references, cached or not.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Different hashes in the cache.
    pub(crate) fn cached_hashes(&self) -> usize {
        self.cached.len()
    }

    /// The blocks of the longest cached prefix of `hashes`.
    pub(crate) fn find_prefix(&self, hashes: &[u64]) -> Vec<u32> {
        hashes.iter().map_while(|hash| self.cached.get(hash).map(Copies::oldest)).collect()
    }

    /// The length of the longest cached prefix of `hashes`.
    pub(crate) fn prefix_len(&self, hashes: impl IntoIterator<Item = u64>) -> u32 {
        hashes.into_iter().take_while(|hash| self.cached.contains_key(hash)).count() as u32
    }

    /// How many of these blocks stand in the free queue now.
    pub(crate) fn count_free(&self, blocks: &[u32]) -> u32 {
        blocks.iter().filter(|&&b| self.blocks[b as usize].references == 0).count() as u32
    }

    /// Adds a reference to each block, taking it out of the free queue if it stands there.
    pub(crate) fn touch(&mut self, blocks: &[u32]) {
        for &block in blocks {
            if self.blocks[block as usize].references == 0 {
                self.unlink(block);
            }
            self.blocks[block as usize].references += 1;
        }
    }

    /// Takes `count` blocks from the front of the free queue, evicting what they cache.
    /// The caller has made sure that so many are free.
    pub(crate) fn allocate(&mut self, count: u32, into: &mut Vec<u32>) {
        assert!(count <= self.free, "the caller checks that {count} blocks are free");
        for _ in 0..count {
            let block = self.blocks[NULL as usize].next;
            self.unlink(block);
            if let Some(hash) = self.blocks[block as usize].hash.take() {
                self.forget(hash, block);
                self.push_event(CacheEvent::Removed { hash });
            }
            self.blocks[block as usize].references = 1;
            into.push(block);
        }
    }

    /// Gives full blocks their hashes, as one run that follows `parent`.
    pub(crate) fn store(&mut self, blocks: &[u32], hashes: &[u64], parent: Option<u64>) {
        debug_assert_eq!(blocks.len(), hashes.len());
        if blocks.is_empty() {
            return;
        }
        for (&block, &hash) in blocks.iter().zip(hashes) {
            debug_assert!(self.blocks[block as usize].hash.is_none());
            self.blocks[block as usize].hash = Some(hash);
            self.remember(hash, block);
        }
        if self.log.is_some() {
            self.push_event(CacheEvent::Stored { hashes: hashes.to_vec(), parent });
        }
    }

    /// Drops one reference of each block of a request, given in prompt order.
    pub(crate) fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            let entry = &mut self.blocks[block as usize];
            entry.references -= 1;
            if entry.references > 0 {
                continue;
            }
            if entry.hash.is_some() {
                self.link_after(self.blocks[NULL as usize].prev, block);
            } else {
                self.link_after(NULL, block);
            }
        }
    }

    /// Forgets every hash, if no block is in use.
    pub(crate) fn reset(&mut self) -> bool {
        if self.free != self.usable() {
            return false;
        }
        self.cached.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
        self.push_event(CacheEvent::Cleared);
        true
    }

    fn push_event(&mut self, event: CacheEvent) {
        if let Some(log) = &mut self.log {
            log.push(event);
        }
    }

    fn remember(&mut self, hash: u64, block: u32) {
        match self.cached.get_mut(&hash) {
            None => {
                self.cached.insert(hash, Copies::One(block));
            }
            Some(Copies::Many(blocks)) => blocks.push(block),
            Some(copies @ Copies::One(_)) => *copies = Copies::Many(vec![copies.oldest(), block]),
        }
    }

    fn forget(&mut self, hash: u64, block: u32) {
        if let Some(Copies::Many(blocks)) = self.cached.get_mut(&hash) {
            blocks.retain(|&b| b != block);
            if !blocks.is_empty() {
                return;
            }
        }
        self.cached.remove(&hash);
    }

    fn unlink(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        self.blocks[prev as usize].next = next;
        self.blocks[next as usize].prev = prev;
        self.free -= 1;
    }

    fn link_after(&mut self, prev: u32, block: u32) {
        let next = self.blocks[prev as usize].next;
        self.blocks[prev as usize].next = block;
        self.blocks[next as usize].prev = block;
        let entry = &mut self.blocks[block as usize];
        (entry.prev, entry.next) = (prev, next);
        self.free += 1;
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
