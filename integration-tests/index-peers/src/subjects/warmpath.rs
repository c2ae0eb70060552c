//! Our index: it evicts by itself.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use domain::BlockKey;
use sim::index_load::{IndexLoad, block_key};
use warmpath_index::{KvIndex, Matches, Slot};

use super::{Request, Subject};
use crate::clock::ThreadClock;

/// What a lookup reports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// What the router's choice takes: every rank's depth in a table, and whether the prompt begins
    /// with a hot prefix.
    Choice,
    /// Every holder, as the published indexes do.
    All,
}

/// A load of each holder above which a prefix is hot: in the order of what the router asks with.
const HOT_LOAD: f64 = 0.25;

pub struct Warmpath {
    report: Report,
    index: KvIndex,
    slots: Vec<Slot>,
    matches: Matches,
    depths: Vec<u32>,
    keys: Vec<Vec<BlockKey>>,
    prepared: VecDeque<Vec<(usize, u32)>>,
}

impl Warmpath {
    pub fn new(load: &IndexLoad, workers: usize, capacity: usize, report: Report) -> Self {
        let mut index = KvIndex::new();
        // Every prompt ends within a block: one block beside the cached ones.
        let slots = (0..workers).map(|_| index.add_rank(capacity as u32 + 1)).collect();
        let keys = (0..load.len()).map(|request| load.keys(request)).collect();
        let (matches, depths, prepared) = (Matches::default(), Vec::new(), VecDeque::new());
        Self { report, index, slots, matches, depths, keys, prepared }
    }
}

impl Subject for Warmpath {
    fn name(&self) -> &'static str {
        match self.report {
            Report::Choice => "warmpath",
            Report::All => "warmpath, all holders",
        }
    }

    fn prepare(&mut self, requests: &[Request<'_>]) {
        self.prepared.push_back(requests.iter().map(|r| (r.op.request, r.op.worker)).collect());
    }

    fn run(&mut self) -> Duration {
        let prepared = self.prepared.pop_front().unwrap_or_default();
        let clock = ThreadClock::own();
        let begin = clock.now();
        for (request, worker) in &prepared {
            let keys = &self.keys[*request];
            self.index.match_prefix(keys, &mut self.matches);
            match self.report {
                Report::Choice => {
                    self.index.blocks_by_slot(&self.matches, &mut self.depths);
                    black_box(self.index.demand(&self.matches, HOT_LOAD));
                    black_box(&self.depths);
                }
                Report::All => {
                    self.index.list_all(&mut self.matches);
                    black_box(self.matches.listed());
                }
            }
            let mut booking = self.index.book(self.slots[*worker as usize], keys, 1);
            black_box(self.index.start(&mut booking));
            self.index.finish(booking, 0);
        }
        let spent = clock.now() - begin;
        spent
    }

    fn holders(&mut self, prompt: &[u32]) -> Vec<(u32, u32)> {
        let keys: Vec<BlockKey> = prompt.iter().map(|block| block_key(*block)).collect();
        self.index.match_prefix(&keys, &mut self.matches);
        let of = |(worker, slot): (usize, &Slot)| {
            Some((worker as u32, self.index.matched(&self.matches, *slot)?.blocks))
        };
        self.slots.iter().enumerate().filter_map(of).collect()
    }
}
