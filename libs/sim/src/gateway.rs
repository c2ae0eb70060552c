//! The gateway in a simulated cluster: what the router's pool does with a request, step by step,
//! over the same KV index, load book, fit and choice.
//!
//! It is told what a gateway can see, and nothing else: the keys of prompts, first tokens, the
//! growth of answers about once a second, the usage at the end, and the engines' metrics when they
//! are read. What engines hold it must believe.
//!
//! Every policy routes through here, so that all have the same beliefs and forecasts at hand; they
//! differ in the [choice](policy) alone.

mod measure;
mod mirror;
pub mod policy;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use domain::{BlockKey, LeaseId, LoadSample, Moment, ScoreParts};
use kv_index::feedback::Heard;
use scheduling::copies::{self, Copies};
use scheduling::{
    CandidateView, Coefficients, Due, LoadBook, PrefillFit, arrivals_per_rank, forecast, score,
};

use measure::Measure;
pub use mirror::MirrorKind;
use mirror::{Mirror, MirrorBooking};
use policy::{Chooser, Snapshot};

/// What a gateway is set up with.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Tokens in a block of the engines.
    pub block_tokens: u32,
    /// How engines evict, as far as the gateway is told.
    pub mirror: MirrorKind,
    /// Blocks that each engine is believed to have room for.
    pub believed_blocks: Vec<u32>,
    /// What is known of each engine's prefill time beforehand; the default where nothing is.
    pub priors: Vec<Option<Coefficients>>,
    /// The production choice's settings; its policy follows from the run's.
    pub selection: scheduling::Config,
    /// Whether the holders of a [hot prefix](scheduling::hot) are charged for it.
    pub hot_prefixes: bool,
}

/// A request as the gateway sees it.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Keys of its full blocks.
    pub keys: &'a [BlockKey],
    /// Its tokens.
    pub tokens: u32,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routed {
    /// Names it in later reports.
    pub lease: LeaseId,
    /// The engine.
    pub rank: usize,
    /// Leading blocks that the engine is believed to find in its cache.
    pub believed_blocks: u32,
    /// The expected time to first token.
    pub ttft_seconds: f64,
}

struct Rank {
    load: LoadBook,
    is_away: bool,
    fit: PrefillFit,
    measured_at: Option<Moment>,
    told_prior: bool,
    last_chosen: u64,
}

struct Lease {
    rank: usize,
    held: MirrorBooking,
    started: bool,
    measure: Measure,
    first_token: bool,
    generated: u32,
}

/// What one rank would do with a prompt.
#[derive(Clone, Copy, Debug)]
struct Prospect {
    matched_blocks: u32,
    cached_tokens: u32,
    uncached_tokens: u32,
    hot_tokens: u32,
    evicted_ask_tokens: f64,
    queue_delay_seconds: f64,
}

