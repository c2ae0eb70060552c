//! A gateway and its engines in virtual time.
//!
//! One event after the other: a request is sent, reaches its engine, an engine finishes a step,
//! the engines' metrics are read. Nothing here decides anything; the gateway and the engines do.

mod outage;
mod queue;
#[cfg(test)]
mod tests;

use std::time::Duration;

use domain::{LeaseId, LoadSample, Moment};

use crate::engine::{EngineConfig, EngineEvent, EngineModel, EventKind};
use crate::error::Error;
use crate::gateway::policy::{Chooser, ReferenceRule, RoutePolicy};
use crate::gateway::{Gateway, GatewayConfig, Prompt};
use crate::outcome::{Outcome, Record};
use crate::request::{RequestSet, Start};
pub use outage::Outage;
use queue::{Event, Queue};

/// How often engines' metrics are read, and how often an answer's growth is reported.
const SCRAPE: Duration = Duration::from_secs(1);

/// A cluster and how it is routed.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The engines, all with the block size of the requests.
    pub engines: Vec<EngineConfig>,
    /// Time that a request spends on its way into its engine, prefill apart; it delays the first
    /// token and occupies nothing.
    pub front: Duration,
    /// The gateway.
    pub gateway: GatewayConfig,
    /// How ranks are chosen.
    pub policy: RoutePolicy,
    /// The constants of [`RoutePolicy::Reference`].
    pub reference: ReferenceRule,
    /// Whether the gateway is shown what the engines' caches really hold.
    pub shown_content: bool,
    /// When engines are away. One of them at least never is.
    pub outages: Vec<Outage>,
    /// Of everything random in a policy.
    pub seed: u64,
}

/// Runs `set` to its end. `progress` is told after each request how many have ended.
///
/// # Errors
/// [`Error::Config`] if an engine's configuration makes no sense, or outages leave none.
pub fn run(
    config: &ClusterConfig,
    set: &RequestSet,
    progress: &mut dyn FnMut(usize),
) -> Result<Outcome, Error> {
    let mut cluster = Cluster::new(config, set)?;
    let mut told = 0;
    while let Some(now) = cluster.next_event_at() {
        cluster.step(now);
        if cluster.ended > told {
            told = cluster.ended;
            progress(told);
        }
    }
    Ok(cluster.outcome())
}

struct Cluster<'a> {
    config: &'a ClusterConfig,
    set: &'a RequestSet,
    gateway: Gateway,
    chooser: Chooser,
    engines: Vec<EngineModel>,
    queue: Queue,
    next_scrape: Moment,
    /// The leases of the requests that are under way.
    leases: Vec<Option<LeaseId>>,
    records: Vec<Record>,
    /// Requests that each request's end sets off.
    children: Vec<Vec<usize>>,
    /// Requests that wait for a free caller, last first.
    idle: Vec<usize>,
    in_flight: usize,
    ended: usize,
    /// Those that engines had counted which died.
    lost_preemptions: u64,
}

impl<'a> Cluster<'a> {
    fn new(config: &'a ClusterConfig, set: &'a RequestSet) -> Result<Self, Error> {
        let engine = |config: &EngineConfig| {
            let mut engine = EngineModel::new(config.clone())?;
            engine.omit_token_events();
            Ok(engine)
        };
        let count = set.requests.len();
        let mut cluster = Self {
            config,
            set,
            gateway: Gateway::new(config.gateway.clone()),
            chooser: Chooser::new(
                config.policy,
                config.engines.len(),
                config.reference,
                config.seed,
            ),
            engines: config.engines.iter().map(engine).collect::<Result<_, Error>>()?,
            queue: Queue::default(),
            next_scrape: Moment::ZERO + SCRAPE,
            leases: vec![None; count],
            records: vec![Record::default(); count],
            children: vec![Vec::new(); count],
            idle: Vec::new(),
            in_flight: 0,
            ended: 0,
            lost_preemptions: 0,
        };
        cluster.line_up();
        cluster.plan_outages()?;
        Ok(cluster)
    }

    fn line_up(&mut self) {
        for (index, request) in self.set.requests.iter().enumerate() {
            match request.start {
                Start::At(at) => self.queue.push(at, Event::Send(index)),
                Start::After { parent, .. } => self.children[parent].push(index),
                Start::WhenFree => self.idle.push(index),
            }
        }
        self.idle.reverse();
        for _ in 0..self.set.callers {
            if let Some(index) = self.idle.pop() {
                self.queue.push(Moment::ZERO, Event::Send(index));
            }
        }
    }

    /// When something happens next. Metrics are read only while there is something to see.
    fn next_event_at(&self) -> Option<Moment> {
        let engines = self.engines.iter().filter_map(EngineModel::next_event_at).min();
        let next = engines.into_iter().chain(self.queue.next_at()).min()?;
        Some(if self.in_flight > 0 { next.min(self.next_scrape) } else { next })
    }

