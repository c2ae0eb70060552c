//! The indexes under test, behind one trait.

mod chain;
mod dynamo;
mod warmpath;

use std::rc::Rc;
use std::time::Duration;

use dynamo_kv_router::protocols::compute_seq_hash_for_block;
use sim::index_load::{IndexLoad, block_key};

use crate::ops::Op;

/// What a subject is given of one request: made beforehand, outside the clock.
pub struct Request<'a> {
    /// What its worker's cache does.
    pub op: &'a Op,
    /// Its blocks.
    pub prompt: &'a [u32],
}

/// An index under test.
pub trait Subject {
    /// The name in tables.
    fn name(&self) -> &'static str;

    /// Makes the inputs for these requests as the index takes them, behind those that were made
    /// and not run yet.
    fn prepare(&mut self, requests: &[Request<'_>]);

    /// Looks up, stores and removes what was prepared by the oldest call that was not run yet.
    /// Returns the CPU time.
    fn run(&mut self) -> Duration;

    /// Who holds how many leading blocks of the prompt, ordered by worker.
    fn holders(&mut self, prompt: &[u32]) -> Vec<(u32, u32)>;
}

/// The hash that names each block's whole prefix. One of the indexes computes it from the hashes of
/// the blocks' tokens and compares, so it is chained its way for all.
struct Names(Vec<u64>);

impl Names {
    fn new(load: &IndexLoad) -> Self {
        let mut names = Vec::new();
        for request in 0..load.len() {
            let prompt = load.prompt(request);
            let hashes = compute_seq_hash_for_block(&dynamo::local_hashes(prompt));
            for (block, hash) in prompt.iter().zip(hashes) {
                let place = *block as usize;
                names.resize(names.len().max(place + 1), 0);
                names[place] = hash;
            }
        }
        Self(names)
    }

    fn of(&self, block: u32) -> u64 {
        self.0[block as usize]
    }
}

/// Every subject, empty, for so many workers.
pub fn all(load: &IndexLoad, workers: usize, capacity: usize) -> Vec<Box<dyn Subject>> {
    let names = Rc::new(Names::new(load));
    vec![
        Box::new(warmpath::Warmpath::new(load, workers, capacity, warmpath::Report::Choice)),
        Box::new(warmpath::Warmpath::new(load, workers, capacity, warmpath::Report::All)),
        Box::new(chain::Chain::new(workers, chain::Lookup::Map, names.clone())),
        Box::new(chain::Chain::new(workers, chain::Lookup::Callback, names.clone())),
        Box::new(dynamo::Radix::new(names.clone())),
        Box::new(dynamo::Compressed::new(names.clone())),
        Box::new(dynamo::Positional::new(names)),
    ]
}

/// The hash of a block's tokens alone. The trace names prefixes, so every block's differs.
fn content_hash(block: u32) -> u64 {
    block_key(block).0.rotate_left(32) ^ 0x5bd1_e995
}
