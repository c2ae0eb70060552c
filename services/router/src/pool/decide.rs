//! A Route becomes a booked choice.
//!
//! Snapshot first (who may take it, what each holds, what each owes), then the pure choice of
//! `scheduling`, then the booking as a step of its own.

use domain::{
    BlockUnit, Decision, Evidence, EvidenceLevel, KeyList, LeaseId, Moment, Prompt, RejectReason,
    Route, ScoreParts,
};
use std::time::Duration;

use scheduling::{CandidateView, Config, Policy, SATURATED_SECONDS, Selection, select};

use super::lease::{BookedBlocks, Forecast, Lease, lease_id};
use super::measure::{Measure, cached_tokens};
use super::profile::Profile;
use super::rank::Standing;
use super::{Routed, State, has_room};
use crate::explain::Trace;

/// Fallbacks that a decision carries beside its choice.
const OTHERS: usize = 7;

/// What one eligible rank would do with the prompt.
pub(super) struct Prospect {
    /// Its place among the pool's ranks.
    pub(super) at: usize,
    /// The index that was asked, if any.
    mirror: Option<usize>,
    /// Which of the prompt's key lists fits that index.
    list: Option<usize>,
    pub(super) level: EvidenceLevel,
    measure: Option<Measure>,
    pub(super) matched_blocks: u32,
    pub(super) cached_tokens: u32,
    pub(super) uncached_tokens: u32,
    evicted_ask_tokens: f64,
    queue_delay_seconds: f64,
}

impl Prospect {
    fn prompt_blocks(&self) -> u32 {
        self.measure.map_or(0, |m| m.prompt_blocks())
    }

    fn found(&self) -> scheduling::Prompt {
        scheduling::Prompt {
            uncached_tokens: self.uncached_tokens,
            cached_tokens: self.cached_tokens,
            blocks: self.prompt_blocks(),
        }
    }
}

/// Which of a prompt's key lists speaks of a rank's cache.
struct Fitting {
    unit: BlockUnit,
    list: Option<usize>,
    /// What it is worth; without a list, the rank's level stays.
    level: Option<EvidenceLevel>,
}

impl Fitting {
    fn new(profile: &Profile, prompt: &Prompt) -> Self {
        let find = |unit: BlockUnit| prompt.keys.iter().position(|l: &KeyList| l.unit == unit);
        let token_list = profile.tokens.and_then(|t| find(t.unit).map(|list| (t.unit, list)));
        let (unit, list, level) = match (token_list, find(BlockUnit::TEXT)) {
            (Some((unit, list)), _) => (unit, Some(list), Some(EvidenceLevel::Model)),
            (None, Some(list)) => (BlockUnit::TEXT, Some(list), Some(EvidenceLevel::Text)),
            // Nothing to match, but the prompt will press on the cache all the same.
            (None, None) => (profile.tokens.map_or(BlockUnit::TEXT, |t| t.unit), None, None),
        };
        Self { unit, list, level }
    }
}

impl State {
    pub(super) fn route(&mut self, route: &Route, now: Moment) -> Routed {
        self.advance(now);
        let standings: Vec<Standing> = self.ranks.iter().map(|r| r.standing(route, now)).collect();
        let eligible = self.eligible(&standings);
        if eligible.is_empty() {
            let reason = if standings.contains(&Standing::Excluded) {
                RejectReason::AllExcluded
            } else {
                RejectReason::NoReadyBackend
            };
            self.match_prompt(None);
            let mut trace = Trace::new(route);
            self.note_barred(&standings, &mut trace);
            trace.rejected = Some(reason);
            return (Err(reason), trace);
        }
        self.seat(&eligible, route.prompt.as_ref());
        self.match_prompt(route.prompt.as_ref());
        let prospects = self.prospects(&eligible, route.prompt.as_ref(), now);
        let selection = self.choose(route, &prospects, now);
        let trace = self.explain(route, &standings, &prospects, &selection, now);
        let decision = self.book(route, &prospects, &selection, now);
        (Ok(decision), trace)
    }

    /// Ranks that may be chosen. Where every one left is broken, the one that failed longest ago
    /// is tried rather than nobody.
    fn eligible(&self, standings: &[Standing]) -> Vec<usize> {
        let of = |wanted: Standing| {
            standings.iter().enumerate().filter(move |(_, s)| **s == wanted).map(|(i, _)| i)
        };
        let eligible: Vec<usize> = of(Standing::Eligible).collect();
        if eligible.is_empty() {
            return of(Standing::Broken)
                .min_by_key(|&i| (self.ranks[i].breaker.last_failure(), self.ranks[i].last_chosen))
                .into_iter()
                .collect();
        }
        eligible
    }

    /// Gives every eligible rank its slot in the index that will be asked. Later the index must
    /// not change any more until the choice is made.
    fn seat(&mut self, eligible: &[usize], prompt: Option<&Prompt>) {
        let Some(prompt) = prompt else { return };
        for &at in eligible {
            let profile = self.ranks[at].profile;
            if profile.caches {
                let number = self.mirror(Fitting::new(&profile, prompt).unit);
                self.ensure_slot(at, number);
            }
        }
    }

