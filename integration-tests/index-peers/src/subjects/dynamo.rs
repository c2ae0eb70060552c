//! `dynamo-kv-router`: three indexes that take the same events.

use std::collections::VecDeque;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use dynamo_kv_router::indexer::{RadixTree, SyncIndexer, WorkerTask};
use dynamo_kv_router::nested_map::{LevelIndex, SearchMode};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent, WorkerWithDpRank,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::{Names, Request, Subject, content_hash};
use crate::clock::ThreadClock;

/// Positions that the positional index jumps, as its documentation has it.
const JUMP: usize = 32;

/// Requests whose events are sent together to the index that takes them on a thread of its own.
const BATCH: usize = 50;

struct Prepared {
    prompt: Vec<LocalBlockHash>,
    events: Vec<RouterEvent>,
}

pub fn local_hashes(prompt: &[u32]) -> Vec<LocalBlockHash> {
    prompt.iter().map(|block| LocalBlockHash(content_hash(*block))).collect()
}

fn prepare(names: &Names, requests: &[Request<'_>]) -> Vec<Prepared> {
    let external = |block| ExternalSequenceBlockHash(names.of(block));
    let event = |worker: u32, data| {
        RouterEvent::new(worker.into(), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
    };
    let prepare = |Request { op, prompt }: &Request<'_>| {
        let mut events = Vec::with_capacity(2);
        if op.resident < prompt.len() {
            let blocks = prompt[op.resident..].iter().map(|block| KvCacheStoredBlockData {
                block_hash: external(*block),
                tokens_hash: LocalBlockHash(content_hash(*block)),
                mm_extra_info: None,
            });
            let data = KvCacheStoreData {
                parent_hash: prompt[..op.resident].last().map(|block| external(*block)),
                start_position: None,
                blocks: blocks.collect(),
            };
            events.push(event(op.worker, KvCacheEventData::Stored(data)));
        }
        if !op.victims.is_empty() {
            let block_hashes = op.victims.iter().map(|block| external(*block)).collect();
            let data = KvCacheRemoveData { block_hashes };
            events.push(event(op.worker, KvCacheEventData::Removed(data)));
        }
        Prepared { prompt: local_hashes(prompt), events }
    };
    requests.iter().map(prepare).collect()
}

fn ordered(scores: &OverlapScores) -> Vec<(u32, u32)> {
    let of = |(worker, blocks): (&WorkerWithDpRank, &u32)| (worker.worker_id as u32, *blocks);
    let mut holders: Vec<_> = scores.scores.iter().map(of).collect();
    holders.sort_unstable();
    holders
}

/// The tree for one thread.
pub struct Radix {
    tree: RadixTree,
    names: Rc<Names>,
    prepared: VecDeque<Vec<Prepared>>,
}

impl Radix {
    pub fn new(names: Rc<Names>) -> Self {
        Self { tree: RadixTree::new(), names, prepared: VecDeque::new() }
    }
}

impl Subject for Radix {
    fn name(&self) -> &'static str {
        "dynamo RadixTree"
    }

    fn prepare(&mut self, requests: &[Request<'_>]) {
        self.prepared.push_back(prepare(&self.names, requests));
    }

    fn run(&mut self) -> Duration {
        let prepared = self.prepared.pop_front().unwrap_or_default();
        let clock = ThreadClock::own();
        let begin = clock.now();
        for Prepared { prompt, events } in prepared {
            black_box(self.tree.find_matches(prompt, false));
            for event in events {
                self.tree.apply_event(event).expect("the event fits");
            }
        }
        clock.now() - begin
    }

    fn holders(&mut self, prompt: &[u32]) -> Vec<(u32, u32)> {
        ordered(&self.tree.find_matches(local_hashes(prompt), false))
    }
}

/// Hash tables by position.
pub struct Positional {
    index: PositionalIndexer,
    blocks: FxHashMap<WorkerWithDpRank, LevelIndex>,
    names: Rc<Names>,
    prepared: VecDeque<Vec<Prepared>>,
}

impl Positional {
    pub fn new(names: Rc<Names>) -> Self {
        Self {
            index: PositionalIndexer::new_with_mode(JUMP, SearchMode::Strided),
            blocks: FxHashMap::default(),
            names,
            prepared: VecDeque::new(),
        }
    }
}

impl Subject for Positional {
    fn name(&self) -> &'static str {
        "dynamo PositionalIndexer"
    }

    fn prepare(&mut self, requests: &[Request<'_>]) {
        self.prepared.push_back(prepare(&self.names, requests));
    }

    fn run(&mut self) -> Duration {
        let prepared = self.prepared.pop_front().unwrap_or_default();
        let clock = ThreadClock::own();
        let begin = clock.now();
        for Prepared { prompt, events } in prepared {
            black_box(self.index.find_matches(&prompt, false));
            for event in events {
                self.index.apply_event(&mut self.blocks, event, None).expect("the event fits");
            }
        }
        clock.now() - begin
    }

    fn holders(&mut self, prompt: &[u32]) -> Vec<(u32, u32)> {
        ordered(&self.index.find_matches(&local_hashes(prompt), false))
    }
}

/// The compressed tree for many threads. It takes events on a thread of its own only, so the
/// lookups of a small batch run here and then its events there; both threads' CPU time counts.
pub struct Compressed {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    sender: flume::Sender<WorkerTask>,
    clock: ThreadClock,
    _thread: JoinHandle<()>,
    names: Rc<Names>,
    prepared: VecDeque<Vec<Prepared>>,
}

impl Compressed {
    pub fn new(names: Rc<Names>) -> Self {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (sender, receiver) = flume::unbounded();
        let for_thread = tree.clone();
        let thread = std::thread::spawn(move || {
            for_thread.worker(receiver, None).expect("the thread ends with its channel");
        });
        let clock = ThreadClock::of(&thread);
        Self { tree, sender, clock, _thread: thread, names, prepared: VecDeque::new() }
    }

    /// CPU time of these events.
    fn apply(&self, events: Vec<RouterEvent>) -> Duration {
        let begin = self.clock.now();
        for event in events {
            self.sender.send(WorkerTask::Event(event)).expect("the thread runs");
        }
        let (reply, done) = oneshot::channel();
        self.sender.send(WorkerTask::Flush(reply)).expect("the thread runs");
        done.blocking_recv().expect("the thread runs");
        self.clock.now() - begin
    }
}

impl Subject for Compressed {
    fn name(&self) -> &'static str {
        "dynamo ConcurrentRadixTreeCompressed"
    }

    fn prepare(&mut self, requests: &[Request<'_>]) {
        self.prepared.push_back(prepare(&self.names, requests));
    }

    fn run(&mut self) -> Duration {
        let mut prepared = self.prepared.pop_front().unwrap_or_default();
        let own = ThreadClock::own();
        let mut spent = Duration::ZERO;
        for batch in prepared.chunks_mut(BATCH) {
            let begin = own.now();
            for request in &*batch {
                black_box(self.tree.find_matches(&request.prompt, false));
            }
            spent += own.now() - begin;
            let events = batch.iter_mut().flat_map(|r| std::mem::take(&mut r.events)).collect();
            spent += self.apply(events);
        }
        spent
    }

    fn holders(&mut self, prompt: &[u32]) -> Vec<(u32, u32)> {
        ordered(&self.tree.find_matches(&local_hashes(prompt), false))
    }
}
