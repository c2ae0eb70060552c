//! The ways to route that are compared.
//!
//! Three are the production choice itself. The others are the rules that gateways in use follow,
//! each over the same snapshot. Ties go to the rank chosen least recently unless a rule says
//! otherwise.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use domain::BlockKey;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use scheduling::{CandidateView, Config, select};

use super::mirror::Numbers;
use crate::lru::{Evict, PlainLru};
use crate::request::chained;

/// Points of each rank on the ring of the consistent hash.
const RING_POINTS: u64 = 100;

/// The SGLang router's defaults: the matched share of a prompt above which its rank is taken …
const SGLANG_CACHE_THRESHOLD: f64 = 0.5;
/// … and the difference in requests, absolute and as a ratio, above which load alone decides.
const SGLANG_BALANCE_REQUESTS: u32 = 32;
const SGLANG_BALANCE_RATIO: f64 = 1.0001;

/// How a rank is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoutePolicy {
    /// The production choice: lowest estimated time to first token.
    Prefix,
    /// In turn.
    RoundRobin,
    /// Any.
    Random,
    /// Fewest requests in flight.
    LeastLoad,
    /// The one with fewer requests of two random ones.
    PowerOfTwo,
    /// A consistent hash of the first block.
    ConsistentHash1,
    /// A consistent hash of the first two blocks.
    ConsistentHash2,
    /// The longest match, then the fewest requests.
    LongestPrefix,
    /// The longest match if it is a good part of the prompt, else the emptiest cache; the fewest
    /// requests while load is uneven.
    SglangLike,
    /// The rule of the published documents workload.
    Reference,
}

impl RoutePolicy {
    /// Every policy.
    pub const ALL: [Self; 10] = [
        Self::Prefix,
        Self::RoundRobin,
        Self::Random,
        Self::LeastLoad,
        Self::PowerOfTwo,
        Self::ConsistentHash1,
        Self::ConsistentHash2,
        Self::LongestPrefix,
        Self::SglangLike,
        Self::Reference,
    ];

    /// The name on the command line and in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastLoad => "least-load",
            Self::PowerOfTwo => "power-of-two",
            Self::ConsistentHash1 => "consistent-hash-1",
            Self::ConsistentHash2 => "consistent-hash-2",
            Self::LongestPrefix => "longest-prefix",
            Self::SglangLike => "sglang-like",
            Self::Reference => "reference",
        }
    }
}

impl fmt::Display for RoutePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// There is no policy of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`")]
pub struct UnknownRoutePolicy(String);

impl FromStr for RoutePolicy {
    type Err = UnknownRoutePolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        found.ok_or_else(|| UnknownRoutePolicy(name.to_owned()))
    }
}

/// The constants of the reference's rule: ranks with few enough requests; of those the ones whose
/// estimate is near the best; of those the ones with the fewest requests, in rotation. With too
/// many requests everywhere, the first with the fewest, whatever it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceRule {
    /// What an uncached token is charged, in milliseconds.
    pub prefill_ms_per_token: f64,
    /// What each request in flight is charged, in milliseconds.
    pub service_ms_per_request: f64,
    /// A rank with more requests is left out while another has not.
    pub max_in_flight: u32,
    /// Ranks within so many milliseconds of the best are equal.
    pub hysteresis_ms: f64,
    /// Its blocks are 64 characters and taken for 16 tokens; this is what it counts a block of the
    /// engine's as, in its own blocks.
    pub blocks_per_engine_block: f64,
    /// Its own belief, in engine blocks per rank, where it is not the mirror's.
    pub believed_blocks: Option<u32>,
}

impl Default for ReferenceRule {
    /// The defaults that it ships with, over text that has four characters a token.
    fn default() -> Self {
        Self {
            prefill_ms_per_token: 0.05,
            service_ms_per_request: 200.0,
            max_in_flight: 64,
            hysteresis_ms: 5.0,
            blocks_per_engine_block: 1.0,
            believed_blocks: None,
        }
    }
}

