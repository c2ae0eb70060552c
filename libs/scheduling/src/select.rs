//! The choice: a snapshot of candidates in, the best of them in order out.
//!
//! Nothing is filtered here. Every candidate is scored, a saturated one like any other: its queue
//! is in its score already, and an absolute cut would throw the cache away exactly when it
//! matters most. Saturation of *all* candidates only changes the reason that is given.
//!
//! **Ties.** Candidates whose total lies within a margin of the *best* total are equally good;
//! among them the longest match wins, then the least booked work, then the one chosen least
//! recently. The margin is measured from the best alone and never from pair to pair: "A ties
//! with B, B with C" could otherwise go round in circles.

mod field;
mod sparing;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use domain::{DecisionReason, ScoreParts};
use serde::{Deserialize, Serialize};

use crate::Coefficients;
use field::Draft;
pub use field::{Field, Line, Terms};
pub use sparing::select_sparing;

/// Candidates in [`Selection::ranked`] at most. The list serves a caller that must fail over and
/// cannot ask again; eight tries are more than any request's deadline allows, and keeping the
/// best eight is cheaper than sorting a thousand.
pub const RANKED_LIMIT: usize = 8;

/// A rank whose predicted wait is longer than this counts as saturated, and so does one that runs
/// as many requests as it can. It changes the reason that is told, never the order.
pub const SATURATED_SECONDS: f64 = 2.0;

/// Stands for a score that could not be computed: worse than any real one, and still comparable.
const HOPELESS_SECONDS: f64 = 1e9;

/// How candidates are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Lowest estimated time to first token, cached prefixes counted.
    #[default]
    Prefix,
    /// Fewest requests in flight.
    LeastLoad,
    /// In turn.
    RoundRobin,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 3] = [Policy::Prefix, Policy::LeastLoad, Policy::RoundRobin];

    /// The name in config, labels and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Policy::Prefix => "prefix",
            Policy::LeastLoad => "least-load",
            Policy::RoundRobin => "round-robin",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// There is no policy of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`: one of prefix, least-load, round-robin")]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Policy::ALL
            .into_iter()
            .find(|p| p.as_str() == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// The choice's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How candidates are compared.
    pub policy: Policy,
    /// Weight of the prefill that others will pay again for what a prompt evicts: how often that
    /// is, for each time that it was asked for lately. Half and twice of 1 do about as well in
    /// simulation.
    pub eviction_weight: f64,
    /// Totals within this share of the best are a tie …
    pub tie_margin_fraction: f64,
    /// … and so are totals within this many seconds of it.
    pub tie_margin_seconds: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::Prefix,
            eviction_weight: 1.0,
            tie_margin_fraction: 0.02,
            tie_margin_seconds: 0.002,
        }
    }
}

/// What is known of one rank with regard to one prompt.
#[derive(Clone, Copy, Debug)]
pub struct CandidateView<'a> {
    /// Leading blocks of the prompt that the rank is believed to hold.
    pub matched_blocks: u32,
    /// Prompt tokens it would find in its cache. Matches are compared by them, as block sizes
    /// may differ between ranks.
    pub cached_tokens: u32,
    /// Prompt tokens it would have to compute.
    pub uncached_tokens: u32,
    /// Those of the cached tokens that do not count for it now, as they are of a prefix that one
    /// more rank should hold: see [`hot`](crate::hot).
    pub hot_tokens: u32,
    /// Wait until it can begin, foreign load included.
    pub queue_delay_seconds: f64,
    /// Round trip to it.
    pub network_seconds: f64,
    /// Cached tokens that would be evicted for this prompt, each counted as often as it was asked
    /// for lately: about what will have to be computed again. Where this is a further copy of the
    /// prefix, with its share of what that keeps out: see [`copies`](crate::copies).
    pub evicted_ask_tokens: f64,
    /// Prefill booked on it by us and not finished.
    pub booked_seconds: f64,
    /// Requests that came to it per second, lately. The mean over the candidates
    /// ([`arrivals_per_rank`]) counts where that is more.
    pub arrivals_per_second: f64,
    /// Requests it has; foreign ones may be counted in. Only `least-load` reads it.
    pub in_flight: u32,
    /// Those of ours that generate: its steps are longer for it.
    pub running: u32,
    /// When it was last chosen. Whoever books counts turns from 1 and gives one to each rank that
    /// it books, and to each that joins, so that all differ; 0 for never.
    pub last_chosen: u64,
    /// Whether it is saturated. Never takes it out; see the [module's page](self).
    pub saturated: bool,
    /// Its prefill time.
    pub fit: &'a Coefficients,
}

