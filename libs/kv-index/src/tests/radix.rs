//! SGLang's tree: the plainest possible one against the index, and behaviours by name.
//!
//! The model has a node per segment of one rank's tree, a lock count and a time of last access,
//! and evicts by looking at every leaf.

use std::collections::BTreeSet;

use domain::BlockKey;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{keys, matched, serve};
use crate::{Booking, Eviction, KvIndex, Matches, Slot, Started};

/// A segment. Answers without keys are segments whose keys no prompt has.
#[derive(Clone, Debug)]
struct Segment {
    parent: usize,
    keys: Vec<BlockKey>,
    is_answer: bool,
    locks: u32,
    time: u64,
    is_gone: bool,
}

struct Tree {
    capacity: i64,
    /// Number 0 is the root.
    segments: Vec<Segment>,
    /// Blocks of running requests that are not in the tree.
    loose: i64,
    time: u64,
}

#[derive(Debug)]
struct Running {
    prompt: Vec<BlockKey>,
    extra: i64,
    generated: i64,
    counts_on_answer: bool,
    started: Option<Started>,
    tail: usize,
}

impl Tree {
    fn new(capacity: u32) -> Self {
        let root = Segment {
            parent: 0,
            keys: Vec::new(),
            is_answer: false,
            locks: 1,
            time: 0,
            is_gone: false,
        };
        Tree { capacity: i64::from(capacity), segments: vec![root], loose: 0, time: 0 }
    }

    fn children(&self, parent: usize) -> impl Iterator<Item = usize> {
        (1..self.segments.len())
            .filter(move |n| self.segments[*n].parent == parent && !self.segments[*n].is_gone)
    }

    fn used(&self) -> i64 {
        let kept = self.segments.iter().filter(|segment| !segment.is_gone);
        kept.map(|segment| segment.keys.len() as i64).sum::<i64>() + self.loose
    }

    /// Cuts a segment; the upper part is the new one.
    fn split(&mut self, n: usize, at: usize) -> usize {
        let upper =
            Segment { keys: self.segments[n].keys[..at].to_vec(), ..self.segments[n].clone() };
        self.segments.push(Segment { is_answer: false, ..upper });
        let above = self.segments.len() - 1;
        self.segments[n].keys.drain(..at);
        self.segments[n].parent = above;
        above
    }

    /// The segment where the longest match ends, and its length. Cuts and touches.
    fn find(&mut self, prompt: &[BlockKey]) -> (usize, usize) {
        let (mut at, mut depth) = (0, 0);
        loop {
            let rest = &prompt[depth..];
            let next = self.children(at).find(|n| {
                !self.segments[*n].is_answer && self.segments[*n].keys.first() == rest.first()
            });
            let Some(next) = next else { return (at, depth) };
            let same = self.segments[next].keys.iter().zip(rest).take_while(|(a, b)| a == b);
            let same = same.count();
            depth += same;
            if same < self.segments[next].keys.len() {
                at = self.split(next, same);
                self.touch(at);
                return (at, depth);
            }
            at = next;
            self.touch(at);
        }
    }

    fn touch(&mut self, mut n: usize) {
        self.time += 1;
        while n != 0 {
            self.segments[n].time = self.time;
            n = self.segments[n].parent;
        }
    }

    fn add(&mut self, parent: usize, keys: &[BlockKey], is_answer: bool) -> usize {
        if keys.is_empty() {
            return parent;
        }
        let segment = Segment {
            parent,
            keys: keys.to_vec(),
            is_answer,
            locks: 0,
            time: self.time,
            is_gone: false,
        };
        self.segments.push(segment);
        self.segments.len() - 1
    }

    fn lock(&mut self, mut n: usize, change: i32) {
        while n != 0 {
            self.segments[n].locks = self.segments[n].locks.checked_add_signed(change).unwrap();
            n = self.segments[n].parent;
        }
    }

