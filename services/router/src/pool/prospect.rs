//! What every rank would do with a prompt.

use domain::{BlockUnit, EvidenceLevel, KeyList, Moment, Prompt};
use kv_index::Slot;
use scheduling::hot::least_load;
use scheduling::{CandidateView, Fading, SATURATED_SECONDS};

use super::State;
use super::measure::{Measure, cached_tokens};
use super::profile::TokenBlocks;
use super::ranks::Digest;

/// What one eligible rank would do with the prompt.
pub(super) struct Prospect {
    /// Its place among the pool's ranks.
    pub(super) at: usize,
    /// The index that was asked, if any.
    pub(super) mirror: Option<usize>,
    /// Which of the prompt's key lists fits that index.
    pub(super) list: Option<usize>,
    pub(super) level: EvidenceLevel,
    pub(super) measure: Option<Measure>,
    pub(super) slot: Option<Slot>,
    pub(super) matched_blocks: u32,
    pub(super) cached_tokens: u32,
    pub(super) uncached_tokens: u32,
    hot_tokens: u32,
    queue_delay_seconds: f64,
    booked_seconds: f64,
}

impl Prospect {
    pub(super) fn prompt_blocks(&self) -> u32 {
        self.measure.map_or(0, |m| m.prompt_blocks())
    }

    pub(super) fn found(&self) -> scheduling::Prompt {
        scheduling::Prompt {
            uncached_tokens: self.uncached_tokens,
            cached_tokens: self.cached_tokens,
            blocks: self.prompt_blocks(),
        }
    }

    /// The rank as the choice sees it, but for what the prompt would evict there.
    pub(super) fn view<'a>(&self, rank: &'a Digest, fading: &mut Fading) -> CandidateView<'a> {
        let (load, now) = (&rank.load, fading.now());
        CandidateView {
            matched_blocks: self.matched_blocks,
            cached_tokens: self.cached_tokens,
            uncached_tokens: self.uncached_tokens,
            hot_tokens: self.hot_tokens,
            queue_delay_seconds: self.queue_delay_seconds,
            network_seconds: rank.network_seconds,
            evicted_ask_tokens: 0.0,
            booked_seconds: self.booked_seconds,
            arrivals_per_second: load.arrivals_per_second(fading),
            in_flight: load.all_in_flight(now),
            running: load.running(),
            last_chosen: rank.last_chosen,
            saturated: self.queue_delay_seconds > SATURATED_SECONDS,
            fit: &rank.fit,
        }
    }
}

/// A prompt as the ranks' caches are asked for it.
pub(super) struct Asked<'a> {
    pub(super) prompt: Option<&'a Prompt>,
    /// One for each kind of ranks that there is; of a prompt only.
    readings: Vec<Reading>,
    pub(super) now: Moment,
}

impl<'a> Asked<'a> {
    pub(super) fn by(&self, tokens: Option<TokenBlocks>) -> Option<(&'a Prompt, &Reading)> {
        let reading = self.readings.iter().find(|reading| reading.tokens == tokens)?;
        Some((self.prompt?, reading))
    }
}

/// How a prompt is read where the engine's tokens are known in these blocks, or not at all. Most
/// ranks of a pool read it alike.
pub(super) struct Reading {
    tokens: Option<TokenBlocks>,
    unit: BlockUnit,
    /// Which of the prompt's key lists speaks of the cache.
    list: Option<usize>,
    /// What it is worth; without a list, the rank's level stays.
    level: Option<EvidenceLevel>,
    /// The index of the unit.
    pub(super) mirror: usize,
    pub(super) measure: Measure,
}

impl Reading {
    fn new(tokens: Option<TokenBlocks>, prompt: &Prompt, state: &mut State) -> Self {
        let find = |unit: BlockUnit| prompt.keys.iter().position(|l: &KeyList| l.unit == unit);
        let token_list = tokens.and_then(|t| find(t.unit).map(|list| (t.unit, list)));
        let (unit, list, level) = match (token_list, find(BlockUnit::TEXT)) {
            (Some((unit, list)), _) => (unit, Some(list), Some(EvidenceLevel::Model)),
            (None, Some(list)) => (BlockUnit::TEXT, Some(list), Some(EvidenceLevel::Text)),
            // Nothing to match, but the prompt will press on the cache all the same.
            (None, None) => (tokens.map_or(BlockUnit::TEXT, |t| t.unit), None, None),
        };
        let measure = Measure::new(unit, prompt, state.bytes_per_token);
        Self { tokens, unit, list, level, mirror: state.mirror(unit), measure }
    }
}

