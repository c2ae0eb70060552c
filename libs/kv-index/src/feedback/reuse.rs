//! How far back a prompt's blocks lie, in blocks that the engine has allocated since.
//!
//! A block that was freed goes to the back of its engine's free order. It is evicted when the
//! blocks allocated since, and those before it in the order that were taken out of it again, leave
//! no room: its *distance* is their number and the blocks that were held when it was freed. An
//! engine with room for more blocks than that still has it, one with room for fewer does not. So
//! the distance of what an engine had, or had no more, says something about its size, whatever
//! size its mirror was given; it is kept for blocks that the mirror has long evicted, too.
//!
//! Allocations are counted exactly. Which blocks are met again is known from a sample of the keys
//! alone, drawn by the key itself, whose size is bounded (the SHARDS method of Waldspurger et al.,
//! FAST 2015); a sampled block stands for all those that were not drawn.

use std::collections::{HashMap, VecDeque};

use domain::BlockKey;

/// Sampled keys of one rank. With this many a distance is right within 5 % (one deviation), and
/// the table, which grows by doubling, is filled to the last place: 17 KiB.
const MAX_SAMPLED: usize = 896;

/// Parts that the window is divided into; blocks of one part are taken to be equally old.
const PARTS: i32 = 128;

/// Blocks that are met again and again make new parts although nothing passes the old ones by.
/// Those that are then too many go, oldest first: nothing in them was met for long.
const MOST_PARTS: usize = 4 * PARTS as usize;

/// The window is so many times the modelled capacity: a larger cache shows by hits beyond it.
const WINDOW_CAPACITIES: i64 = 2;

/// A sampled block of a prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting {
    key: BlockKey,
    /// Its place in the prompt: 1 for the first block.
    pub(super) depth: u32,
    /// Blocks since it was freed, as the prefill began; unknown if it was not seen in the window.
    pub(super) distance: Option<u32>,
    /// The part of the window that it was freed in.
    part: Option<u32>,
    /// Another request held it as the prefill began: it stood in no order then.
    was_held: bool,
}

#[derive(Clone, Copy)]
struct Stamp {
    part: u32,
    /// The part's count at which the distance is 0.
    base: i32,
    /// Requests that hold it. While there are any it is out of the order.
    holders: u32,
}

/// The distances of one rank.
pub(super) struct ReuseStack {
    /// Makes the samples of ranks differ, so that their errors do.
    salt: u64,
    /// One key of `1 << rarity` is sampled.
    rarity: u32,
    stamps: HashMap<BlockKey, Stamp>,
    /// Per part, the oldest first: blocks that went by since it began.
    passed: VecDeque<i32>,
    /// Number of the oldest part.
    first: u32,
    window: i32,
}

impl ReuseStack {
    /// `number` tells ranks apart.
    pub(super) fn new(number: u32, capacity: u32) -> Self {
        let mut stack = Self {
            salt: u64::from(number).wrapping_mul(0xD6E8_FEB8_6659_FD93),
            rarity: 0,
            stamps: HashMap::new(),
            passed: VecDeque::from([0]),
            first: 0,
            window: 0,
        };
        stack.set_capacity(capacity);
        stack
    }

    /// Sets how far back it looks.
    pub(super) fn set_capacity(&mut self, capacity: u32) {
        let window = WINDOW_CAPACITIES * i64::from(capacity.max(1));
        self.window = window.min(i64::from(i32::MAX / 4)) as i32;
    }

    /// Forgets all blocks.
    pub(super) fn clear(&mut self) {
        self.rarity = 0;
        self.stamps.clear();
        self.passed = VecDeque::from([0]);
        self.first = 0;
    }

    /// The sampled ones of a prompt's blocks.
    pub(super) fn sample(&self, keys: &[BlockKey]) -> Vec<Sighting> {
        let numbered = (1..).zip(keys).filter(|(_, key)| self.is_sampled(**key));
        let unseen = |(depth, key): (u32, &BlockKey)| Sighting {
            key: *key,
            depth,
            distance: None,
            part: None,
            was_held: false,
        };
        numbered.map(unseen).collect()
    }