    /// Looks the prompt up in every index that one of its key lists fits.
    fn match_prompt(&mut self, prompt: Option<&Prompt>) {
        for mirror in &mut self.mirrors {
            mirror.matches.clear();
            if let Some(list) = prompt.and_then(|p| p.keys.iter().find(|l| l.unit == mirror.unit)) {
                mirror.index.match_prefix(&list.keys, &mut mirror.matches);
                // Every rank's share will be asked for.
                mirror.index.list_all(&mut mirror.matches);
            }
        }
    }

    fn prospects(
        &mut self,
        eligible: &[usize],
        prompt: Option<&Prompt>,
        now: Moment,
    ) -> Vec<Prospect> {
        eligible
            .iter()
            .map(|&at| {
                let queue_delay_seconds = self.ranks[at].load.queue_delay_seconds(now);
                match prompt {
                    Some(prompt) => self.prospect(at, prompt, queue_delay_seconds),
                    None => Prospect {
                        at,
                        mirror: None,
                        list: None,
                        level: self.ranks[at].level,
                        measure: None,
                        matched_blocks: 0,
                        cached_tokens: 0,
                        uncached_tokens: 0,
                        evicted_ask_tokens: 0.0,
                        queue_delay_seconds,
                    },
                }
            })
            .collect()
    }

    fn prospect(&mut self, at: usize, prompt: &Prompt, queue_delay_seconds: f64) -> Prospect {
        let profile = self.ranks[at].profile;
        let Fitting { unit, list, level } = Fitting::new(&profile, prompt);
        let level = level.unwrap_or(self.ranks[at].level);
        let measure = Measure::new(unit, prompt, self.bytes_per_token);
        let mut prospect = Prospect {
            at,
            mirror: None,
            list,
            level: if profile.caches { level } else { EvidenceLevel::Model },
            measure: Some(measure),
            matched_blocks: 0,
            cached_tokens: 0,
            uncached_tokens: prompt.tokens,
            evicted_ask_tokens: 0.0,
            queue_delay_seconds,
        };
        if !profile.caches {
            return prospect;
        }
        let Some(number) = self.mirrors.iter().position(|m| m.unit == unit) else {
            return prospect;
        };
        prospect.mirror = Some(number);
        prospect.level = self.level(at, prospect.level, prospect.mirror);
        let mirror = &mut self.mirrors[number];
        let Some(slot) = self.ranks[at].slot(number) else { return prospect };
        prospect.matched_blocks = match list {
            Some(_) => mirror.index.matched(&mirror.matches, slot).map_or(0, |m| m.blocks),
            None => 0,
        };
        if self.answers.is_likely() {
            prospect.matched_blocks += mirror.matches.answer_blocks(slot);
        }
        let engine_block = profile.tokens.map_or(1, |t| t.engine_block);
        let cached = cached_tokens(unit, prompt, prospect.matched_blocks, engine_block);
        prospect.cached_tokens = (f64::from(cached) * mirror.feedback.trust(slot)) as u32;
        prospect.uncached_tokens = prompt.tokens - prospect.cached_tokens;
        let new_blocks = measure.prompt_blocks().saturating_sub(prospect.matched_blocks);
        let asks = mirror.index.asks_evicted_by(slot, new_blocks);
        prospect.evicted_ask_tokens = asks * measure.block_tokens();
        prospect
    }

    fn choose(&self, route: &Route, prospects: &[Prospect], now: Moment) -> Selection {
        let views: Vec<CandidateView<'_>> =
            prospects.iter().map(|p| self.candidate_view(p, now)).collect();
        if route.prompt.is_none() {
            return select(&Config { policy: Policy::LeastLoad, ..self.config }, &views);
        }
        select(&self.config, &views)
    }

