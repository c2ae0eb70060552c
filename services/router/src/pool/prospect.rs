//! What every rank would do with a prompt.

use std::sync::Arc;

use domain::{BlockKey, BlockUnit, EvidenceLevel, KeyList, Moment, Prompt};
use kv_index::Slot;
use scheduling::copies;
use scheduling::hot::least_load;

use super::keeper::Kept;
use super::measure::{Measure, cached_tokens};
use super::ranks::{CacheLookup, Ranks};
use super::{Mirror, State};

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
}

/// What of a prompt a rank would find in its cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) matched_blocks: u32,
    pub(super) cached_tokens: u32,
    pub(super) uncached_tokens: u32,
    /// See [`CandidateView::hot_tokens`](scheduling::CandidateView::hot_tokens).
    pub(super) hot_tokens: u32,
    /// Where that was looked up: by which reading, and in which slot of its index.
    pub(super) cache: Option<(u32, Slot)>,
}

impl Found {
    /// Whether it was looked up by that reading.
    pub(super) fn is_read_by(&self, reading: u32) -> bool {
        self.cache.is_some_and(|(by, _)| by == reading)
    }
}

/// A prompt as the ranks' caches are asked for it.
pub(super) struct Asked<'a> {
    pub(super) prompt: Option<&'a Prompt>,
    /// One for each kind of ranks that there is; of a prompt only.
    readings: Vec<Reading>,
    /// By the ranks' places; of a prompt only.
    sources: Arc<[Option<Source>]>,
    pub(super) now: Moment,
    /// Whether prompts go on with earlier answers.
    counts_on_answers: bool,
}

impl<'a> Asked<'a> {
    #[inline]
    fn by(&self, unit: Option<BlockUnit>) -> Option<(&'a Prompt, &Reading)> {
        let reading = self.readings.iter().find(|reading| reading.of == unit)?;
        Some((self.prompt?, reading))
    }

    /// Whether the rank's kind has a reading, and the rank a slot in its index.
    #[inline]
    fn can_ask(&self, ranks: &Ranks, at: usize) -> bool {
        let lookup = ranks.lookup(at);
        let slot = |reading: &Reading| ranks.slot(at, reading.mirror);
        let reading = self.readings.iter().find(|reading| reading.of == lookup.unit);
        reading.is_some_and(|reading| !lookup.caches || slot(reading).is_some())
    }

    #[inline(always)]
    pub(super) fn found(&self, ranks: &Ranks, mirrors: &[Mirror], at: usize) -> Found {
        let Some(prompt) = self.prompt else { return Found::default() };
        let Some(source) = self.sources[at] else { return Found::default() };
        let mut found = Found { uncached_tokens: prompt.tokens, ..Found::default() };
        let Some(slot) = source.slot else { return found };
        found.cache = Some((source.reading, slot));
        let reading = &self.readings[source.reading as usize];
        let mirror = &mirrors[reading.mirror];
        let mut matched = mirror.matched_blocks(slot);
        if self.counts_on_answers {
            matched += mirror.matches.answer_blocks(slot);
        }
        if matched > 0 {
            let engine_block = ranks.lookup(at).engine_block;
            reading.find(prompt, (mirror, slot), (engine_block, matched), &mut found);
        }
        found
    }

    /// Cached tokens that the prompt would evict at a place, with what a further copy keeps out:
    /// see [`CandidateView::evicted_ask_tokens`](scheduling::CandidateView::evicted_ask_tokens).
    #[inline]
    pub(super) fn evicted_ask_tokens(
        &self,
        mirrors: &mut [Mirror],
        (place, found): (usize, &Found),
        kept: Option<&Kept>,
    ) -> f64 {
        let Some((number, slot)) = found.cache else { return 0.0 };
        let Reading { mirror, full_blocks, block_tokens, .. } = self.readings[number as usize];
        let mirror = &mut mirrors[mirror];
        let new_blocks = full_blocks.saturating_sub(found.matched_blocks);
        let mut asks = mirror.index.asks_evicted_by(slot, new_blocks);
        if let Some(copies) = kept.and_then(|kept| kept.further(place, found)) {
            let kept_out = mirror.index.asks_evicted_by(slot, copies.blocks);
            asks += copies::price(kept_out, copies);
        }
        asks * block_tokens
    }