    fn is_sampled(&self, key: BlockKey) -> bool {
        // Fibonacci hashing: the product's high bits depend on the whole key.
        let mixed = (key.0 ^ self.salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.rarity == 0 || mixed >> (64 - self.rarity) == 0
    }

    /// A prefill begins: notes how far back its blocks lie, then counts what it does to the
    /// others. The leading `cached` blocks are there, `allocated` are taken.
    pub(super) fn begin(&mut self, prompt: &mut [Sighting], cached: u32, allocated: u32) {
        for sighting in prompt.iter_mut() {
            let Some(stamp) = self.stamps.get(&sighting.key) else { continue };
            sighting.part = Some(stamp.part);
            sighting.was_held = stamp.holders > 0;
            // What is held cannot be evicted, however long ago it was freed before that.
            if !sighting.was_held {
                sighting.distance = self.distance(*stamp);
            }
        }
        for sighting in prompt.iter().filter(|s| s.depth <= cached && !s.was_held) {
            self.taken_out(sighting.part, 1 << self.rarity);
        }
        self.allocate(i32::try_from(allocated).unwrap_or(i32::MAX / 4));
        self.stamp(prompt, |before| before + 1, 0);
    }

    fn distance(&self, stamp: Stamp) -> Option<u32> {
        let passed = self.passed.get(stamp.part.checked_sub(self.first)? as usize)?;
        Some(passed.saturating_sub(stamp.base).max(0) as u32)
    }

    /// The engine found `found` leading blocks where `believed` had been counted as found.
    pub(super) fn correct(&mut self, prompt: &[Sighting], believed: u32, found: u32) {
        let (low, high) = (believed.min(found), believed.max(found));
        let sign = if found > believed { 1 } else { -1 };
        let wrong = |s: &&Sighting| s.depth > low && s.depth <= high && !s.was_held;
        for sighting in prompt.iter().filter(wrong) {
            self.taken_out(sighting.part, sign << self.rarity);
        }
        self.allocate(-sign * (high - low) as i32);
    }

    /// A request is over: its blocks are freed while `held` others are held by requests. Of those
    /// without a key `kept` are cached, `returned` are free again.
    pub(super) fn end(&mut self, prompt: &[Sighting], kept: u32, returned: u32, held: u32) {
        self.allocate(i64::from(kept).saturating_sub(i64::from(returned)) as i32);
        self.stamp(prompt, |before| before.saturating_sub(1), held);
    }

    /// A block left the order that stood before everything freed after it.
    fn taken_out(&mut self, part: Option<u32>, blocks: i32) {
        let newer = part.map_or(0, |part| part.saturating_sub(self.first) as usize + 1);
        for passed in self.passed.iter_mut().skip(newer) {
            *passed = passed.saturating_add(blocks);
        }
    }

    fn allocate(&mut self, blocks: i32) {
        for passed in &mut self.passed {
            *passed = passed.saturating_add(blocks);
        }
        if self.passed.back().is_some_and(|newest| *newest >= (self.window / PARTS).max(1)) {
            self.passed.push_back(0);
        }
        let before = self.first;
        let is_over = |passed: &VecDeque<i32>| {
            passed.front().is_some_and(|oldest| *oldest > self.window) || passed.len() > MOST_PARTS
        };
        while self.passed.len() > 1 && is_over(&self.passed) {
            self.passed.pop_front();
            self.first += 1;
        }
        if self.first != before {
            let first = self.first;
            // What is held stands in no part.
            self.stamps.retain(|_, stamp| stamp.part >= first || stamp.holders > 0);
        }
    }

    /// Sets where the blocks stand, and by how many they are held: `holders` makes the number of
    /// the one before.
    fn stamp(&mut self, prompt: &[Sighting], holders: impl Fn(u32) -> u32, held: u32) {
        let part = self.first + (self.passed.len() - 1) as u32;
        let now = self.passed.back().copied().unwrap_or(0);
        for sighting in prompt {
            if self.stamps.len() == MAX_SAMPLED {
                self.thin_out();
            }
            if self.is_sampled(sighting.key) {
                // Those before it in the prompt are freed after it.
                let behind = i64::from(held) + i64::from(sighting.depth);
                let base = now.saturating_sub(i32::try_from(behind).unwrap_or(i32::MAX / 4));
                let before = self.stamps.get(&sighting.key).map_or(0, |stamp| stamp.holders);
                let stamp = Stamp { part, base, holders: holders(before) };
                self.stamps.insert(sighting.key, stamp);
            }
        }
    }

    /// Samples half of the keys from now on, of those that are there too.
    fn thin_out(&mut self) {
        while self.stamps.len() == MAX_SAMPLED {
            self.rarity += 1;
            let mut stamps = std::mem::take(&mut self.stamps);
            stamps.retain(|key, _| self.is_sampled(*key));
            self.stamps = stamps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_that_are_asked_again_and_again_take_no_more_and_more_parts() {
        for capacity in [1, 50, 5_000] {
            let mut stack = ReuseStack::new(0, capacity);
            let prompts = [0, 1].map(|n| (0..20).map(|at| BlockKey(n << 32 | at)).collect());
            for n in 0..20_000 {
                let keys: &Vec<BlockKey> = &prompts[n % 2];
                let mut sample = stack.sample(keys);
                // All is found, and the answer stays in the block that was taken for it.
                stack.begin(&mut sample, 20, 1);
                stack.end(&sample, 0, 1, 0);
                assert!(stack.passed.len() <= MOST_PARTS, "{} at {n}", stack.passed.len());
            }
            assert!(stack.stamps.values().all(|stamp| stamp.holders == 0));
        }
    }
}