/// A candidate with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Its place among the candidates that were given.
    pub index: usize,
    /// What its score is made of.
    pub parts: ScoreParts,
    /// Their sum.
    pub total_seconds: f64,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The winner, then the next best, up to [`RANKED_LIMIT`] of them. Empty only if there were
    /// no candidates.
    pub ranked: Vec<Scored>,
    /// Why the winner won. Without candidates it means nothing.
    pub reason: DecisionReason,
    /// The arrival rate that the scores rest on; [`score`] wants it for further candidates.
    pub arrivals_per_rank: f64,
}

/// Ranks the candidates. Pure: the same snapshot gives the same answer, in whichever order the
/// candidates come, as long as their `last_chosen` differ.
///
/// Under `prefix` the winner is chosen as the [module's page](self) says and the rest follow by
/// total. `least-load` goes by requests in flight, `round-robin` by turn alone; both break ties
/// by turn, and both still report the score's parts.
pub fn select(config: &Config, candidates: &[CandidateView<'_>]) -> Selection {
    let field = Field::new(config, candidates.iter().map(Line::from));
    let evicted: Vec<f64> = candidates.iter().map(|view| view.evicted_ask_tokens).collect();
    let totals: Vec<f64> =
        evicted.iter().enumerate().map(|(place, evicted)| field.total(place, *evicted)).collect();
    let mut leaders = Leaders::new(config.policy, &field);
    for (place, total) in totals.iter().enumerate() {
        leaders.add(*total, place);
    }
    outcome(config, &leaders, &totals, |place| evicted[place])
}

/// The outcome where these lead: the totals of all that tie with the best are known.
fn outcome(
    config: &Config,
    leaders: &Leaders<'_>,
    totals: &[f64],
    evicted: impl Fn(usize) -> f64,
) -> Selection {
    let field = leaders.field;
    let arrivals_per_rank = field.arrivals_per_rank;
    let Some(winner) = leaders.winner(config, totals) else {
        return Selection { ranked: Vec::new(), reason: DecisionReason::Cold, arrivals_per_rank };
    };
    let others = leaders.places().filter(|place| *place != winner);
    let ranked = std::iter::once(winner).chain(others).take(RANKED_LIMIT).map(|index| {
        let parts = field.score(index, evicted(index));
        Scored { index, parts, total_seconds: parts.total_seconds() }
    });
    let reason = reason(config.policy, field, winner);
    Selection { ranked: ranked.collect(), reason, arrivals_per_rank }
}

/// Requests that a rank gets per second when they are shared evenly: the mean over the candidates.
pub fn arrivals_per_rank(candidates: &[CandidateView<'_>]) -> f64 {
    let sum: f64 = candidates.iter().map(|c| seconds(c.arrivals_per_second)).sum();
    sum / candidates.len().max(1) as f64
}

/// The score of one candidate, as [`select`] compares it: for those that want to know of
/// candidates beyond the ranked ones.
pub fn score(config: &Config, view: &CandidateView<'_>, arrivals_per_rank: f64) -> ScoreParts {
    let draft = Draft::new(config.eviction_weight, &Line::from(view));
    draft.parts(arrivals_per_rank, view.evicted_ask_tokens)
}

/// A time that can be compared: NaN and infinity are hopeless, negative ones nothing. In this form
/// two instructions, neither of them a jump.
#[inline]
fn seconds(value: f64) -> f64 {
    let value = if value < HOPELESS_SECONDS { value } else { HOPELESS_SECONDS };
    larger(value, 0.0)
}

/// The larger of two numbers that are none of them NaN. [`f64::max`] spends most of its time on NaN.
#[inline]
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The first candidates of those seen so far in their overall order, as many as are ranked.
struct Leaders<'a> {
    policy: Policy,
    field: &'a Field,
    /// Their totals and places.
    in_order: Vec<(f64, usize)>,
}

impl<'a> Leaders<'a> {
    fn new(policy: Policy, field: &'a Field) -> Self {
        Self { policy, field, in_order: Vec::with_capacity(RANKED_LIMIT + 1) }
    }

    /// Returns whether it is one of them.
    #[inline]
    fn add(&mut self, total: f64, place: usize) -> bool {
        let last = self.in_order.get(RANKED_LIMIT - 1);
        // Most are behind by their total alone.
        if self.policy == Policy::Prefix && last.is_some_and(|(last, _)| total > *last) {
            return false;
        }
        self.insert((total, place))
    }

    fn insert(&mut self, new: (f64, usize)) -> bool {
        let is_by_total = self.policy == Policy::Prefix;
        let is_before = |kept: &(f64, usize)| {
            (is_by_total && kept.0 < new.0) || self.overall(*kept, new).is_lt()
        };
        let at = self.in_order.iter().take_while(|kept| is_before(kept)).count();
        if at == RANKED_LIMIT {
            return false;
        }
        self.in_order.insert(at, new);
        self.in_order.truncate(RANKED_LIMIT);
        true
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        self.in_order.iter().map(|(_, place)| *place)
    }

    /// Totals up to this tie with the best one.
    fn tie_limit(&self, config: &Config) -> f64 {
        self.in_order.first().map_or(f64::INFINITY, |(best, _)| {
            best + config.tie_margin_seconds.max(config.tie_margin_fraction * best)
        })
    }

    /// A candidate whose total is above this neither leads nor ties with the best.
    fn limit(&self, config: &Config) -> f64 {
        let last = self.in_order.get(RANKED_LIMIT - 1);
        last.map_or(f64::INFINITY, |(last, _)| last.max(self.tie_limit(config)))
    }

    /// The best of those that tie with the best total, or of all where totals do not count.
    fn winner(&self, config: &Config, totals: &[f64]) -> Option<usize> {
        if self.policy != Policy::Prefix {
            return self.places().next();
        }
        let limit = self.tie_limit(config);
        let tied = totals.iter().enumerate().filter(|(_, total)| **total <= limit);
        tied.map(|(place, _)| place).min_by(|a, b| self.among_equals(*a, *b))
    }

    /// By the policy, totals aside. The place decides only between candidates that are equal in
    /// everything, turn included.
    #[inline]
    fn among_equals(&self, a: usize, b: usize) -> Ordering {
        let (left, right) = (&self.field.keys[a], &self.field.keys[b]);
        let by_policy = match self.policy {
            Policy::Prefix => right
                .cached_tokens
                .cmp(&left.cached_tokens)
                .then_with(|| left.booked_seconds.total_cmp(&right.booked_seconds)),
            Policy::LeastLoad => left.in_flight.cmp(&right.in_flight),
            Policy::RoundRobin => Ordering::Equal,
        };
        by_policy.then_with(|| left.last_chosen.cmp(&right.last_chosen)).then(a.cmp(&b))
    }

    /// By total first, where the policy goes by score.
    fn overall(&self, a: (f64, usize), b: (f64, usize)) -> Ordering {
        let by_total = match self.policy {
            Policy::Prefix => a.0.total_cmp(&b.0),
            Policy::LeastLoad | Policy::RoundRobin => Ordering::Equal,
        };
        by_total.then_with(|| self.among_equals(a.1, b.1))
    }
}

fn reason(policy: Policy, field: &Field, winner: usize) -> DecisionReason {
    let won = &field.keys[winner];
    match policy {
        // Others hold a hot prefix that the winner does not.
        Policy::Prefix if field.any_is_hot && !won.is_hot => DecisionReason::HotPrefix,
        Policy::Prefix if field.all_are_saturated => DecisionReason::AllSaturated,
        _ if field.keys.len() == 1 => DecisionReason::OnlyCandidate,
        Policy::LeastLoad => DecisionReason::LeastLoad,
        Policy::RoundRobin => DecisionReason::RoundRobin,
        Policy::Prefix if won.cached_tokens < field.longest => DecisionReason::WarmerRankTooBusy,
        Policy::Prefix if won.cached_tokens > 0 => DecisionReason::WarmPrefix,
        Policy::Prefix => DecisionReason::Cold,
    }
}