    /// The key that names the prompt's leading blocks, as a reading has them.
    pub(super) fn key_at(&self, reading: u32, blocks: u32) -> Option<BlockKey> {
        let list = self.readings[reading as usize].list?;
        let keys = &self.prompt?.keys[list].keys;
        // Matches may go on with an answer.
        let last = (blocks.checked_sub(1)? as usize).min(keys.len().checked_sub(1)?);
        Some(keys[last])
    }

    /// The index that a reading is looked up in.
    pub(super) fn mirror_of<'m>(&self, mirrors: &'m [Mirror], reading: u32) -> &'m Mirror {
        &mirrors[self.readings[reading as usize].mirror]
    }
}

/// Where a rank's cache is looked up.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Source {
    /// Which of the prompt's readings is the one for its kind.
    reading: u32,
    /// In the index of that reading; `None` for a rank that keeps nothing, or was not introduced.
    slot: Option<Slot>,
}

/// That every rank has what it takes to be asked for prompts of the same kind.
pub(super) struct Introduced {
    lookups_version: u64,
    /// The units of the prompts' key lists.
    units: Vec<BlockUnit>,
    /// The units of the ranks, as far as they have any.
    kinds: Vec<Option<BlockUnit>>,
    sources: Arc<[Option<Source>]>,
}

impl Introduced {
    fn holds(&self, ranks: &Ranks, prompt: &Prompt) -> bool {
        let units = prompt.keys.iter().map(|list| list.unit);
        self.lookups_version == ranks.lookups_version() && units.eq(self.units.iter().copied())
    }
}

/// How a prompt is read where the engine's tokens are known in blocks of this unit, or not at all.
/// Most ranks of a pool read it alike.
struct Reading {
    of: Option<BlockUnit>,
    unit: BlockUnit,
    /// Which of the prompt's key lists speaks of the cache.
    list: Option<usize>,
    /// What it is worth; without a list, the rank's level stays.
    level: Option<EvidenceLevel>,
    /// The index of the unit.
    mirror: usize,
    measure: Measure,
    /// Of the measure, which would divide for each rank.
    full_blocks: u32,
    block_tokens: f64,
}

impl Reading {
    fn new(of: Option<BlockUnit>, prompt: &Prompt, state: &mut State) -> Self {
        let find = |unit: BlockUnit| prompt.keys.iter().position(|l: &KeyList| l.unit == unit);
        let token_list = of.and_then(|unit| find(unit).map(|list| (unit, list)));
        let (unit, list, level) = match (token_list, find(BlockUnit::TEXT)) {
            (Some((unit, list)), _) => (unit, Some(list), Some(EvidenceLevel::Model)),
            (None, Some(list)) => (BlockUnit::TEXT, Some(list), Some(EvidenceLevel::Text)),
            // Nothing to match, but the prompt will press on the cache all the same.
            (None, None) => (of.unwrap_or(BlockUnit::TEXT), None, None),
        };
        let measure = Measure::new(unit, prompt, state.bytes_per_token);
        let (full_blocks, block_tokens) = (measure.full_blocks(), measure.block_tokens());
        let mirror = state.mirror(unit);
        Self { of, unit, list, level, mirror, measure, full_blocks, block_tokens }
    }

    /// Of a prompt of which so many leading blocks match.
    fn find(
        &self,
        prompt: &Prompt,
        (mirror, slot): (&Mirror, Slot),
        (engine_block, matched): (u32, u32),
        found: &mut Found,
    ) {
        let tokens = |blocks| cached_tokens(self.unit, prompt, blocks, engine_block);
        let cached = (f64::from(tokens(matched)) * mirror.feedback.trust(slot)) as u32;
        let is_hot = mirror.hot_blocks > 0 && matched >= mirror.hot_blocks;
        found.matched_blocks = matched;
        found.cached_tokens = cached;
        found.uncached_tokens = prompt.tokens - cached;
        found.hot_tokens = if is_hot { tokens(mirror.hot_blocks) } else { 0 };
    }
}

