//! Candidates as a choice goes over them: what is read of each again and again, side by side.
//!
//! A choice among a thousand goes over all of them several times. What those rounds read is taken
//! from each candidate once; the candidate itself is not looked at again.

use std::ops::Range;

use domain::ScoreParts;

use super::{CandidateView, Config, larger, seconds};
use crate::Coefficients;
use crate::fit::{STEP_TOKENS, pairs};

/// What neither the prompt nor the moment changes in a rank's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    network_seconds: f64,
    /// The wait for the end of a step that only decodes.
    step_wait_seconds: f64,
    /// By how much a step is longer because some decode in it.
    decode_seconds: f64,
    fixed_seconds: f64,
    per_token_seconds: f64,
    per_pair_seconds: f64,
}

impl Terms {
    /// Of a rank at this distance, with this prefill time, where so many requests decode.
    pub fn new(network_seconds: f64, fit: &Coefficients, running: u32) -> Self {
        Self {
            network_seconds: seconds(network_seconds + fit.latency_seconds),
            step_wait_seconds: fit.step_wait_seconds(running),
            decode_seconds: fit.decode_seconds(1.0, running),
            fixed_seconds: fit.fixed_seconds,
            per_token_seconds: fit.per_token_seconds,
            per_pair_seconds: fit.per_pair_seconds,
        }
    }

    /// [`Coefficients::prefill_seconds`].
    #[inline]
    fn prefill_seconds(&self, uncached: u32, cached: u32) -> f64 {
        let steps = 1.0 + f64::from(uncached / STEP_TOKENS);
        let tokens = f64::from(uncached);
        let of_pairs = self.per_pair_seconds * pairs(uncached, cached);
        let of_tokens = self.per_token_seconds * tokens + of_pairs;
        self.fixed_seconds + of_tokens + steps * self.decode_seconds
    }
}

/// A candidate, but for what a prompt would evict there. As [`CandidateView`], whose fields these
/// are, for callers that keep them apart.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Its share in the score that is known beforehand.
    pub terms: Terms,
    /// See [`CandidateView::cached_tokens`].
    pub cached_tokens: u32,
    /// See [`CandidateView::uncached_tokens`].
    pub uncached_tokens: u32,
    /// See [`CandidateView::hot_tokens`].
    pub hot_tokens: u32,
    /// See [`CandidateView::in_flight`].
    pub in_flight: u32,
    /// See [`CandidateView::queue_delay_seconds`].
    pub queue_delay_seconds: f64,
    /// See [`CandidateView::booked_seconds`].
    pub booked_seconds: f64,
    /// See [`CandidateView::arrivals_per_second`].
    pub arrivals_per_second: f64,
    /// See [`CandidateView::last_chosen`].
    pub last_chosen: u64,
    /// See [`CandidateView::saturated`].
    pub saturated: bool,
}

impl From<&CandidateView<'_>> for Line {
    fn from(view: &CandidateView<'_>) -> Self {
        Self {
            terms: Terms::new(view.network_seconds, view.fit, view.running),
            cached_tokens: view.cached_tokens,
            uncached_tokens: view.uncached_tokens,
            hot_tokens: view.hot_tokens,
            in_flight: view.in_flight,
            queue_delay_seconds: view.queue_delay_seconds,
            booked_seconds: view.booked_seconds,
            arrivals_per_second: view.arrivals_per_second,
            last_chosen: view.last_chosen,
            saturated: view.saturated,
        }
    }
}

/// A score that lacks what is known later: how often requests come on average, and what the
/// prompt would evict.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    network_seconds: f64,
    wait_seconds: f64,
    /// What the request itself waits for: the two above, and the prefill.
    own_seconds: f64,
    prefill_seconds: f64,
    /// The prefill if the hot tokens had to be computed.
    whole_seconds: f64,
    queue_delay_seconds: f64,
    arrivals_per_second: f64,
    /// Cost of evicting a cached token, for each time that it was asked for.
    evicted_seconds: f64,
}

impl Draft {
    #[inline(always)]
    pub(super) fn new(eviction_weight: f64, line: &Line) -> Self {
        let Line { terms, cached_tokens: cached, uncached_tokens: uncached, .. } = line;
        let prefill = terms.prefill_seconds(*uncached, *cached);
        let whole = match line.hot_tokens.min(*cached) {
            0 => prefill,
            hot => terms.prefill_seconds(uncached + hot, cached - hot),
        };
        let queue_delay = seconds(line.queue_delay_seconds);
        // Both pass at once.
        let wait = larger(queue_delay, terms.step_wait_seconds);
        Self {
            network_seconds: terms.network_seconds,
            wait_seconds: wait,
            own_seconds: terms.network_seconds + wait + prefill,
            prefill_seconds: prefill,
            whole_seconds: whole,
            queue_delay_seconds: queue_delay,
            arrivals_per_second: seconds(line.arrivals_per_second),
            evicted_seconds: eviction_weight * terms.per_token_seconds,
        }
    }

    /// The score where so much would be evicted, in tokens times asks.
    #[inline(always)]
    pub(super) fn parts(&self, arrivals_per_rank: f64, evicted_ask_tokens: f64) -> ScoreParts {
        let (eviction, others, hot) = self.beside_own(arrivals_per_rank, evicted_ask_tokens);
        ScoreParts {
            network_seconds: self.network_seconds,
            queue_delay_seconds: self.wait_seconds,
            prefill_seconds: self.prefill_seconds,
            eviction_cost_seconds: eviction,
            others_delay_seconds: others,
            hot_prefix_seconds: hot,
        }
    }

