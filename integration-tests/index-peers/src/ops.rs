//! What the workers' caches do: one plain LRU each, computed beforehand.
//!
//! A request touches its blocks from the last to the first, so that a prompt loses its end first
//! and what a worker holds of a prompt is always a prefix. The blocks beyond the capacity are the
//! request's victims.

use std::collections::HashMap;

/// Stands for no entry.
const NONE: u32 = u32::MAX;

/// One request, and what it does to its worker's cache.
pub struct Op {
    /// Its place in the load.
    pub request: usize,
    /// The worker it runs on.
    pub worker: u32,
    /// Leading blocks that are there.
    pub resident: usize,
    /// Blocks that go, in the order in which they go.
    pub victims: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    block: u32,
    older: u32,
    newer: u32,
}

/// One worker's cache.
struct Lru {
    capacity: usize,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    places: HashMap<u32, u32, rustc_hash::FxBuildHasher>,
    oldest: u32,
    newest: u32,
}

impl Lru {
    fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: Vec::new(),
            vacant: Vec::new(),
            places: HashMap::default(),
            oldest: NONE,
            newest: NONE,
        }
    }

    fn access(&mut self, prompt: &[u32]) -> (usize, Vec<u32>) {
        let resident = prompt.iter().take_while(|id| self.places.contains_key(*id)).count();
        for block in prompt.iter().rev() {
            self.touch(*block);
        }
        let mut victims = Vec::new();
        while self.places.len() > self.capacity {
            let place = self.oldest;
            let block = self.entries[place as usize].block;
            self.unlink(place);
            self.places.remove(&block);
            self.vacant.push(place);
            victims.push(block);
        }
        (resident, victims)
    }

    fn touch(&mut self, block: u32) {
        let known = self.places.get(&block).copied();
        let place = known.unwrap_or_else(|| self.vacant.pop().unwrap_or(self.entries.len() as u32));
        if known.is_some() {
            self.unlink(place);
        } else {
            self.places.insert(block, place);
        }
        let entry = Entry { block, older: self.newest, newer: NONE };
        match self.entries.get_mut(place as usize) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        match self.entries.get_mut(entry.older as usize) {
            Some(older) => older.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: u32) {
        let Entry { older, newer, .. } = self.entries[place as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }
}

/// All workers' caches, and whose turn it is.
pub struct Fleet {
    workers: Vec<Lru>,
    turn: usize,
}

impl Fleet {
    /// Empty caches of `capacity` blocks each.
    pub fn new(workers: usize, capacity: usize) -> Self {
        Self { workers: (0..workers).map(|_| Lru::new(capacity)).collect(), turn: 0 }
    }

    /// The next request, on the worker whose turn it is.
    pub fn op(&mut self, request: usize, prompt: &[u32]) -> Op {
        let worker = self.turn % self.workers.len();
        self.turn += 1;
        let (resident, victims) = self.workers[worker].access(prompt);
        Op { request, worker: worker as u32, resident, victims }
    }

    /// Blocks that the workers hold, each counted once per worker.
    pub fn entries(&self) -> usize {
        self.workers.iter().map(|worker| worker.places.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_loses_its_end_first() {
        let mut fleet = Fleet::new(1, 4);
        assert_eq!(fleet.op(0, &[1, 2, 3]).resident, 0);
        let op = fleet.op(1, &[1, 7, 8]);
        assert_eq!((op.resident, op.victims), (1, vec![3]));
        assert_eq!(fleet.op(2, &[1, 2, 3]).resident, 2);
        assert_eq!(fleet.entries(), 4);
    }
}
