//! What the edge holds, asked for and remembers: everything under one lock.

use std::collections::{BTreeSet, HashMap};

use domain::{BlockKey, Decision, LeaseId, Prompt, RankId, Rejected, Report};
use proto::{Decided, Reported, What};
use replication::{
    Epoch, Holdings, Lease, MemberId, MemberList, OwnDecisions, Phase, PoolId, Process, Resume, Use,
};
use tokio::sync::mpsc;

/// Prefixes that the edge remembers the ranks of, some hundred bytes each.
const OWN_DECISIONS: usize = 1 << 16;
/// Tokens in a block where a prompt has no keys.
const BLOCK_TOKENS: u32 = 16;

/// What a waiting Route is told. Each comes at most a few times, so the channel never is full.
#[derive(Debug)]
pub(crate) enum Answer {
    Decided(Box<Decision>),
    Rejected(Rejected),
    Queued,
    /// Another router is to be asked.
    NotOwner,
    /// The stream is over: nothing will come on it.
    Broken,
}

pub(crate) struct State {
    pub(crate) holdings: Holdings,
    list: MemberList,
    pub(crate) own: OwnDecisions,
    /// Pools that ever were asked for.
    pub(crate) pools: BTreeSet<PoolId>,
    waiting: HashMap<LeaseId, Waiting>,
    open: HashMap<LeaseId, Open>,
    in_flight: HashMap<RankId, u32>,
}

/// A Route without a decision.
struct Waiting {
    pool: PoolId,
    answers: mpsc::Sender<Answer>,
    /// The stream that it was asked on.
    stream: Option<u64>,
    shape: Shape,
}

/// A lease that is held.
struct Open {
    pool: PoolId,
    rank: RankId,
    /// Blocks of its prompt.
    prompt_blocks: u32,
    block_tokens: u32,
}

/// What is kept of a prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    keys: std::sync::Arc<[BlockKey]>,
    tokens: u32,
    block_tokens: u32,
}

impl Shape {
    pub(crate) fn of(prompt: Option<&Prompt>) -> Self {
        let Some(prompt) = prompt else {
            return Self { block_tokens: BLOCK_TOKENS, ..Self::default() };
        };
        let list = prompt.keys.first();
        let of_tokens = list.filter(|list| list.unit.is_tokens()).map(|list| list.unit.size());
        Self {
            keys: list.map(|list| list.keys.clone()).unwrap_or_default(),
            tokens: prompt.tokens,
            block_tokens: of_tokens.unwrap_or(BLOCK_TOKENS).max(1),
        }
    }

    pub(crate) fn keys(&self) -> &[BlockKey] {
        &self.keys
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.tokens.div_ceil(self.block_tokens.max(1))
    }

    pub(crate) fn block_tokens(&self) -> u32 {
        self.block_tokens
    }
}

impl State {
    pub(crate) fn new(me: Process) -> Self {
        Self {
            holdings: Holdings::new(me),
            list: MemberList::default(),
            own: OwnDecisions::new(OWN_DECISIONS),
            pools: BTreeSet::new(),
            waiting: HashMap::new(),
            open: HashMap::new(),
            in_flight: HashMap::new(),
        }
    }

    /// A member list came. Returns whether it is the newest.
    pub(crate) fn set_list(&mut self, list: &MemberList) -> bool {
        let is_newer = self.list.replace_if_newer(list);
        if is_newer {
            self.holdings.set_list(list);
        }
        is_newer
    }

    pub(crate) fn list(&self) -> MemberList {
        self.list.clone()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.list.epoch
    }

    /// No stream to a router is left.
    pub(crate) fn unreachable(&mut self, router: &MemberId) {
        let gone = self.list.routers().find(|process| process.id == *router).cloned();
        if let Some(gone) = gone {
            self.holdings.unreachable(&gone);
        }
    }

    /// A Route begins to wait.
    pub(crate) fn begin(
        &mut self,
        pool: &PoolId,
        shape: Shape,
        answers: mpsc::Sender<Answer>,
    ) -> LeaseId {
        if !self.pools.contains(pool) {
            self.pools.insert(pool.clone());
        }
        let lease = self.holdings.ask(pool);
        let waiting = Waiting { pool: pool.clone(), answers, stream: None, shape };
        self.waiting.insert(lease, waiting);
        lease
    }

    /// A waiting Route is asked on a stream.
    pub(crate) fn asked_on(&mut self, lease: LeaseId, stream: u64) {
        if let Some(waiting) = self.waiting.get_mut(&lease) {
            waiting.stream = Some(stream);
        }
    }

    /// A waiting Route is told something and waits on.
    pub(crate) fn tell(&mut self, lease: LeaseId, answer: Answer) {
        if let Some(waiting) = self.waiting.get(&lease) {
            let _ = waiting.answers.try_send(answer);
        }
    }

    /// A stream is over: what was asked on it is asked again.
    pub(crate) fn broken(&mut self, stream: u64) {
        for waiting in self.waiting.values_mut().filter(|w| w.stream == Some(stream)) {
            waiting.stream = None;
            let _ = waiting.answers.try_send(Answer::Broken);
        }
    }