    fn step(&mut self, now: Moment) {
        while let Some(event) = self.queue.pop_due(now) {
            match event {
                Event::Send(index) => self.send(index, now),
                Event::Arrive(index, lease) => self.arrive(index, lease, now),
                Event::Dies(rank) => self.dies(rank, now),
                Event::Returns(rank) => self.returns(rank),
            }
        }
        for rank in 0..self.engines.len() {
            if self.engines[rank].next_event_at().is_some_and(|at| at <= now) {
                for event in self.engines[rank].advance(now) {
                    self.tell(&event);
                }
            }
        }
        if self.next_scrape <= now {
            self.scrape(now);
            self.next_scrape = now + SCRAPE;
        }
    }

    fn send(&mut self, index: usize, now: Moment) {
        let block = self.set.block_tokens;
        let request = &self.set.requests[index];
        let keys = request.prompt_keys(block);
        let truth: Option<Vec<u32>> = self.config.shown_content.then(|| {
            let hashes = || keys.iter().map(|key| key.0);
            self.engines.iter().map(|engine| engine.cached_prefix_blocks(hashes())).collect()
        });
        let prompt = Prompt { keys, tokens: request.prompt_tokens };
        let routed = self.gateway.route(prompt, &mut self.chooser, truth.as_deref(), now);
        // A record has the prompt from the first sending on.
        let was_sent = self.records[index].prompt_tokens > 0;
        self.records[index] = Record {
            sent: if was_sent { self.records[index].sent } else { now },
            rank: routed.rank,
            prompt_tokens: request.prompt_tokens,
            prompt_blocks: keys.len() as u32,
            believed_blocks: routed.believed_blocks,
            expected_ttft_seconds: routed.ttft_seconds,
            output_tokens: request.output_tokens,
            ..Record::default()
        };
        self.leases[index] = Some(routed.lease);
        self.in_flight += usize::from(!was_sent);
        if self.config.front.is_zero() {
            self.arrive(index, routed.lease, now);
        } else {
            self.queue.push(now + self.config.front, Event::Arrive(index, routed.lease));
        }
    }

    fn arrive(&mut self, index: usize, lease: LeaseId, now: Moment) {
        // Its engine died while it was on its way, and it was sent elsewhere.
        if self.leases[index] != Some(lease) {
            return;
        }
        let request = &self.set.requests[index];
        let hashes = request.keys.iter().map(|key| key.0).collect();
        let engine = &mut self.engines[self.records[index].rank];
        let (prompt, output) = (request.prompt_tokens, request.output_tokens);
        if engine.submit(index as u64, hashes, prompt, output, now).is_err() {
            self.records[index].rejected = true;
            if let Some(lease) = self.leases[index].take() {
                self.gateway.failed(lease, now);
            }
            self.end(index, now);
        }
    }

    fn tell(&mut self, event: &EngineEvent) {
        let index = event.id as usize;
        let Some(lease) = self.leases[index] else { return };
        let record = &mut self.records[index];
        match event.kind {
            EventKind::Scheduled { cached_tokens } => {
                record.cached_tokens = cached_tokens;
                record.hit_blocks = cached_tokens / self.set.block_tokens;
            }
            EventKind::FirstToken => {
                record.first_token = Some(event.at);
                self.gateway.first_token(lease, event.at);
            }
            EventKind::Finished { output_tokens } => {
                record.finished = Some(event.at);
                self.leases[index] = None;
                let cached = record.cached_tokens;
                self.gateway.finished(lease, output_tokens, cached, event.at);
                self.end(index, event.at);
            }
            EventKind::Resumed { .. } | EventKind::Token { .. } | EventKind::Preempted => {}
        }
    }

    /// A request is over: what waited for it goes on.
    fn end(&mut self, index: usize, now: Moment) {
        self.in_flight -= 1;
        self.ended += 1;
        for child in std::mem::take(&mut self.children[index]) {
            if let Start::After { gap, .. } = self.set.requests[child].start {
                self.queue.push(now + gap, Event::Send(child));
            }
        }
        if matches!(self.set.requests[index].start, Start::WhenFree)
            && let Some(next) = self.idle.pop()
        {
            self.queue.push(now, Event::Send(next));
        }
    }

    fn scrape(&mut self, now: Moment) {
        for (rank, engine) in self.engines.iter().enumerate() {
            if self.gateway.is_away(rank) {
                continue;
            }
            let sample = LoadSample {
                at: now,
                running: engine.running(),
                waiting: engine.waiting(),
                kv_usage: Some(engine.kv_usage()),
                preemptions: Some(engine.counters().preemptions),
                prefix_cache: Some((
                    engine.counters().queried_tokens,
                    engine.counters().hit_tokens,
                )),
                prefills: None,
            };
            self.gateway.observe_load(rank, &sample);
            // In the order of the requests, as maps have none.
            let mut outputs: Vec<(u64, u32)> = engine.output_tokens().collect();
            outputs.sort_unstable();
            for (id, generated) in outputs {
                if let Some(lease) = self.leases[id as usize] {
                    self.gateway.progress(lease, generated);
                }
            }
        }
    }

    fn outcome(self) -> Outcome {
        Outcome {
            ranks: self.engines.len(),
            preemptions: self.lost_preemptions
                + self.engines.iter().map(|e| e.counters().preemptions).sum::<u64>(),
            learned: self.gateway.learned(),
            records: self.records,
        }
    }
}