    fn evict(&mut self, want: i64) -> i64 {
        let mut evicted = 0;
        while evicted < want {
            let is_leaf = |n: &usize| {
                let segment = &self.segments[*n];
                !segment.is_gone && segment.locks == 0 && self.children(*n).next().is_none()
            };
            let oldest = (1..self.segments.len()).filter(is_leaf).min_by_key(|n| {
                // An answer and its prompt's other continuations can have one time.
                (self.segments[*n].time, *n)
            });
            let Some(oldest) = oldest else { break };
            self.segments[oldest].is_gone = true;
            evicted += self.segments[oldest].keys.len() as i64;
        }
        evicted
    }

    fn allocate(&mut self, blocks: i64) -> i64 {
        if blocks > self.capacity - self.used() && blocks > 0 { self.evict(blocks) } else { 0 }
    }

    fn settle(&mut self) {
        let excess = self.used() - self.capacity;
        self.evict(excess);
    }

    fn newest_answer(&self, n: usize) -> Option<usize> {
        let answers = self.children(n).filter(|child| self.segments[*child].is_answer);
        answers.filter(|child| n != 0 || self.segments[*child].time > 0).max()
    }

    fn start(&mut self, running: &mut Running) -> Started {
        if let Some(started) = running.started {
            return started;
        }
        let prompt = running.prompt.clone();
        let (mut at, depth) = self.find(&prompt);
        let ends_on_block = running.extra == 0 && !prompt.is_empty();
        let mut found = depth;
        if ends_on_block && depth == prompt.len() {
            found -= 1;
            self.find(&prompt[..found]);
            at = self.find(&prompt).0;
        }
        let room = (prompt.len() - depth).saturating_sub(usize::from(ends_on_block));
        let answer = self.newest_answer(at).filter(|_| depth > 0 && room > 0);
        let answer_blocks = answer.map_or(0, |n| self.segments[n].keys.len().min(room));
        let mut taken = 0;
        if let Some(answer) = answer.filter(|_| running.counts_on_answer) {
            taken = answer_blocks;
            let rest = self.segments[answer].keys.len() - taken;
            self.segments[answer].keys.truncate(rest);
            // What is left hangs on nothing that a prompt can match.
            self.segments[answer].parent = 0;
            self.segments[answer].is_gone = rest == 0;
            self.loose += taken as i64;
        }
        self.lock(at, 1);
        let evicted = self.allocate((prompt.len() - depth - taken) as i64 + running.extra);
        self.loose += running.extra - taken as i64;
        let middle = self.add(at, &prompt[depth..depth + taken], false);
        running.tail = self.add(middle, &prompt[depth + taken..], false);
        self.touch(running.tail);
        self.lock(at, -1);
        self.lock(running.tail, 1);
        let started = Started {
            cached_blocks: (found + taken) as u32,
            answer_blocks: answer_blocks as u32,
            evicted_blocks: evicted as u32,
        };
        running.started = Some(started);
        started
    }

    fn grow(&mut self, running: &mut Running, generated: i64) {
        let more = generated - running.generated;
        if running.started.is_some() && more > 0 {
            running.generated = generated;
            self.allocate(more);
            self.loose += more;
        }
    }

    fn finish(&mut self, mut running: Running, cached: u32, answer_keys: &[BlockKey]) {
        self.start(&mut running);
        let keyless = running.extra + running.generated;
        let cached = i64::from(cached).min(keyless) as usize;
        let known = &answer_keys[..answer_keys.len().min(cached)];
        self.loose -= keyless;
        let whole = [&running.prompt[..], known].concat();
        let (at, depth) = self.find(&whole);
        let end = self.add(at, &whole[depth..], false);
        self.touch(end);
        let rest: Vec<BlockKey> = (known.len()..cached).map(|_| BlockKey(u64::MAX)).collect();
        self.add(end, &rest, true);
        self.lock(running.tail, -1);
        self.settle();
    }