/// Where the cache of each rank is looked up for these readings. Of ranks that are not introduced
/// some is missing.
fn sources_of(ranks: &Ranks, readings: &[Reading]) -> Arc<[Option<Source>]> {
    let source = |at| {
        let lookup = ranks.lookup(at);
        let number = readings.iter().position(|reading| reading.of == lookup.unit)?;
        let slot = if lookup.caches { ranks.slot(at, readings[number].mirror) } else { None };
        Some(Source { reading: number as u32, slot })
    };
    (0..ranks.len()).map(source).collect()
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
        let counts_on_answers = self.answers.is_likely();
        let (readings, sources) = (Vec::new(), Arc::default());
        let mut asked = Asked { prompt, readings, sources, now, counts_on_answers };
        let Some(prompt) = prompt else { return asked };
        let are_all = eligible.len() == self.ranks.len();
        if are_all
            && let Some(known) = self.introduced.take_if(|known| known.holds(&self.ranks, prompt))
        {
            let readings = known.kinds.iter().map(|kind| Reading::new(*kind, prompt, self));
            asked.readings = readings.collect();
            asked.sources = Arc::clone(&known.sources);
            debug_assert_eq!(asked.sources, sources_of(&self.ranks, &asked.readings));
            self.introduced = Some(known);
            return asked;
        }
        let mut rest = eligible;
        while let Some(next) = rest.iter().position(|at| !asked.can_ask(&self.ranks, *at)) {
            self.introduce(rest[next], &mut asked);
            rest = &rest[next + 1..];
        }
        self.ranks.refresh();
        asked.sources = sources_of(&self.ranks, &asked.readings);
        if are_all {
            let kinds = asked.readings.iter().map(|reading| reading.of).collect();
            let units = prompt.keys.iter().map(|list| list.unit).collect();
            let sources = Arc::clone(&asked.sources);
            let lookups_version = self.ranks.lookups_version();
            self.introduced = Some(Introduced { lookups_version, units, kinds, sources });
        }
        asked
    }

    /// Gives one rank what it lacks to be asked.
    fn introduce(&mut self, at: usize, asked: &mut Asked<'_>) {
        let Some(prompt) = asked.prompt else { return };
        let CacheLookup { caches, unit, .. } = *self.ranks.lookup(at);
        let known = asked.readings.iter().find(|reading| reading.of == unit);
        let mirror = known.map(|reading| reading.mirror).unwrap_or_else(|| {
            let reading = Reading::new(unit, prompt, self);
            let mirror = reading.mirror;
            asked.readings.push(reading);
            mirror
        });
        if caches && self.ranks.slot(at, mirror).is_none() {
            self.ensure_slot(at, mirror);
        }
    }

    /// Looks the prompt up in every index that one of its key lists fits.
    pub(super) fn match_prompt(&mut self, prompt: Option<&Prompt>) {
        for mirror in &mut self.mirrors {
            mirror.matches.clear();
            mirror.matched_by_slot.clear();
            mirror.hot_blocks = 0;
            if let Some(list) = prompt.and_then(|p| p.keys.iter().find(|l| l.unit == mirror.unit)) {
                mirror.index.match_prefix(&list.keys, &mut mirror.matches);
                mirror.index.blocks_by_slot(&mirror.matches, &mut mirror.matched_by_slot);
                let demand = mirror.index.demand(&mirror.matches, least_load(mirror.index.ranks()));
                let hot = demand.filter(|demand| !demand.is_pending);
                mirror.hot_blocks = hot.map_or(0, |demand| demand.blocks);
            }
        }
    }

    /// What the rank at this place would do with the prompt.
    pub(super) fn prospect(&self, at: usize, asked: &Asked<'_>) -> Prospect {
        let rank = self.ranks.lookup(at);
        let found = asked.found(&self.ranks, &self.mirrors, at);
        let mut prospect = Prospect {
            at,
            mirror: None,
            list: None,
            level: rank.level,
            measure: None,
            slot: None,
            matched_blocks: found.matched_blocks,
            cached_tokens: found.cached_tokens,
            uncached_tokens: found.uncached_tokens,
        };
        let Some((_, reading)) = asked.by(rank.unit) else { return prospect };
        let level = reading.level.unwrap_or(rank.level);
        prospect.list = reading.list;
        prospect.level = if rank.caches { level } else { EvidenceLevel::Model };
        prospect.measure = Some(reading.measure);
        if !rank.caches {
            return prospect;
        }
        prospect.mirror = Some(reading.mirror);
        prospect.slot = self.ranks.slot(at, reading.mirror);
        if let Some(slot) = prospect.slot {
            prospect.level = self.mirrors[reading.mirror].level(slot, prospect.level);
        }
        prospect
    }
}
