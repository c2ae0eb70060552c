//! The longest single call in cases where an index could take long.

use std::time::Duration;

use domain::BlockKey;
use kv_index::{KvIndex, Matches, Slot};
use serde::Serialize;

use super::clock::timed;

/// One case: the longest call of each kind, in the round where it was shortest.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    case: &'static str,
    calls: u64,
    match_micros: f64,
    book_micros: f64,
    start_micros: f64,
    finish_micros: f64,
    remove_rank_micros: f64,
    /// Whether every node was freed when all ranks were removed.
    empty_afterwards: bool,
    /// What nodes, labels, holders and the table take of the heap at their most, before the ranks
    /// are removed …
    heap_bytes: usize,
    /// … and what is left of it.
    heap_bytes_afterwards: usize,
}

/// An index whose calls are timed.
#[derive(Default)]
struct Timed {
    index: KvIndex,
    matches: Matches,
    longest: [Duration; 5],
    calls: u64,
    heap_bytes: usize,
}

impl Timed {
    fn note(&mut self, kind: usize, spent: Duration) {
        self.longest[kind] = self.longest[kind].max(spent);
        self.calls += 1;
    }

    fn ranks(&mut self, count: usize, capacity: u32) -> Vec<Slot> {
        (0..count).map(|_| self.index.add_rank(capacity)).collect()
    }

    /// A request from its lookup to its end.
    fn serve(&mut self, slot: Slot, keys: &[BlockKey]) {
        let ((), spent) = timed(|| self.index.match_prefix(keys, &mut self.matches));
        self.note(0, spent);
        let (mut booking, spent) = timed(|| self.index.book(slot, keys, 1));
        self.note(1, spent);
        let (_, spent) = timed(|| self.index.start(&mut booking));
        self.note(2, spent);
        let (_, spent) = timed(|| self.index.finish(booking, 0));
        self.note(3, spent);
    }

    /// Removes the ranks one by one; a few requests elsewhere after each free what they left.
    fn remove(&mut self, slots: &[Slot]) {
        self.heap_bytes = self.index.heap_bytes();
        let other = self.index.add_rank(100);
        for (number, slot) in slots.iter().enumerate() {
            let ((), spent) = timed(|| self.index.remove_rank(*slot));
            self.note(4, spent);
            self.serve(other, &keys(u64::MAX - number as u64, 3));
        }
        self.index.remove_rank(other);
    }

    fn figures(mut self, case: &'static str) -> Figures {
        // Calls that change nothing give the sweep its turns.
        let mut turns = 0;
        while self.index.stats().nodes > 0 && turns < 10_000_000 {
            let slot = self.index.add_rank(1);
            self.index.remove_rank(slot);
            turns += 1;
        }
        let micros = |kind: usize| self.longest[kind].as_secs_f64() * 1e6;
        Figures {
            case,
            calls: self.calls,
            match_micros: micros(0),
            book_micros: micros(1),
            start_micros: micros(2),
            finish_micros: micros(3),
            remove_rank_micros: micros(4),
            empty_afterwards: self.index.stats().nodes == 0,
            heap_bytes: self.heap_bytes,
            heap_bytes_afterwards: self.index.heap_bytes(),
        }
    }
}

/// The keys of a prompt of its own.
fn keys(prompt: u64, blocks: u64) -> Vec<BlockKey> {
    (0..blocks).map(|block| key(prompt.wrapping_mul(1 << 20).wrapping_add(block))).collect()
}

/// A well spread key.
fn key(n: u64) -> BlockKey {
    let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    BlockKey(n ^ (n >> 32))
}

/// 100,000 conversations that share their first block, on a rank that has room for fewer.
fn children() -> Figures {
    let mut timed = Timed::default();
    let slots = timed.ranks(1, 100_000);
    for child in 0..120_000 {
        timed.serve(slots[0], &[keys(0, 1), keys(1 + child, 1)].concat());
    }
    timed.remove(&slots);
    timed.figures("100,000 children under one block")
}

/// A chain that 1,000 ranks hold, left at every depth.
fn divergence() -> Figures {
    let mut timed = Timed::default();
    let slots = timed.ranks(1_000, 10_000);
    let chain = keys(0, 256);
    for slot in &slots {
        timed.serve(*slot, &chain);
    }
    for depth in (1..chain.len()).rev() {
        let other = keys(depth as u64, 20);
        timed.serve(slots[depth * 7 % slots.len()], &[&chain[..depth], &other].concat());
    }
    timed.remove(&slots);
    timed.figures("divergence of a chain held by 1,000 ranks")
}

/// A chain of which every rank has another part.
fn depths() -> Figures {
    let mut timed = Timed::default();
    let slots = timed.ranks(1_000, 10_000);
    let chain = keys(0, 1_000);
    for (depth, slot) in slots.iter().enumerate() {
        timed.serve(*slot, &chain[..=depth]);
    }
    for slot in slots.iter().rev() {
        timed.serve(*slot, &chain);
    }
    timed.remove(&slots);
    timed.figures("1,000 ranks stop at different depths")
}

/// Prompts that share nothing.
fn unique() -> Figures {
    let mut timed = Timed::default();
    let slots = timed.ranks(10, 10_000);
    for prompt in 0..100_000 {
        timed.serve(slots[prompt as usize % slots.len()], &keys(1 + prompt, 24));
    }
    timed.remove(&slots);
    timed.figures("100,000 unique prompts")
}

/// Ranks with full caches, half of it shared by all, are removed.
fn removal() -> Figures {
    let mut timed = Timed::default();
    let slots = timed.ranks(1_000, 2_000);
    let shared: Vec<_> = (0..50).map(|prompt| keys(prompt, 20)).collect();
    for (number, slot) in slots.iter().enumerate() {
        for (at, prompt) in shared.iter().enumerate() {
            timed.serve(*slot, prompt);
            timed.serve(*slot, &keys(1_000 + (number * shared.len() + at) as u64, 20));
        }
    }
    timed.remove(&slots);
    timed.figures("removal of 1,000 ranks of 2,000 blocks")
}

pub(super) fn run(rounds: u32) -> Vec<Figures> {
    [children, divergence, depths, unique, removal]
        .into_iter()
        .map(|case| {
            let figures = (0..rounds).map(|_| case()).reduce(Figures::better);
            let figures = figures.expect("there is at least one round");
            figures.print();
            figures
        })
        .collect()
}

impl Figures {
    /// The lower of each maximum: a call that was long in one round only met something else on
    /// the machine.
    fn better(self, other: Self) -> Self {
        Self {
            match_micros: self.match_micros.min(other.match_micros),
            book_micros: self.book_micros.min(other.book_micros),
            start_micros: self.start_micros.min(other.start_micros),
            finish_micros: self.finish_micros.min(other.finish_micros),
            remove_rank_micros: self.remove_rank_micros.min(other.remove_rank_micros),
            empty_afterwards: self.empty_afterwards && other.empty_afterwards,
            heap_bytes_afterwards: self.heap_bytes_afterwards.max(other.heap_bytes_afterwards),
            ..self
        }
    }

    fn print(&self) {
        println!(
            "{:<42} longest: match {:.0} µs, book {:.0}, start {:.0}, finish {:.0}, remove {:.0}; \
             heap {:.2} MB, afterwards {:.2}; empty: {}",
            self.case,
            self.match_micros,
            self.book_micros,
            self.start_micros,
            self.finish_micros,
            self.remove_rank_micros,
            self.heap_bytes as f64 / 1e6,
            self.heap_bytes_afterwards as f64 / 1e6,
            self.empty_afterwards,
        );
    }
}