    /// The prefixes that are held.
    fn resident(&self) -> BTreeSet<Vec<BlockKey>> {
        let mut held = BTreeSet::new();
        for n in 1..self.segments.len() {
            if self.segments[n].is_gone || self.segments[n].is_answer {
                continue;
            }
            let mut chain = vec![n];
            while *chain.last().unwrap() != 0 {
                chain.push(self.segments[*chain.last().unwrap()].parent);
            }
            let whole: Vec<BlockKey> =
                chain.iter().rev().flat_map(|n| self.segments[*n].keys.clone()).collect();
            let own = self.segments[n].keys.len();
            held.extend((whole.len() - own + 1..=whole.len()).map(|end| whole[..end].to_vec()));
        }
        held
    }
}

struct Pair {
    index: KvIndex,
    slots: Vec<Slot>,
    trees: Vec<Tree>,
    /// A vLLM rank in the same index, so that boundaries of another kind are about.
    other: Slot,
    running: Vec<(usize, Booking, Running)>,
    paths: Vec<Vec<u8>>,
}

impl Pair {
    fn new() -> Self {
        let mut index = KvIndex::new();
        let slots = vec![
            index.add_rank_as(24, Eviction::RadixLeaves),
            index.add_rank_as(50, Eviction::RadixLeaves),
        ];
        let other = index.add_rank(40);
        let trees = vec![Tree::new(24), Tree::new(50)];
        Pair { index, slots, trees, other, running: Vec::new(), paths: Vec::new() }
    }

    fn step(&mut self, rng: &mut SmallRng) {
        let pending = self.running.len();
        let at = rng.random_range(0..64_usize);
        match rng.random_range(0..100) {
            0..30 if pending < 12 => self.book(rng),
            30..50 if pending > 0 => {
                let (rank, booking, twin) = &mut self.running[at % pending];
                let started = self.index.start(booking);
                assert_eq!(started, self.trees[*rank].start(twin));
            }
            50..60 if pending > 0 => {
                let (rank, booking, twin) = &mut self.running[at % pending];
                let blocks = rng.random_range(0..4);
                self.index.grow(booking, blocks);
                self.trees[*rank].grow(twin, i64::from(blocks));
            }
            60..85 if pending > 0 => {
                let (rank, booking, twin) = self.running.swap_remove(at % pending);
                let path = self.paths.swap_remove(at % pending);
                let longer = [path.clone(), random_path(rng)].concat();
                let answer = chain(&longer)[path.len()..].to_vec();
                let cached = rng.random_range(0..4);
                self.index.finish_with_answer(booking, cached, &answer);
                self.trees[rank].finish(twin, cached, &answer);
            }
            85..92 if pending > 0 => {
                let (rank, booking, twin) = self.running.swap_remove(at % pending);
                self.paths.swap_remove(at % pending);
                self.index.rollback(booking);
                if twin.started.is_some() {
                    self.trees[rank].finish(twin, 0, &[]);
                }
            }
            92..94 => {
                let rank = at % 2;
                let capacity = rng.random_range(5..60);
                self.index.set_capacity(self.slots[rank], capacity);
                self.trees[rank].capacity = i64::from(capacity);
                self.trees[rank].settle();
            }
            _ => {
                serve(&mut self.index, self.other, &chain(&random_path(rng)), 1);
            }
        }
    }

    fn book(&mut self, rng: &mut SmallRng) {
        let rank = rng.random_range(0..2_usize);
        let path = random_path(rng);
        let prompt = chain(&path);
        let extra = rng.random_range(0..2);
        let counts_on_answer = rng.random_bool(0.5);
        let mut booking = self.index.book(self.slots[rank], &prompt, extra);
        if counts_on_answer {
            booking.count_on_answer();
        }
        let twin = Running {
            prompt,
            extra: i64::from(extra),
            generated: 0,
            counts_on_answer,
            started: None,
            tail: 0,
        };
        self.running.push((rank, booking, twin));
        self.paths.push(path);
    }

