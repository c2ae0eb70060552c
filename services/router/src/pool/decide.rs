//! A Route becomes a booked choice.
//!
//! Snapshot first (who may take it, what each holds, what each owes), then the pure choice of
//! `scheduling`, then the booking as a step of its own.

use std::time::Duration;

use domain::{
    Decision, DecisionReason, Evidence, EvidenceLevel, LeaseId, Moment, Prompt, RejectReason,
    Route, ScoreParts,
};
use scheduling::{RANKED_LIMIT, Selection};

use super::lease::{BookedBlocks, Forecast, Lease, Size};
use super::measure::cached_tokens;
use super::prospect::{Asked, Prospect};
use super::rank::Eligibility;
use super::{Routed, State, has_room};
use crate::explain::Trace;
use crate::pacing::Hold;

/// Fallbacks that a decision carries beside its choice.
const OTHERS: usize = RANKED_LIMIT - 1;

impl State {
    pub(super) fn route(&mut self, route: &Route, now: Moment) -> Routed {
        self.advance(now);
        self.ranks.refresh();
        let mut eligibilities = self.eligibilities(route, now);
        let eligible = self.eligible(&eligibilities);
        for at in &eligible {
            // Those that are asked rather than nobody as well.
            if let Some(eligibility) = eligibilities.get_mut(*at) {
                *eligibility = Eligibility::Eligible;
            }
        }
        if eligible.is_empty() {
            let reason = if eligibilities.contains(&Eligibility::Excluded) {
                RejectReason::AllExcluded
            } else {
                RejectReason::NoReadyBackend
            };
            self.match_prompt(None);
            let mut trace = Trace::new(route);
            self.note_barred(&eligibilities, &mut trace);
            trace.rejected = Some(reason);
            return (Err(reason), trace);
        }
        let asked = self.consult(route.prompt.as_ref(), &eligible, now);
        self.match_prompt(route.prompt.as_ref());
        let mut choice = self.choose(&asked, &eligible);
        // From now on by their places among all ranks.
        let ranked = &mut choice.selection.ranked;
        ranked.iter_mut().for_each(|scored| scored.index = eligible[scored.index]);
        let trace = self.explain(route, &asked, &choice, (&eligibilities, &eligible));
        let decision = self.book(route, &asked, &choice.selection);
        (Ok(decision), trace)
    }

    /// What stands against each rank; empty where nothing stands against any.
    fn eligibilities(&self, route: &Route, now: Moment) -> Vec<Eligibility> {
        let is_plain = route.model == self.model && route.excluded.is_empty();
        if is_plain && self.ranks.are_all_open() {
            return Vec::new();
        }
        let eligibility = |at| match is_plain && self.ranks.is_open(at) {
            true => Eligibility::Eligible,
            false => self.ranks[at].eligibility(route, now),
        };
        (0..self.ranks.len()).map(eligibility).collect()
    }

    /// Ranks that may be chosen. Where there are none but such as are held back or broken, they are
    /// asked rather than nobody: those that are back, else the one that is full for the shortest
    /// time, else the broken one that failed longest ago.
    fn eligible(&self, eligibilities: &[Eligibility]) -> Vec<usize> {
        let of = |wanted: Eligibility| {
            eligibilities.iter().enumerate().filter(move |(_, s)| **s == wanted).map(|(i, _)| i)
        };
        if eligibilities.is_empty() {
            return (0..self.ranks.len()).collect();
        }
        let mut eligible = Vec::with_capacity(eligibilities.len());
        eligible.extend(of(Eligibility::Eligible));
        if eligible.is_empty() {
            eligible.extend(of(Eligibility::Held(Hold::Returning)));
        }
        if eligible.is_empty() {
            let full = |(at, eligibility): (usize, &Eligibility)| match eligibility {
                Eligibility::Held(Hold::Full { until }) => Some((*until, at)),
                _ => None,
            };
            let first = eligibilities.iter().enumerate().filter_map(full).min();
            eligible.extend(first.map(|(_, at)| at));
        }
        if eligible.is_empty() {
            let longest_ago =
                |&i: &usize| (self.ranks[i].breaker.last_failure(), self.ranks[i].last_chosen);
            eligible.extend(of(Eligibility::Broken).min_by_key(longest_ago));
        }
        eligible
    }

    fn book(&mut self, route: &Route, asked: &Asked<'_>, selection: &Selection) -> Decision {
        let now = asked.now;
        let ranked = selection.ranked.iter().take(1 + OTHERS);
        let others: Vec<usize> = ranked.skip(1).map(|scored| scored.index).collect();
        let prospect = &self.prospect(selection.ranked[0].index, asked);
        let blocks = route.prompt.as_ref().and_then(|p| self.book_blocks(p, prospect, now));
        let fits = has_room(&self.mirrors, blocks.as_ref());
        let found = self.found_after_wait(blocks.as_ref(), prospect, asked, fits);
        let parts = self.forecast(prospect, selection, &found, fits, now);
        let cached_tokens = found.cached_tokens;
        let forecast = Forecast {
            cached_tokens,
            ttft_seconds: parts.ttft_seconds(),
            grain: self.grain(prospect),
            text_bytes: route.prompt.as_ref().map_or(0, |p| p.text_bytes),
        };
        let id = self.new_lease();
        self.turn += 1;
        if let Some(prompt) = &route.prompt {
            self.note_rendering(prompt);
        }
        self.relevel(prospect.at);
        let rank = &mut self.ranks[prospect.at];
        rank.last_chosen = self.turn;
        let network = rank.seen.network.as_secs_f64();
        let work = rank.load.work(&rank.fit, found, network, now);
        rank.load.book(id, work, route.stream, now);
        rank.show_in_flight();
        let trial = rank.breaker.dispatched();
        let lease = Lease {
            rank: rank.key,
            at: now,
            heard: now,
            blocks,
            forecast,
            size: Size {
                tokens: route.prompt.as_ref().map_or(0, |p| p.tokens),
                text_bytes: forecast.text_bytes,
                uncached_tokens: found.uncached_tokens,
            },
            stream: route.stream,
            trial,
            first_token: false,
            generated: 0,
            key: None,
            adopted: false,
        };
        self.keep(id, lease);
        self.metrics.decided(selection.reason);
        self.decision(id, (prospect, cached_tokens), &others, (parts, selection.reason))
    }