impl State {
    /// Reads the prompt, and gives every eligible rank its slot in the index that will be asked.
    /// Later the index must not change any more until the choice is made.
    pub(super) fn consult<'a>(
        &mut self,
        prompt: Option<&'a Prompt>,
        eligible: &[usize],
        now: Moment,
    ) -> Asked<'a> {
        let mut asked = Asked { prompt, readings: Vec::new(), now };
        let Some(prompt) = prompt else { return asked };
        for &at in eligible {
            let Digest { caches, tokens, .. } = *self.ranks.digest(at);
            let known = asked.readings.iter().find(|reading| reading.tokens == tokens);
            let mirror = known.map(|reading| reading.mirror).unwrap_or_else(|| {
                let reading = Reading::new(tokens, prompt, self);
                let mirror = reading.mirror;
                asked.readings.push(reading);
                mirror
            });
            if caches && self.ranks.slot(at, mirror).is_none() {
                self.ensure_slot(at, mirror);
            }
        }
        self.ranks.refresh();
        asked
    }

    /// Looks the prompt up in every index that one of its key lists fits.
    pub(super) fn match_prompt(&mut self, prompt: Option<&Prompt>) {
        for mirror in &mut self.mirrors {
            mirror.matches.clear();
            mirror.held.clear();
            mirror.hot_blocks = 0;
            if let Some(list) = prompt.and_then(|p| p.keys.iter().find(|l| l.unit == mirror.unit)) {
                mirror.index.match_prefix(&list.keys, &mut mirror.matches);
                mirror.index.blocks_by_slot(&mirror.matches, &mut mirror.held);
                let demand = mirror.index.demand(&mirror.matches, least_load(mirror.index.ranks()));
                let hot = demand.filter(|demand| !demand.is_pending);
                mirror.hot_blocks = hot.map_or(0, |demand| demand.blocks);
            }
        }
    }

    /// What the rank at this place would do with the prompt.
    #[inline]
    pub(super) fn prospect(&self, at: usize, asked: &Asked<'_>) -> Prospect {
        let rank = self.ranks.digest(at);
        let booked_seconds = rank.load.booked_seconds(asked.now);
        let mut prospect = Prospect {
            at,
            mirror: None,
            list: None,
            level: rank.level,
            measure: None,
            slot: None,
            matched_blocks: 0,
            cached_tokens: 0,
            uncached_tokens: 0,
            hot_tokens: 0,
            queue_delay_seconds: booked_seconds + rank.load.foreign_seconds(asked.now),
            booked_seconds,
        };
        let Some((prompt, reading)) = asked.by(rank.tokens) else { return prospect };
        let level = reading.level.unwrap_or(rank.level);
        prospect.list = reading.list;
        prospect.level = if rank.caches { level } else { EvidenceLevel::Model };
        prospect.measure = Some(reading.measure);
        prospect.uncached_tokens = prompt.tokens;
        if !rank.caches {
            return prospect;
        }
        prospect.mirror = Some(reading.mirror);
        let Some(slot) = self.ranks.slot(at, reading.mirror) else { return prospect };
        prospect.slot = Some(slot);
        let mirror = &self.mirrors[reading.mirror];
        prospect.level = mirror.level(slot, prospect.level);
        prospect.matched_blocks = mirror.held(slot);
        if self.answers.is_likely() {
            prospect.matched_blocks += mirror.matches.answer_blocks(slot);
        }
        if prospect.matched_blocks > 0 {
            let engine_block = rank.tokens.map_or(1, |t| t.engine_block);
            let cached = cached_tokens(reading.unit, prompt, prospect.matched_blocks, engine_block);
            prospect.cached_tokens = (f64::from(cached) * mirror.feedback.trust(slot)) as u32;
            if prospect.matched_blocks >= mirror.hot_blocks {
                let hot = mirror.hot_blocks;
                prospect.hot_tokens = cached_tokens(reading.unit, prompt, hot, engine_block);
            }
        }
        prospect.uncached_tokens = prompt.tokens - prospect.cached_tokens;
        prospect
    }

    /// What the prompt would evict from the rank, of which it has so many blocks.
    pub(super) fn evicted_ask_tokens(&mut self, prospect: &Prospect) -> f64 {
        match (prospect.mirror, prospect.slot, prospect.measure) {
            (Some(mirror), Some(slot), Some(measure)) => {
                self.mirrors[mirror].evicted_ask_tokens(slot, &measure, prospect.matched_blocks)
            }
            _ => 0.0,
        }
    }
}