    pub(super) fn candidate_view(&self, prospect: &Prospect, now: Moment) -> CandidateView<'_> {
        let rank = &self.ranks[prospect.at];
        CandidateView {
            matched_blocks: prospect.matched_blocks,
            cached_tokens: prospect.cached_tokens,
            uncached_tokens: prospect.uncached_tokens,
            queue_delay_seconds: prospect.queue_delay_seconds,
            network_seconds: rank.seen.network.as_secs_f64(),
            evicted_ask_tokens: prospect.evicted_ask_tokens,
            booked_seconds: rank.load.booked_seconds(now),
            arrivals_per_second: rank.load.arrivals_per_second(now),
            in_flight: rank.load.in_flight() + rank.load.foreign_requests(now).round() as u32,
            running: rank.load.running(),
            last_chosen: rank.last_chosen,
            saturated: prospect.queue_delay_seconds > SATURATED_SECONDS,
            fit: &rank.fit,
        }
    }

    fn book(
        &mut self,
        route: &Route,
        prospects: &[Prospect],
        selection: &Selection,
        now: Moment,
    ) -> Decision {
        let prospect = &prospects[selection.ranked[0].index];
        let blocks = route.prompt.as_ref().and_then(|p| self.book_blocks(p, prospect));
        let fits = has_room(&self.mirrors, blocks.as_ref());
        let parts = self.forecast(prospect, selection, fits, now);
        let forecast = Forecast {
            cached_tokens: prospect.cached_tokens,
            ttft_seconds: parts.ttft_seconds(),
            grain: self.grain(prospect),
            text_bytes: route.prompt.as_ref().map_or(0, |p| p.text_bytes),
        };
        let id = lease_id(self.number, self.next_lease);
        self.next_lease += 1;
        self.turn += 1;
        // A prompt that could not be rendered says nothing of the rank's own evidence.
        let unit = prospect.mirror.map(|number| self.mirrors[number].unit);
        if unit.is_none_or(|unit| unit == self.ranks[prospect.at].profile.unit()) {
            self.set_level(prospect.at, prospect.level);
        }
        let rank = &mut self.ranks[prospect.at];
        rank.last_chosen = self.turn;
        let network = rank.seen.network.as_secs_f64();
        let work = rank.load.work(&rank.fit, prospect.found(), network, now);
        rank.load.book(id, work, route.stream, now);
        rank.show_in_flight();
        let trial = rank.breaker.dispatched();
        let lease = Lease {
            rank: rank.key,
            at: now,
            heard: now,
            blocks,
            forecast,
            trial,
            first_token: false,
            generated: 0,
        };
        self.leases.insert(id, lease);
        self.metrics.leases.set(self.leases.len() as i64);
        self.metrics.decided(selection.reason);
        self.decision(id, prospects, selection, parts)
    }

    /// The winner's score, with the wait for room in its cache if it does not fit (`fits`) now.
    /// The choice goes without it: a prompt that flees from a full cache takes its prefix with
    /// it, and fills the next one.
    fn forecast(
        &self,
        prospect: &Prospect,
        selection: &Selection,
        fits: bool,
        now: Moment,
    ) -> ScoreParts {
        let mut parts = selection.ranked[0].parts;
        let load = &self.ranks[prospect.at].load;
        let room = load.room_delay_seconds(prospect.prompt_blocks(), fits, now);
        parts.queue_delay_seconds = parts.queue_delay_seconds.max(room);
        parts
    }

    /// Tokens that a prediction of cached tokens may be off by: one block.
    fn grain(&self, prospect: &Prospect) -> u32 {
        match (prospect.level, self.ranks[prospect.at].profile.tokens) {
            (EvidenceLevel::Model | EvidenceLevel::Feedback, Some(tokens)) => tokens.engine_block,
            _ => prospect.measure.map_or(1, |m| m.tokens(1)),
        }
    }

    fn book_blocks(&mut self, prompt: &Prompt, prospect: &Prospect) -> Option<BookedBlocks> {
        let (number, measure) = (prospect.mirror?, prospect.measure?);
        let slot = self.ranks[prospect.at].slot(number)?;
        let keys = prospect.list.map_or(&[][..], |list| &prompt.keys[list].keys);
        let keyed = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let extra = measure.prompt_blocks().saturating_sub(keyed);
        let mirror = &mut self.mirrors[number];
        let sample = mirror.feedback.sample(slot, keys);
        let mut booking = mirror.index.book(slot, keys, extra);
        if self.answers.is_likely() {
            booking.count_on_answer();
        }
        Some(BookedBlocks { mirror: number, booking, sample, started: false, measure, keyed })
    }

    fn decision(
        &self,
        lease: LeaseId,
        prospects: &[Prospect],
        selection: &Selection,
        parts: ScoreParts,
    ) -> Decision {
        let chosen = &prospects[selection.ranked[0].index];
        let ttft = parts.ttft_seconds();
        Decision {
            lease,
            chosen: self.ranks[chosen.at].candidate(),
            others: selection
                .ranked
                .iter()
                .skip(1)
                .take(OTHERS)
                .map(|s| self.ranks[prospects[s.index].at].candidate())
                .collect(),
            evidence: Evidence {
                matched_blocks: chosen.matched_blocks,
                predicted_cached_tokens: chosen.cached_tokens,
                predicted_ttft: Duration::try_from_secs_f64(ttft).unwrap_or(Duration::MAX),
                parts,
                level: chosen.level,
                reason: selection.reason,
            },
        }
    }

    /// A change of level is told once, both ways.
    pub(super) fn set_level(&mut self, at: usize, level: EvidenceLevel) {
        let rank = &mut self.ranks[at];
        if rank.level != level {
            tracing::info!(
                model = %self.model, backend.id = %rank.id.backend, rank = rank.id.rank,
                from = rank.level.as_str(), to = level.as_str(), "evidence level changes",
            );
            rank.level = level;
            rank.metrics.evidence(level);
            self.metrics.evidence_changed(level);
        }
    }
}