    /// The sum of the score's parts, to the last bit: they are added up in the same order.
    #[inline(always)]
    fn total(&self, arrivals_per_rank: f64, evicted_ask_tokens: f64) -> f64 {
        let (eviction, others, hot) = self.beside_own(arrivals_per_rank, evicted_ask_tokens);
        self.own_seconds + eviction + others + hot
    }

    /// What it costs others: by what is evicted, by their wait, and by a hot prefix's use.
    #[inline(always)]
    fn beside_own(&self, arrivals_per_rank: f64, evicted_ask_tokens: f64) -> (f64, f64, f64) {
        let eviction = self.evicted_seconds * evicted_ask_tokens;
        // A rank that had little traffic so far is about to get its share of it.
        let arrivals = larger(self.arrivals_per_second, arrivals_per_rank);
        let others_of =
            |prefill: f64| others_delay(arrivals, self.queue_delay_seconds, prefill + eviction);
        let (prefill, whole) = (self.prefill_seconds, self.whole_seconds);
        let others = others_of(prefill);
        let hot = if whole == prefill { 0.0 } else { whole - prefill + others_of(whole) - others };
        (seconds(eviction), seconds(others), seconds(hot))
    }
}

/// Seconds that `p` seconds of work, begun after a queue of `q`, cost the requests that come to the
/// rank later, `λ` of them per second. The work is the prompt's own prefill and that share of what
/// it evicts which will have to be computed again.
///
/// Those that come within the next `q` seconds find `p` more work before them and wait `p` longer.
/// Those that come in the `p` seconds after that wait for what is then left of it, `p / 2` on
/// average. In sum `λ · p · (q + p / 2)`.
#[inline]
fn others_delay(arrivals_per_second: f64, queue_delay: f64, work: f64) -> f64 {
    arrivals_per_second * work * (queue_delay + work / 2.0)
}

/// What orders a candidate beside its total.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) booked_seconds: f64,
    pub(super) last_chosen: u64,
    pub(super) cached_tokens: u32,
    pub(super) in_flight: u32,
    /// Whether some of its cached tokens do not count for it.
    pub(super) is_hot: bool,
    is_saturated: bool,
}

impl Key {
    #[inline(always)]
    fn new(line: &Line) -> Self {
        Self {
            booked_seconds: line.booked_seconds,
            last_chosen: line.last_chosen,
            cached_tokens: line.cached_tokens,
            in_flight: line.in_flight,
            is_hot: line.hot_tokens > 0,
            is_saturated: line.saturated,
        }
    }
}

/// All candidates of one choice.
#[derive(Debug)]
pub struct Field {
    drafts: Vec<Draft>,
    pub(super) keys: Vec<Key>,
    pub(super) arrivals_per_rank: f64,
    /// The most cached tokens that any has.
    pub(super) longest: u32,
    pub(super) any_is_hot: bool,
    pub(super) all_are_saturated: bool,
}

impl Field {
    /// These candidates, whose places are those in the order that they come in. They are gone over
    /// twice.
    #[inline]
    pub fn new(config: &Config, lines: impl Iterator<Item = Line> + Clone) -> Self {
        let weight = config.eviction_weight;
        let drafts: Vec<Draft> = lines.clone().map(|line| Draft::new(weight, &line)).collect();
        let keys: Vec<Key> = lines.map(|line| Key::new(&line)).collect();
        let arrivals: f64 = drafts.iter().map(|draft| draft.arrivals_per_second).sum();
        Self {
            arrivals_per_rank: arrivals / drafts.len().max(1) as f64,
            longest: keys.iter().map(|key| key.cached_tokens).max().unwrap_or(0),
            any_is_hot: keys.iter().any(|key| key.is_hot),
            all_are_saturated: keys.iter().all(|key| key.is_saturated),
            drafts,
            keys,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.drafts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// The score of the candidate at this place where so much would be evicted: see
    /// [`CandidateView::evicted_ask_tokens`].
    #[inline]
    pub fn score(&self, place: usize, evicted_ask_tokens: f64) -> ScoreParts {
        self.drafts[place].parts(self.arrivals_per_rank, evicted_ask_tokens)
    }

    /// The sum of [`Self::score`].
    #[inline]
    pub(super) fn total(&self, place: usize, evicted_ask_tokens: f64) -> f64 {
        self.drafts[place].total(self.arrivals_per_rank, evicted_ask_tokens)
    }

    /// [`Self::total`] of several candidates, one after the other.
    pub(super) fn total_of(&self, places: Range<usize>, evicted: &[f64], totals: &mut [f64]) {
        let arrivals = self.arrivals_per_rank;
        let each = self.drafts[places].iter().zip(evicted).zip(totals);
        each.for_each(|((draft, evicted), total)| *total = draft.total(arrivals, *evicted));
    }

    /// The totals where nothing would be evicted: what each is at least.
    pub(super) fn bounds(&self) -> Vec<f64> {
        let arrivals = self.arrivals_per_rank;
        self.drafts.iter().map(|draft| draft.total(arrivals, 0.0)).collect()
    }
}