/// The gateway of one pool.
pub struct Gateway {
    config: GatewayConfig,
    mirror: Mirror,
    ranks: Vec<Rank>,
    leases: HashMap<LeaseId, Lease>,
    next_lease: u64,
    turn: u64,
    matched: Vec<u32>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("leases", &self.leases.len()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway in front of idle engines with empty caches, one for each of
    /// `config.believed_blocks`.
    pub fn new(config: GatewayConfig) -> Self {
        let mirror = Mirror::new(config.mirror, &config.believed_blocks);
        let prior = |i: usize| config.priors.get(i).copied().flatten();
        let ranks = (0..config.believed_blocks.len()).map(|i| Rank {
            load: LoadBook::new(),
            is_away: false,
            fit: PrefillFit::new(prior(i).unwrap_or_default()),
            measured_at: None,
            told_prior: prior(i).is_some(),
            last_chosen: i as u64 + 1,
        });
        let ranks: Vec<Rank> = ranks.collect();
        Self {
            mirror,
            turn: ranks.len() as u64,
            ranks,
            config,
            leases: HashMap::new(),
            next_lease: 0,
            matched: Vec::new(),
        }
    }

    /// Chooses a rank and books the prompt on it. `truth` replaces the belief by what each
    /// engine's cache really holds, in leading blocks; prompts on their way still count.
    pub fn route(
        &mut self,
        prompt: Prompt<'_>,
        chooser: &mut Chooser,
        truth: Option<&[u32]>,
        now: Moment,
    ) -> Routed {
        self.advance(now);
        self.mirror.match_prompt(prompt.keys, truth, &mut self.matched);
        let hot = if self.config.hot_prefixes { self.mirror.hot_blocks() } else { 0 };
        let copies = self.copies(prompt);
        let prospects: Vec<Prospect> = (0..self.ranks.len())
            .map(|rank| self.prospect(rank, prompt, (hot, copies), now))
            .collect();
        let (rank, parts) = self.choose(prompt, &prospects, chooser, now);
        let prospect = prospects[rank];
        let (room, found) = self.book(rank, prompt, prospect, now);
        let now = scheduling::Prompt {
            uncached_tokens: prospect.uncached_tokens,
            cached_tokens: prospect.cached_tokens,
            ..found
        };
        let fit = self.ranks[rank].fit.coefficients();
        let parts = forecast(parts, &fit, (now, found), room);
        Routed {
            lease: LeaseId(self.next_lease - 1),
            rank,
            believed_blocks: found.cached_tokens / self.config.block_tokens,
            ttft_seconds: parts.ttft_seconds(),
        }
    }

    /// The longest match, if several ranks have it, and the one that keeps it.
    fn copies(&self, prompt: Prompt<'_>) -> Option<(Copies, usize)> {
        let matched = self.matched.iter().zip(&self.ranks);
        let holders = copies::holders(matched.map(|(m, rank)| if rank.is_away { 0 } else { *m }));
        let [first, _, ..] = holders[..] else { return None };
        let blocks = self.matched[first];
        let last = (blocks as usize - 1).min(prompt.keys.len() - 1);
        let named = holders.iter().map(|rank| (*rank, *rank as u64));
        let keeper = copies::keeper(prompt.keys[last].0, named)?;
        let (asks, holders) = (self.mirror.asks_of(blocks), holders.len() as u32);
        Some((Copies { blocks, asks, holders }, keeper))
    }

    fn prospect(
        &mut self,
        rank: usize,
        prompt: Prompt<'_>,
        (hot, copies): (u32, Option<(Copies, usize)>),
        now: Moment,
    ) -> Prospect {
        let block = self.config.block_tokens;
        let matched_blocks = self.matched[rank];
        let new_blocks = (prompt.keys.len() as u32).saturating_sub(matched_blocks);
        let mut evicted_asks = self.mirror.asks_evicted_by(rank, new_blocks);
        if let Some((copies, keeper)) = copies
            && matched_blocks == copies.blocks
            && rank != keeper
        {
            evicted_asks += self.mirror.price_of_copy(rank, copies);
        }
        let load = &self.ranks[rank].load;
        // An engine computes at least the last token itself.
        let most = prompt.tokens.saturating_sub(1) / block * block;
        let cached_tokens = matched_blocks.saturating_mul(block).min(most);
        Prospect {
            matched_blocks,
            cached_tokens,
            uncached_tokens: prompt.tokens - cached_tokens,
            hot_tokens: if matched_blocks >= hot { (hot * block).min(cached_tokens) } else { 0 },
            evicted_ask_tokens: evicted_asks * f64::from(block),
            queue_delay_seconds: load.queue_delay_seconds(now),
        }
    }

    /// The rank and the parts of its score.
    fn choose(
        &self,
        prompt: Prompt<'_>,
        prospects: &[Prospect],
        chooser: &mut Chooser,
        now: Moment,
    ) -> (usize, ScoreParts) {
        let here: Vec<usize> =
            (0..self.ranks.len()).filter(|rank| !self.ranks[*rank].is_away).collect();
        let view = |rank: &usize| self.ranks[*rank].view(&prospects[*rank], now);
        let views: Vec<CandidateView<'_>> = here.iter().map(view).collect();
        let resident = |place: usize| self.mirror.resident(here[place]);
        let snapshot =
            Snapshot { keys: prompt.keys, ranks: &here, views: &views, resident: &resident };
        let place = chooser.choose(&self.config.selection, &snapshot);
        let parts = score(&self.config.selection, &views[place], arrivals_per_rank(&views));
        (here[place], parts)
    }

    /// Returns how long the prompt will wait for room in the rank's cache, and what it will find
    /// when its turn comes.
    fn book(
        &mut self,
        number: usize,
        prompt: Prompt<'_>,
        prospect: Prospect,
        now: Moment,
    ) -> (f64, scheduling::Prompt) {
        let id = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.turn += 1;
        let measure = Measure::new(prompt.tokens, self.config.block_tokens);
        let extra = measure.prompt_blocks().saturating_sub(prompt.keys.len() as u32);
        let in_line = self.ranks[number].load.has_line(now);
        let held = self.mirror.book(number, prompt.keys, extra, in_line);
        let fits = self.mirror.has_room(&held);
        let rank = &mut self.ranks[number];
        rank.last_chosen = self.turn;
        let room = rank.load.room_delay_seconds(measure.prompt_blocks(), fits, now);
        let mut cached_tokens = prospect.cached_tokens;
        let waits = room > 0.0 || rank.load.booked_seconds(now) > 0.0;
        if waits {
            let before = rank.load.youngest_first().filter_map(|id| self.leases.get(&id));
            let before = before.map(|lease| &lease.held);
            let later = self.mirror.found_after(&held, before).unwrap_or(u32::MAX);
            cached_tokens = cached_tokens.min(later.saturating_mul(self.config.block_tokens));
        }
        let found = scheduling::Prompt {
            uncached_tokens: prompt.tokens - cached_tokens,
            cached_tokens,
            blocks: measure.prompt_blocks(),
        };
        let work = rank.load.work(&rank.fit, found, 0.0, now);
        rank.load.book(id, work, true, now);
        let lease =
            Lease { rank: number, held, started: false, measure, first_token: false, generated: 0 };
        self.leases.insert(id, lease);
        (room, found)
    }

    /// The first token of a request came.
    pub fn first_token(&mut self, id: LeaseId, now: Moment) {
        self.advance(now);
        let Some(lease) = self.leases.get_mut(&id) else { return };
        if std::mem::replace(&mut lease.first_token, true) {
            return;
        }
        let rank = &mut self.ranks[lease.rank];
        if let Some(sample) = rank.load.first_token(id, now) {
            rank.fit.observe(&sample.shape, sample.engine_seconds(0.0));
            rank.measured_at = Some(now);
            if rank.fit.samples().is_power_of_two() {
                self.share_prior();
            }
        }
        // What was booked before it has begun as well, and in that order.
        self.advance(now);
        self.start(id);
    }

    /// The answer of a request has so many tokens so far.
    pub fn progress(&mut self, id: LeaseId, generated: u32) {
        self.start(id);
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.generated = lease.generated.max(generated);
        self.mirror.grow(&mut lease.held, lease.measure.output_blocks(lease.generated));
    }

    /// A request ended: so many tokens of output, and so many of its prompt's in the cache.
    pub fn finished(&mut self, id: LeaseId, generated: u32, cached_tokens: u32, now: Moment) {
        self.advance(now);
        self.progress(id, generated);
        let blocks = cached_tokens / self.config.block_tokens;
        self.close(id, Heard::Found { blocks, slack: 1 }, now);
    }

    /// A request was refused by its engine.
    pub fn failed(&mut self, id: LeaseId, now: Moment) {
        self.advance(now);
        self.close(id, Heard::Nothing, now);
    }

    /// An engine went away, and its cache with it, or is back.
    pub fn set_away(&mut self, rank: usize, is_away: bool) {
        self.ranks[rank].is_away = is_away;
        if !is_away {
            // Of the one that was there before only its speed is remembered.
            self.mirror.replace(rank, self.config.believed_blocks[rank]);
            self.ranks[rank].load = LoadBook::new();
        }
    }

    /// Whether an engine is away.
    pub fn is_away(&self, rank: usize) -> bool {
        self.ranks[rank].is_away
    }

    /// An engine's metrics were read.
    pub fn observe_load(&mut self, rank: usize, sample: &LoadSample) {
        if let Some(total) = sample.preemptions {
            self.mirror.preempted(rank, total);
        }
        if let Some(rank) = self.ranks.get_mut(rank) {
            rank.load.observe_load(sample, sample.at);
        }
        let known = self.ranks.iter().map(|rank| scheduling::fit::FitOfRank {
            fit: &rank.fit,
            measured_at: rank.measured_at,
            is_idle: rank.load.in_flight() == 0,
        });
        let Some(anew) = scheduling::fit::reconsider(known, sample.at) else { return };
        for at in anew.ranks {
            self.ranks[at].fit.start_over(anew.common);
            self.ranks[at].measured_at = None;
        }
    }

    /// What each rank's prefill is believed to cost.
    pub fn learned(&self) -> Vec<Coefficients> {
        self.ranks.iter().map(|rank| rank.fit.coefficients()).collect()
    }

    /// Begins the prefills whose predicted time has come.
    fn advance(&mut self, now: Moment) {
        for rank in 0..self.ranks.len() {
            let (mirror, leases) = (&mut self.mirror, &mut self.leases);
            self.ranks[rank].load.start_due(now, |id, due| {
                let Some(lease) = leases.get_mut(&id) else { return true };
                let starts = due == Due::Finished || mirror.has_room(&lease.held);
                if starts {
                    lease.start(mirror);
                }
                starts
            });
        }
    }

    fn start(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.start(&mut self.mirror);
        }
    }

