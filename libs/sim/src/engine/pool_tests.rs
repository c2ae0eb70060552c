//! The pool against a naive reference: a plain list as the free order, a scan as the lookup.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{BlockPool, CacheEvent};

#[derive(Debug, Default)]
struct Naive {
    free: Vec<u32>,
    references: Vec<u32>,
    /// Hash of each block and when it was stored.
    hashes: Vec<Option<(u64, u64)>>,
    stored: u64,
    events: Vec<CacheEvent>,
}

impl Naive {
    fn new(blocks: u32) -> Self {
        Self {
            free: (1..blocks).collect(),
            references: vec![0; blocks as usize],
            hashes: vec![None; blocks as usize],
            ..Self::default()
        }
    }

    fn find_prefix(&self, hashes: &[u64]) -> Vec<u32> {
        let find = |hash: &u64| {
            let holders = (0..self.hashes.len()).filter_map(|block| match self.hashes[block] {
                Some((held, age)) if held == *hash => Some((age, block as u32)),
                _ => None,
            });
            holders.min().map(|(_, block)| block)
        };
        hashes.iter().map_while(find).collect()
    }

    fn touch(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.free.retain(|&other| other != block);
            self.references[block as usize] += 1;
        }
    }

    fn allocate(&mut self, count: usize) -> Vec<u32> {
        let blocks: Vec<u32> = self.free.drain(..count).collect();
        for &block in &blocks {
            self.references[block as usize] = 1;
            if let Some((hash, _)) = self.hashes[block as usize].take() {
                self.events.push(CacheEvent::Removed { hash });
            }
        }
        blocks
    }

    fn store(&mut self, blocks: &[u32], hashes: &[u64], parent: Option<u64>) {
        for (&block, &hash) in blocks.iter().zip(hashes) {
            self.stored += 1;
            self.hashes[block as usize] = Some((hash, self.stored));
        }
        if !hashes.is_empty() {
            self.events.push(CacheEvent::Stored { hashes: hashes.to_vec(), parent });
        }
    }

    fn release(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            self.references[block as usize] -= 1;
            if self.references[block as usize] > 0 {
                continue;
            }
            match self.hashes[block as usize] {
                Some(_) => self.free.push(block),
                None => self.free.insert(0, block),
            }
        }
    }
}

/// The free queue from front to back.
fn free_order(pool: &BlockPool) -> Vec<u32> {
    let next = |&block: &u32| Some(pool.blocks[block as usize].next).filter(|&b| b != 0);
    std::iter::successors(next(&0), next).collect()
}

#[derive(Debug, Clone)]
enum Op {
    /// A prompt of document `document` with so many blocks and so many tail blocks unhashed.
    Begin {
        document: u64,
        blocks: u32,
        tail: u32,
    },
    End {
        which: usize,
    },
    Reset,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (0..5u64, 1..9u32, 0..2u32)
            .prop_map(|(document, blocks, tail)| Op::Begin { document, blocks, tail }),
        6 => (0..64usize).prop_map(|which| Op::End { which }),
        1 => Just(Op::Reset),
    ];
    vec(op, 1..120)
}

proptest! {
    #[test]
    fn the_free_queue_agrees_with_a_plain_list(ops in ops()) {
        let mut pool = BlockPool::new(24);
        pool.record_events();
        let mut naive = Naive::new(24);
        let mut live: Vec<Vec<u32>> = Vec::new();
        for op in ops {
            match op {
                Op::Begin { document, blocks, tail } => {
                    // Documents share their first two blocks.
                    let hashes: Vec<u64> = (0..u64::from(blocks))
                        .map(|i| if i < 2 { i } else { 100 * (document + 1) + i })
                        .collect();
                    let hits = pool.find_prefix(&hashes[..hashes.len() - 1]);
                    prop_assert_eq!(&hits, &naive.find_prefix(&hashes[..hashes.len() - 1]));
                    let held = hits.len();
                    let fresh = blocks + tail - held as u32;
                    if fresh + pool.count_free(&hits) > pool.free() {
                        continue;
                    }
                    pool.touch(&hits);
                    naive.touch(&hits);
                    let mut mine = hits;
                    pool.allocate(fresh, &mut mine);
                    prop_assert_eq!(&mine[held..], &naive.allocate(fresh as usize)[..]);
                    let parent = held.checked_sub(1).map(|i| hashes[i]);
                    let full = held..blocks as usize;
                    pool.store(&mine[full.clone()], &hashes[full.clone()], parent);
                    naive.store(&mine[full.clone()], &hashes[full], parent);
                    live.push(mine);
                }
                Op::End { which } if !live.is_empty() => {
                    let blocks = live.swap_remove(which % live.len());
                    pool.release(&blocks);
                    naive.release(&blocks);
                }
                Op::End { .. } => {}
                Op::Reset => {
                    prop_assert_eq!(pool.reset(), live.is_empty());
                    if live.is_empty() {
                        naive.hashes.fill(None);
                        naive.events.push(CacheEvent::Cleared);
                    }
                }
            }
            prop_assert_eq!(free_order(&pool), naive.free.clone());
            prop_assert_eq!(pool.free() as usize, naive.free.len());
            prop_assert_eq!(pool.take_events(), std::mem::take(&mut naive.events));
        }
    }
}

#[test]
fn a_block_without_a_hash_is_reused_before_any_cached_one() {
    let mut pool = BlockPool::new(4);
    let mut blocks = Vec::new();
    pool.allocate(3, &mut blocks);
    pool.store(&blocks[..2], &[10, 11], None);
    pool.release(&blocks);
    let mut next = Vec::new();
    pool.allocate(1, &mut next);
    assert_eq!(next, blocks[2..]);
    assert_eq!(pool.find_prefix(&[10, 11]).len(), 2);
}

#[test]
fn evicting_one_copy_leaves_the_other() {
    let mut pool = BlockPool::new(4);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    pool.allocate(1, &mut first);
    pool.store(&first, &[10], None);
    pool.allocate(1, &mut second);
    pool.store(&second, &[10], None);
    assert_eq!(pool.find_prefix(&[10]), first);
    pool.release(&first);
    pool.allocate(2, &mut Vec::new());
    assert_eq!(pool.find_prefix(&[10]), second);
}