    /// An owner decided. Returns what it is told, if the edge has another idea of the lease.
    pub(crate) fn decided(&mut self, pool: &PoolId, decided: Decided) -> Option<Reported> {
        let Decided { reign, blocks, decision } = decided;
        let (id, rank) = (decision.lease, decision.chosen.rank.clone());
        let lease = Lease { rank: rank.clone(), blocks, phase: Phase::Waiting };
        match self.holdings.decided(pool, &reign, id, lease) {
            Use::Now => {
                if let Some(waiting) = self.waiting.remove(&id) {
                    self.hold(id, pool, &waiting.shape, rank, blocks);
                    let _ = waiting.answers.try_send(Answer::Decided(Box::new(decision)));
                }
                None
            }
            Use::Again => None,
            Use::Report(replication::LeaseReport::Moved { lease }) => {
                Some(Reported { pool: pool.clone(), lease: id, what: What::Moved(lease) })
            }
            Use::Report(_) => Some(cancelled(pool, id)),
        }
    }

    /// The pool that a waiting Route or an open lease belongs to.
    pub(crate) fn pool_of(&self, lease: LeaseId) -> Option<PoolId> {
        let waiting = self.waiting.get(&lease).map(|waiting| &waiting.pool);
        waiting.or_else(|| self.open.get(&lease).map(|open| &open.pool)).cloned()
    }

    /// The edge has placed a waiting Route by itself. Returns what a router is told.
    pub(crate) fn moved(&mut self, pool: &PoolId, id: LeaseId, rank: RankId) -> Option<Reported> {
        let waiting = self.waiting.remove(&id)?;
        let blocks = waiting.shape.blocks();
        let lease = Lease { rank: rank.clone(), blocks, phase: Phase::Waiting };
        self.holdings.moved(pool, id, lease.clone());
        self.hold(id, pool, &waiting.shape, rank, blocks);
        Some(Reported { pool: pool.clone(), lease: id, what: What::Moved(lease) })
    }

    fn hold(&mut self, id: LeaseId, pool: &PoolId, shape: &Shape, rank: RankId, blocks: u32) {
        self.own.remember(shape.keys(), &rank);
        *self.in_flight.entry(rank.clone()).or_default() += 1;
        let block_tokens = shape.block_tokens();
        let open = Open { pool: pool.clone(), rank, prompt_blocks: blocks, block_tokens };
        self.open.insert(id, open);
    }

    /// Requests of this edge that are open on a rank.
    pub(crate) fn in_flight(&self, rank: &RankId) -> u32 {
        self.in_flight.get(rank).copied().unwrap_or_default()
    }

    /// A Route was rejected, or nobody waits for it any more. Returns what a router is told in
    /// the second case.
    pub(crate) fn give_up(&mut self, pool: &PoolId, id: LeaseId) -> Reported {
        self.waiting.remove(&id);
        self.forget(id);
        self.holdings.close(pool, id);
        cancelled(pool, id)
    }

    /// Takes a report; `None` if the lease is not held.
    pub(crate) fn report(&mut self, report: Report) -> Option<Reported> {
        let id = report.lease();
        let open = self.open.get(&id)?;
        let pool = open.pool.clone();
        let generated = match report {
            Report::FirstToken { .. } => Some(0),
            Report::Progress { generated, .. } => Some(generated),
            _ => None,
        };
        let blocks = match generated {
            Some(generated) => {
                let blocks = open.prompt_blocks + generated.div_ceil(open.block_tokens);
                self.holdings.progress(&pool, id, Phase::Generating, blocks);
                blocks
            }
            None => {
                self.holdings.close(&pool, id);
                self.forget(id);
                0
            }
        };
        Some(Reported { pool, lease: id, what: What::Report { report, blocks } })
    }

    fn forget(&mut self, id: LeaseId) {
        let Some(open) = self.open.remove(&id) else { return };
        if let Some(count) = self.in_flight.get_mut(&open.rank) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&open.rank);
            }
        }
    }

    /// What is told a router to which there is a new session: all that is held in the pools that
    /// it would be asked for. `first` tells whom a pool would be asked of.
    pub(crate) fn resume(
        &mut self,
        router: &MemberId,
        first: impl Fn(&[Process]) -> Option<MemberId>,
    ) -> Vec<(PoolId, Resume)> {
        let mut resumes = Vec::new();
        for pool in &self.pools {
            if first(&self.holdings.ask_order(pool)).as_ref() == Some(router) {
                let of_pool = self.holdings.resume(pool).into_iter();
                resumes.extend(of_pool.map(|resume| (pool.clone(), resume)));
            }
        }
        resumes
    }
}

fn cancelled(pool: &PoolId, lease: LeaseId) -> Reported {
    let what = What::Report { report: Report::Cancelled { lease }, blocks: 0 };
    Reported { pool: pool.clone(), lease, what }
}