    fn close(&mut self, id: LeaseId, heard: Heard, now: Moment) {
        let Some(lease) = self.leases.remove(&id) else { return };
        self.ranks[lease.rank].load.end(id, now);
        let output =
            lease.started.then_some(lease.measure).map(|m| m.cached_output_blocks(lease.generated));
        self.mirror.release(lease.held, output, heard);
    }

    /// Ranks without samples start from what the others have learned.
    fn share_prior(&mut self) {
        let learned: Vec<Coefficients> = self
            .ranks
            .iter()
            .filter(|rank| rank.fit.samples() > 0)
            .map(|rank| rank.fit.coefficients())
            .collect();
        let Some(prior) = Coefficients::median(&learned) else { return };
        let unknown = |rank: &&mut Rank| rank.fit.samples() == 0 && !rank.told_prior;
        for rank in self.ranks.iter_mut().filter(unknown) {
            rank.fit = PrefillFit::new(prior);
        }
    }
}

impl Lease {
    fn start(&mut self, mirror: &mut Mirror) {
        if !std::mem::replace(&mut self.started, true) {
            mirror.start(&mut self.held);
        }
    }
}

impl Rank {
    fn view(&self, prospect: &Prospect, now: Moment) -> CandidateView<'_> {
        let load = self.load.snapshot();
        CandidateView {
            matched_blocks: prospect.matched_blocks,
            cached_tokens: prospect.cached_tokens,
            uncached_tokens: prospect.uncached_tokens,
            hot_tokens: prospect.hot_tokens,
            queue_delay_seconds: prospect.queue_delay_seconds,
            network_seconds: 0.0,
            evicted_ask_tokens: prospect.evicted_ask_tokens,
            booked_seconds: self.load.booked_seconds(now),
            arrivals_per_second: self.load.arrivals_per_second(now),
            in_flight: load.all_in_flight(now),
            running: self.load.running(),
            last_chosen: self.last_chosen,
            saturated: load.saturated(prospect.queue_delay_seconds, load.all_in_flight(now)),
            fit: self.fit.as_ref(),
        }
    }
}
