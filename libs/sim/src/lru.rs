//! The plain block cache of the published documents workload: least recently used blocks go
//! first, nothing is pinned, and a request uses all of its blocks at the moment it is sent.
//!
//! Which block of one request counts as used first decides what a full cache loses. *Head first*
//! uses them in the order of the prompt, so a prompt loses its beginning, and with it everything;
//! *tail first* uses them backwards, so a prompt shrinks from its end, as vLLM's does.

/// Which end of a prompt is evicted first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Evict {
    /// The beginning.
    #[default]
    Head,
    /// The end.
    Tail,
}

/// Stands for no block.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    older: u32,
    newer: u32,
    resident: bool,
}

const ABSENT: Links = Links { older: NONE, newer: NONE, resident: false };

/// A cache of blocks, each named by a small number. A number stands for one whole prefix.
#[derive(Clone, Debug)]
pub struct PlainLru {
    capacity: u32,
    evict: Evict,
    resident: u32,
    links: Vec<Links>,
    oldest: u32,
    newest: u32,
}

impl PlainLru {
    /// An empty cache with room for `capacity` blocks.
    pub fn new(capacity: u32, evict: Evict) -> Self {
        Self { capacity, evict, resident: 0, links: Vec::new(), oldest: NONE, newest: NONE }
    }

    /// Leading blocks of the prompt that are here.
    pub fn matched(&self, prompt: &[u32]) -> u32 {
        prompt.iter().take_while(|block| self.holds(**block)).count() as u32
    }

    /// Blocks that using `prompt` would evict.
    pub fn evicted_by(&self, prompt: &[u32]) -> u32 {
        let new = prompt.iter().filter(|block| !self.holds(**block)).count() as u32;
        (self.resident + new).saturating_sub(self.capacity)
    }

    /// The blocks that using `prompt` would evict, as far as they are not its own.
    pub fn victims<'a>(&'a self, prompt: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let others = self.oldest_first().filter(|block| !prompt.contains(block));
        others.take(self.evicted_by(prompt) as usize)
    }

    fn oldest_first(&self) -> impl Iterator<Item = u32> + '_ {
        let newer = |block: &u32| self.links.get(*block as usize).map(|links| links.newer);
        std::iter::successors(Some(self.oldest), newer).take_while(|block| *block != NONE)
    }

    /// The blocks that would go if so many new ones came.
    pub fn front(&self, new_blocks: u32) -> impl Iterator<Item = u32> + '_ {
        let gone = (self.resident + new_blocks).saturating_sub(self.capacity);
        self.oldest_first().take(gone as usize)
    }

    /// Blocks that are here.
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// Loses everything.
    pub fn clear(&mut self) {
        let capacity = self.capacity;
        self.set_capacity(0);
        self.set_capacity(capacity);
    }

    /// Changes the capacity; less room evicts.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.settle();
    }

    /// Uses every block of the prompt, storing those that are not here, then evicts what does not
    /// fit.
    pub fn access(&mut self, prompt: &[u32]) {
        match self.evict {
            Evict::Head => prompt.iter().for_each(|block| self.touch(*block)),
            Evict::Tail => prompt.iter().rev().for_each(|block| self.touch(*block)),
        }
        self.settle();
    }

    pub(crate) fn holds(&self, block: u32) -> bool {
        self.links.get(block as usize).is_some_and(|links| links.resident)
    }

    fn touch(&mut self, block: u32) {
        if block as usize >= self.links.len() {
            self.links.resize(block as usize + 1, ABSENT);
        }
        if self.links[block as usize].resident {
            if self.newest == block {
                return;
            }
            self.unlink(block);
        } else {
            self.resident += 1;
        }
        let older = std::mem::replace(&mut self.newest, block);
        self.links[block as usize] = Links { older, newer: NONE, resident: true };
        match self.links.get_mut(older as usize) {
            Some(links) => links.newer = block,
            None => self.oldest = block,
        }
    }

    fn unlink(&mut self, block: u32) {
        let Links { older, newer, .. } = self.links[block as usize];
        match self.links.get_mut(older as usize) {
            Some(links) => links.newer = newer,
            None => self.oldest = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(links) => links.older = older,
            None => self.newest = older,
        }
    }

    fn settle(&mut self) {
        while self.resident > self.capacity {
            let block = self.oldest;
            self.unlink(block);
            self.links[block as usize] = ABSENT;
            self.resident -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The blocks in the order of their last use.
    struct Naive {
        capacity: usize,
        evict: Evict,
        order: Vec<u32>,
    }

    impl Naive {
        fn access(&mut self, prompt: &[u32]) {
            let mut uses = prompt.to_vec();
            if self.evict == Evict::Tail {
                uses.reverse();
            }
            for block in uses {
                self.order.retain(|other| *other != block);
                self.order.push(block);
            }
            let excess = self.order.len().saturating_sub(self.capacity);
            self.order.drain(..excess);
        }

        fn matched(&self, prompt: &[u32]) -> u32 {
            prompt.iter().take_while(|block| self.order.contains(block)).count() as u32
        }
    }

    proptest! {
        #[test]
        fn it_is_the_naive_cache(
            capacity in 0_u32..30,
            tail in any::<bool>(),
            prompts in prop::collection::vec((0_u32..6, 0_u32..12), 1..60),
        ) {
            let evict = if tail { Evict::Tail } else { Evict::Head };
            let mut lru = PlainLru::new(capacity, evict);
            let mut naive = Naive { capacity: capacity as usize, evict, order: Vec::new() };
            for (document, length) in prompts {
                let prompt: Vec<u32> = (0..length.min(2))
                    .chain((2..length.max(2)).map(|i| document * 10 + i))
                    .collect();
                prop_assert_eq!(lru.matched(&prompt), naive.matched(&prompt));
                let before = naive.order.len() + prompt.iter().filter(|b| !naive.order.contains(b)).count();
                naive.access(&prompt);
                prop_assert_eq!(lru.evicted_by(&prompt) as usize, before - naive.order.len());
                let victims: Vec<u32> = lru.victims(&prompt).collect();
                lru.access(&prompt);
                prop_assert!(victims.iter().all(|block| !naive.order.contains(block)));
                if prompt.len() <= capacity as usize {
                    prop_assert_eq!(victims.len(), before - naive.order.len());
                }
                prop_assert_eq!(lru.resident() as usize, naive.order.len());
            }
        }
    }

    #[test]
    fn a_full_cache_loses_the_end_that_it_is_told_to() {
        for (evict, kept) in [(Evict::Head, 0), (Evict::Tail, 3)] {
            let mut lru = PlainLru::new(5, evict);
            lru.access(&[0, 1, 2, 3]);
            lru.access(&[10, 11]);
            assert_eq!(lru.matched(&[0, 1, 2, 3]), kept);
            lru.set_capacity(2);
            assert_eq!(lru.matched(&[10, 11]), 2);
            assert_eq!(lru.resident(), 2);
        }
    }
}