    fn compare(&self) {
        self.index.check_invariants();
        for (slot, tree) in self.slots.iter().zip(&self.trees) {
            let held: BTreeSet<_> = self.index.resident(*slot).into_keys().collect();
            assert_eq!(held, tree.resident());
            let stats = self.index.rank_stats(*slot).expect("the rank is there");
            let free = (tree.capacity - tree.used()).max(0);
            assert_eq!(i64::from(stats.free_blocks), free);
        }
    }
}

fn random_path(rng: &mut SmallRng) -> Vec<u8> {
    let len = rng.random_range(0..=10);
    (0..len).map(|_| if rng.random_bool(0.8) { 1 } else { rng.random_range(2..=3) }).collect()
}

fn chain(path: &[u8]) -> Vec<BlockKey> {
    let key = |(depth, step): (usize, &u8)| BlockKey(depth as u64 * 16 + u64::from(*step));
    path.iter().enumerate().map(key).collect()
}

#[test]
fn random_operations_agree_with_a_plain_radix_tree() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut pair = Pair::new();
        for _ in 0..400 {
            pair.step(&mut rng);
            pair.compare();
        }
    }
}

#[test]
fn whole_leaves_go_and_as_much_as_is_needed() {
    let mut index = KvIndex::new();
    let slot = index.add_rank_as(20, Eviction::RadixLeaves);
    serve(&mut index, slot, &keys(0..10), 1);
    serve(&mut index, slot, &keys(100..106), 1);
    // One block is missing; six are needed, and the oldest leaf has ten.
    assert_eq!(serve(&mut index, slot, &keys(200..205), 1), (0, 10));
    assert_eq!(matched(&index, slot, &keys(0..10)), (0, 0));
    assert_eq!(matched(&index, slot, &keys(100..106)), (6, 6));
}

#[test]
fn a_branch_cuts_the_leaf_that_it_leaves() {
    let mut index = KvIndex::new();
    let slot = index.add_rank_as(20, Eviction::RadixLeaves);
    serve(&mut index, slot, &keys(0..10), 1);
    serve(&mut index, slot, &[keys(0..4), keys(50..54)].concat(), 1);
    // The first prompt's last six blocks are the oldest leaf now, the second's four the next.
    assert_eq!(serve(&mut index, slot, &keys(200..208), 1).1, 10);
    assert_eq!(matched(&index, slot, &keys(0..10)), (4, 4));
    index.check_invariants();
}

#[test]
fn a_whole_hit_keeps_one_copy() {
    let mut index = KvIndex::new();
    let slot = index.add_rank_as(20, Eviction::RadixLeaves);
    serve(&mut index, slot, &keys(0..10), 0);
    assert_eq!(serve(&mut index, slot, &keys(0..10), 0), (9, 0));
    let stats = index.rank_stats(slot).expect("the rank is there");
    assert_eq!((stats.resident_keyed_blocks, stats.free_blocks), (10, 10));
}

#[test]
fn a_removed_rank_leaves_no_boundaries() {
    let mut index = KvIndex::new();
    let (radix, other) = (index.add_rank_as(100, Eviction::RadixLeaves), index.add_rank(100));
    serve(&mut index, radix, &keys(0..10), 1);
    serve(&mut index, radix, &keys(0..20), 1);
    serve(&mut index, other, &keys(0..20), 1);
    assert_eq!(index.stats().nodes, 2, "the engine's nodes stay apart");
    index.remove_rank(radix);
    while index.sweep.is_pending() {
        index.sweep_some();
    }
    assert_eq!(index.radix_ranks, 0);
    let mut into = Matches::default();
    index.match_prefix(&keys(0..20), &mut into);
    assert_eq!(into.listed().len(), 1);
    serve(&mut index, other, &keys(0..20), 1);
    assert_eq!(index.stats().nodes, 1);
}
