//! `kv-index`: the chain index, sharded above the workers that one of them takes.

use std::collections::VecDeque;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use chain_index::{ChainBlockMap, ContentHash, SequenceHash, ShardedChainIndex, StoredBlock};

use super::{Names, Request, Subject, content_hash};
use crate::clock::ThreadClock;

/// Workers in one shard.
const SHARD_WORKERS: usize = 1_024;

/// How a lookup reports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// In a map that it makes.
    Map,
    /// To a callback; nothing is allocated.
    Callback,
}

struct Prepared {
    worker: usize,
    prompt: Vec<ContentHash>,
    parent: Option<SequenceHash>,
    stored: Vec<StoredBlock>,
    removed: Vec<SequenceHash>,
}

pub struct Chain {
    index: ShardedChainIndex,
    lookup: Lookup,
    names: Rc<Names>,
    ids: Vec<u32>,
    maps: Vec<ChainBlockMap>,
    prepared: VecDeque<Vec<Prepared>>,
}

impl Chain {
    pub fn new(workers: usize, lookup: Lookup, names: Rc<Names>) -> Self {
        let index = ShardedChainIndex::new(workers.div_ceil(SHARD_WORKERS), SHARD_WORKERS);
        let ids = (0..workers)
            .map(|worker| index.intern_worker(&format!("worker-{worker}")))
            .collect::<Result<_, _>>()
            .expect("there are shards for all workers");
        let maps = (0..workers).map(|_| ChainBlockMap::new()).collect();
        Self { index, lookup, names, ids, maps, prepared: VecDeque::new() }
    }
}

impl Subject for Chain {
    fn name(&self) -> &'static str {
        match self.lookup {
            Lookup::Map => "kv-index ChainIndex",
            Lookup::Callback => "kv-index ChainIndex, callback",
        }
    }

    fn prepare(&mut self, requests: &[Request<'_>]) {
        let prepare = |Request { op, prompt }: &Request<'_>| Prepared {
            worker: op.worker as usize,
            prompt: prompt.iter().map(|block| ContentHash(content_hash(*block))).collect(),
            parent: prompt[..op.resident].last().map(|block| SequenceHash(self.names.of(*block))),
            stored: prompt[op.resident..]
                .iter()
                .map(|block| StoredBlock {
                    seq_hash: SequenceHash(self.names.of(*block)),
                    content_hash: ContentHash(content_hash(*block)),
                })
                .collect(),
            removed: op.victims.iter().map(|block| SequenceHash(self.names.of(*block))).collect(),
        };
        self.prepared.push_back(requests.iter().map(prepare).collect());
    }

    fn run(&mut self) -> Duration {
        let prepared = self.prepared.pop_front().unwrap_or_default();
        let clock = ThreadClock::own();
        let begin = clock.now();
        for request in &prepared {
            match self.lookup {
                Lookup::Map => {
                    black_box(self.index.find_matches(&request.prompt, false));
                }
                Lookup::Callback => {
                    let mut best = (0, 0);
                    let report = |worker, blocks| best = best.max((blocks, worker));
                    self.index.score_into(&request.prompt, |hash| hash.0, false, report);
                    black_box(best);
                }
            }
            let (id, map) = (self.ids[request.worker], &mut self.maps[request.worker]);
            self.index
                .apply_stored(id, &request.stored, request.parent, map)
                .expect("the parent is stored");
            if !request.removed.is_empty() {
                self.index.apply_removed(id, &request.removed, map);
            }
        }
        let spent = clock.now() - begin;
        spent
    }

    fn holders(&mut self, prompt: &[u32]) -> Vec<(u32, u32)> {
        let hashes: Vec<_> = prompt.iter().map(|block| ContentHash(content_hash(*block))).collect();
        let scores = self.index.find_matches(&hashes, false).scores;
        let of = |(worker, id): (usize, &u32)| Some((worker as u32, *scores.get(id)?));
        self.ids.iter().enumerate().filter_map(of).collect()
    }
}