    /// The winner's score, with the wait for room in its cache if it does not fit (`fits`) now,
    /// and with the prefill of what it will not find then. The choice goes without both: a prompt
    /// that flees from a full cache takes its prefix with it, and fills the next one.
    fn forecast(
        &self,
        prospect: &Prospect,
        selection: &Selection,
        found: &scheduling::Prompt,
        fits: bool,
        now: Moment,
    ) -> ScoreParts {
        let rank = &self.ranks[prospect.at];
        let room = rank.load.room_delay_seconds(prospect.prompt_blocks(), fits, now);
        let found = (prospect.found(), *found);
        scheduling::forecast(selection.ranked[0].parts, &rank.fit.coefficients(), found, room)
    }

    /// What a booked prompt will find when its turn comes: what the winner holds now, less what
    /// will have been evicted for the bookings before it.
    fn found_after_wait(
        &self,
        blocks: Option<&BookedBlocks>,
        prospect: &Prospect,
        asked: &Asked<'_>,
        fits: bool,
    ) -> scheduling::Prompt {
        let now = prospect.found();
        let rank = &self.ranks[prospect.at];
        let (Some(blocks), Some(prompt)) = (blocks, asked.prompt) else { return now };
        let mirror = &self.mirrors[blocks.mirror];
        let waits = rank.load.booked_seconds(asked.now) > 0.0
            || rank.load.room_delay_seconds(prospect.prompt_blocks(), fits, asked.now) > 0.0;
        if !waits || now.cached_tokens == 0 || !mirror.index.may_lose(&blocks.booking) {
            return now;
        }
        let of_lease = |id| self.leases.get(&id).and_then(|lease| lease.blocks.as_ref());
        let before = rank.load.youngest_first().filter_map(of_lease);
        let before = before.filter(|other| other.mirror == blocks.mirror).map(|b| &b.booking);
        let found = mirror.index.found_after(&blocks.booking, before);
        let engine_block = rank.profile.tokens.map_or(1, |tokens| tokens.engine_block);
        let then = cached_tokens(mirror.unit, prompt, found, engine_block).min(now.cached_tokens);
        let lost = now.cached_tokens - then;
        scheduling::Prompt {
            cached_tokens: then,
            uncached_tokens: now.uncached_tokens + lost,
            ..now
        }
    }

    /// Tokens that a prediction of cached tokens may be off by: one block.
    fn grain(&self, prospect: &Prospect) -> u32 {
        match (prospect.level, self.ranks[prospect.at].profile.tokens) {
            (EvidenceLevel::Model | EvidenceLevel::Feedback, Some(tokens)) => tokens.engine_block,
            _ => prospect.measure.map_or(1, |m| m.tokens(1)),
        }
    }

    fn book_blocks(
        &mut self,
        prompt: &Prompt,
        prospect: &Prospect,
        now: Moment,
    ) -> Option<BookedBlocks> {
        let (number, measure) = (prospect.mirror?, prospect.measure?);
        let slot = prospect.slot?;
        let keys = prospect.list.map_or(&[][..], |list| &prompt.keys[list].keys);
        let keyed = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let extra = measure.prompt_blocks().saturating_sub(keyed);
        let mirror = &mut self.mirrors[number];
        let mut sample = mirror.feedback.sample(slot, keys);
        if self.ranks[prospect.at].load.has_line(now) {
            sample.stands_in_line();
        }
        let mut booking = mirror.index.book(slot, keys, extra);
        if self.answers.is_likely() {
            booking.count_on_answer();
        }
        Some(BookedBlocks { mirror: number, booking, sample, started: false, measure, keyed })
    }

    fn decision(
        &self,
        lease: LeaseId,
        (chosen, cached_tokens): (&Prospect, u32),
        others: &[usize],
        (parts, reason): (ScoreParts, DecisionReason),
    ) -> Decision {
        let ttft = parts.ttft_seconds();
        Decision {
            lease,
            chosen: self.ranks[chosen.at].candidate(),
            others: others.iter().map(|at| self.ranks[*at].candidate()).collect(),
            evidence: Evidence {
                matched_blocks: chosen.matched_blocks,
                predicted_cached_tokens: cached_tokens,
                predicted_ttft: Duration::try_from_secs_f64(ttft).unwrap_or(Duration::MAX),
                parts,
                level: chosen.level,
                reason,
            },
        }
    }
}