impl ReferenceRule {
    /// The constants that its own documents bench sets.
    pub const BENCH: Self = Self {
        prefill_ms_per_token: 0.05,
        service_ms_per_request: 1.0,
        max_in_flight: 24,
        hysteresis_ms: 2.0,
        blocks_per_engine_block: 1.0,
        believed_blocks: None,
    };
}

/// What a choice is made from.
pub struct Snapshot<'a> {
    /// Keys of the prompt's full blocks.
    pub keys: &'a [BlockKey],
    /// The ranks that are there, by their numbers.
    pub ranks: &'a [usize],
    /// What is known of each of them; places below are places in this list.
    pub views: &'a [CandidateView<'a>],
    /// Blocks that a rank is believed to hold, by its place.
    pub resident: &'a dyn Fn(usize) -> u32,
}

impl fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("views", &self.views).finish_non_exhaustive()
    }
}

/// A policy with what it remembers.
pub struct Chooser {
    policy: RoutePolicy,
    random: StdRng,
    ring: Vec<(u64, usize)>,
    rule: ReferenceRule,
    own_belief: Option<(Vec<PlainLru>, Numbers)>,
    /// Decisions by its estimate so far.
    rotation: usize,
}

impl fmt::Debug for Chooser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chooser").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Chooser {
    /// A policy over so many ranks.
    pub fn new(policy: RoutePolicy, ranks: usize, rule: ReferenceRule, seed: u64) -> Self {
        let points = (0..ranks as u64).flat_map(|rank| (0..RING_POINTS).map(move |i| (rank, i)));
        let mut ring: Vec<(u64, usize)> =
            points.map(|(rank, i)| (chained(chained(1, rank), i), rank as usize)).collect();
        ring.sort_unstable();
        let belief = rule.believed_blocks.filter(|_| policy == RoutePolicy::Reference);
        let own_belief = belief
            .map(|blocks| (vec![PlainLru::new(blocks, Evict::Head); ranks], Numbers::default()));
        Self { policy, random: StdRng::seed_from_u64(seed), ring, rule, own_belief, rotation: 0 }
    }

    /// The place of the chosen rank. There is at least one.
    pub fn choose(&mut self, config: &Config, snapshot: &Snapshot<'_>) -> usize {
        let production =
            |policy| select(&Config { policy, ..*config }, snapshot.views).ranked[0].index;
        match self.policy {
            RoutePolicy::Prefix => production(scheduling::Policy::Prefix),
            RoutePolicy::RoundRobin => production(scheduling::Policy::RoundRobin),
            RoutePolicy::LeastLoad => production(scheduling::Policy::LeastLoad),
            RoutePolicy::Random => self.random.random_range(0..snapshot.views.len()),
            RoutePolicy::PowerOfTwo => self.power_of_two(snapshot),
            RoutePolicy::ConsistentHash1 => self.hashed(snapshot, 1),
            RoutePolicy::ConsistentHash2 => self.hashed(snapshot, 2),
            RoutePolicy::LongestPrefix => {
                least(snapshot, |_, view| (Reverse(view.cached_tokens), view.in_flight))
            }
            RoutePolicy::SglangLike => sglang_like(snapshot),
            RoutePolicy::Reference => self.reference(snapshot),
        }
    }

    fn power_of_two(&mut self, snapshot: &Snapshot<'_>) -> usize {
        let ranks = snapshot.views.len();
        let first = self.random.random_range(0..ranks);
        if ranks == 1 {
            return first;
        }
        let second = (first + self.random.random_range(1..ranks)) % ranks;
        let load = |rank: usize| snapshot.views[rank].in_flight;
        if load(second) < load(first) { second } else { first }
    }

    /// By the last of the first `blocks` keys, which names them all. A prompt without a full
    /// block goes anywhere.
    fn hashed(&mut self, snapshot: &Snapshot<'_>, blocks: usize) -> usize {
        let first = &snapshot.keys[..blocks.min(snapshot.keys.len())];
        let Some(key) = first.last() else {
            return self.random.random_range(0..snapshot.views.len());
        };
        let point = chained(0, key.0);
        let first = self.ring.partition_point(|(at, _)| *at < point);
        // Those that are away are passed over.
        let mut around = self.ring[first..].iter().chain(&self.ring[..first]);
        let place = |rank: usize| snapshot.ranks.iter().position(|there| *there == rank);
        around.find_map(|(_, rank)| place(*rank)).unwrap_or(0)
    }

    fn reference(&mut self, snapshot: &Snapshot<'_>) -> usize {
        let mut numbers = Vec::new();
        if let Some((_, known)) = &mut self.own_belief {
            known.of(snapshot.keys, &mut numbers);
        }
        let matched = |place: usize| match &self.own_belief {
            Some((caches, _)) => caches[snapshot.ranks[place]].matched(&numbers),
            None => snapshot.views[place].matched_blocks,
        };
        let rule = self.rule;
        let cost = |(rank, view): (usize, &CandidateView<'_>)| {
            let uncached = f64::from(snapshot.keys.len() as u32 - matched(rank));
            let own_blocks = uncached * rule.blocks_per_engine_block;
            rule.prefill_ms_per_token * 16.0 * own_blocks
                + rule.service_ms_per_request * f64::from(view.in_flight)
        };
        let costs: Vec<f64> = snapshot.views.iter().enumerate().map(cost).collect();
        let load = |rank: &usize| snapshot.views[*rank].in_flight;
        let open: Vec<usize> =
            (0..costs.len()).filter(|rank| load(rank) <= rule.max_in_flight).collect();
        let best = open.iter().map(|rank| costs[*rank]).fold(f64::INFINITY, f64::min);
        let near = open.into_iter().filter(|rank| costs[*rank] <= best + rule.hysteresis_ms);
        let near: Vec<usize> = near.collect();
        let fewest = near.iter().map(load).min();
        let equal: Vec<usize> = near.into_iter().filter(|r| Some(load(r)) == fewest).collect();
        let chosen = if equal.is_empty() {
            (0..costs.len()).min_by_key(load).unwrap_or(0)
        } else {
            self.rotation += 1;
            equal[(self.rotation - 1) % equal.len()]
        };
        if let Some((caches, _)) = &mut self.own_belief {
            caches[snapshot.ranks[chosen]].access(&numbers);
        }
        chosen
    }
}

/// The rank with the least `key`, then the one chosen least recently.
fn least<K: Ord>(snapshot: &Snapshot<'_>, key: impl Fn(usize, &CandidateView<'_>) -> K) -> usize {
    let ranked = snapshot.views.iter().enumerate();
    let best = ranked.min_by_key(|(rank, view)| (key(*rank, view), view.last_chosen));
    best.map_or(0, |(rank, _)| rank)
}

fn sglang_like(snapshot: &Snapshot<'_>) -> usize {
    let loads = || snapshot.views.iter().map(|view| view.in_flight);
    let (most, fewest) = (loads().max().unwrap_or(0), loads().min().unwrap_or(0));
    let uneven = most - fewest > SGLANG_BALANCE_REQUESTS
        && f64::from(most) > SGLANG_BALANCE_RATIO * f64::from(fewest);
    if uneven {
        return least(snapshot, |_, view| view.in_flight);
    }
    let longest = least(snapshot, |_, view| Reverse(view.cached_tokens));
    let view = &snapshot.views[longest];
    let prompt = f64::from(view.cached_tokens + view.uncached_tokens);
    if f64::from(view.cached_tokens) > SGLANG_CACHE_THRESHOLD * prompt {
        return longest;
    }
    least(snapshot, |rank, _| (snapshot.resident)(rank))
}
