//! The ranks of a pool, and beside them what every choice reads of every one of them.
//!
//! A rank is large, and most of it lies elsewhere on the heap. A choice among a thousand reads a
//! few numbers of each, and most ranks have not changed since the last one. So those numbers stand
//! side by side, in [`Columns`], where a rank's are made anew when it was given out to be changed.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use domain::{BackendState, BlockUnit, EvidenceLevel, ModelId, Moment};
use kv_index::Slot;
use scheduling::{Arrivals, LoadSnapshot, Terms};

use super::rank::{Rank, RankKey};

/// How a rank's cache is asked for a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CacheLookup {
    /// Its first slot with the number of the index; few ranks ever have another.
    slot: Option<(u32, Slot)>,
    /// The unit of its engine's tokens, where those are known.
    pub(super) unit: Option<BlockUnit>,
    /// Tokens in a block of the engine's, as far as is known.
    pub(super) engine_block: u32,
    pub(super) caches: bool,
    pub(super) level: EvidenceLevel,
}

impl CacheLookup {
    fn of(rank: &Rank) -> Self {
        let first = rank.slots().first();
        let tokens = rank.profile.tokens;
        Self {
            slot: first.and_then(|(mirror, slot)| Some((u32::try_from(*mirror).ok()?, *slot))),
            unit: tokens.map(|tokens| tokens.unit),
            engine_block: tokens.map_or(1, |tokens| tokens.engine_block),
            caches: rank.profile.caches,
            level: rank.level,
        }
    }
}

/// Nothing is due.
const NEVER: Moment = Moment::from_nanos(u64::MAX);

/// What a choice reads of a rank.
#[derive(Debug, PartialEq)]
struct Digest {
    load: LoadSnapshot,
    arrivals: Arrivals,
    terms: Terms,
    last_chosen: u64,
    lookup: CacheLookup,
    due: Moment,
    is_open: bool,
}

impl Digest {
    fn of(rank: &Rank, model: &ModelId) -> Self {
        let network_seconds = rank.seen.network.as_secs_f64();
        let is_ready = rank.seen.state == BackendState::Ready;
        Self {
            load: rank.load.snapshot(),
            arrivals: rank.load.arrivals(),
            terms: Terms::new(network_seconds, &rank.fit.coefficients(), rank.load.running()),
            last_chosen: rank.last_chosen,
            lookup: CacheLookup::of(rank),
            due: rank
                .load
                .next_due()
                .into_iter()
                .chain(rank.pacing.next_due())
                .min()
                .unwrap_or(NEVER),
            is_open: is_ready
                && rank.breaker.is_closed()
                && rank.pacing.is_free()
                && rank.serves(model),
        }
    }
}

/// The digests of all ranks, each part of them by itself: a round over the ranks reads few parts.
#[derive(Default)]
pub(super) struct Columns {
    pub(super) loads: Vec<LoadSnapshot>,
    pub(super) arrivals: Vec<Arrivals>,
    pub(super) terms: Vec<Terms>,
    pub(super) last_chosen: Vec<u64>,
    lookups: Vec<CacheLookup>,
    /// Counts changes of lookups.
    lookups_version: u64,
    /// When prefills may have to be started or closed, or what holds a rank back ends, as far as
    /// is known.
    due: Vec<Moment>,
    /// Whether nothing stands against a first attempt under the pool's own name.
    open: Vec<bool>,
}

impl Columns {
    fn push(&mut self, digest: Digest) {
        self.lookups_version += 1;
        self.loads.push(digest.load);
        self.arrivals.push(digest.arrivals);
        self.terms.push(digest.terms);
        self.last_chosen.push(digest.last_chosen);
        self.lookups.push(digest.lookup);
        self.due.push(digest.due);
        self.open.push(digest.is_open);
    }

    fn set(&mut self, at: usize, digest: Digest) {
        self.lookups_version += u64::from(self.lookups[at] != digest.lookup);
        self.loads[at] = digest.load;
        self.arrivals[at] = digest.arrivals;
        self.terms[at] = digest.terms;
        self.last_chosen[at] = digest.last_chosen;
        self.lookups[at] = digest.lookup;
        self.due[at] = digest.due;
        self.open[at] = digest.is_open;
    }

    fn swap_remove(&mut self, at: usize) {
        self.lookups_version += 1;
        self.loads.swap_remove(at);
        self.arrivals.swap_remove(at);
        self.terms.swap_remove(at);
        self.last_chosen.swap_remove(at);
        self.lookups.swap_remove(at);
        self.due.swap_remove(at);
        self.open.swap_remove(at);
    }

    #[cfg(debug_assertions)]
    fn digest(&self, at: usize) -> Digest {
        Digest {
            load: self.loads[at],
            arrivals: self.arrivals[at],
            terms: self.terms[at],
            last_chosen: self.last_chosen[at],
            lookup: self.lookups[at].clone(),
            due: self.due[at],
            is_open: self.open[at],
        }
    }
}

/// The ranks, in an order of no meaning.
pub(super) struct Ranks {
    model: ModelId,
    ranks: Vec<Rank>,
    columns: Columns,
    /// Places of ranks that may have changed since the last refresh, and which ones they are.
    stale: Vec<usize>,
    is_stale: Vec<bool>,
    position: HashMap<RankKey, usize>,
}

impl Ranks {
    /// No ranks, of the pool of `model`.
    pub(super) fn new(model: ModelId) -> Self {
        Self {
            model,
            ranks: Vec::new(),
            columns: Columns::default(),
            stale: Vec::new(),
            is_stale: Vec::new(),
            position: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter()
    }

    /// The place of a rank, while it is there.
    pub(super) fn position(&self, key: RankKey) -> Option<usize> {
        self.position.get(&key).copied()
    }

    pub(super) fn by_key_mut(&mut self, key: RankKey) -> Option<&mut Rank> {
        self.position(key).map(|at| &mut self[at])
    }

    /// Adds a rank. Returns its place.
    pub(super) fn push(&mut self, rank: Rank) -> usize {
        let at = self.ranks.len();
        self.position.insert(rank.key, at);
        self.columns.push(Digest::of(&rank, &self.model));
        self.is_stale.push(false);
        self.ranks.push(rank);
        at
    }

    /// Takes a rank out. Another may take its place.
    pub(super) fn remove(&mut self, key: RankKey) -> Option<Rank> {
        let at = self.position.remove(&key)?;
        let rank = self.ranks.swap_remove(at);
        self.columns.swap_remove(at);
        self.is_stale.swap_remove(at);
        if let Some(moved) = self.ranks.get(at) {
            self.position.insert(moved.key, at);
            // If it was stale, then at its former place.
            self.is_stale[at] = false;
            self.touch(at);
        }
        Some(rank)
    }

    /// The first rank from this place on for which time has something to do by now.
    pub(super) fn next_due(&self, from: usize, now: Moment) -> Option<usize> {
        let due = self.columns.due.get(from..)?.iter().position(|due| *due <= now);
        due.map(|after| from + after)
    }

    /// Whether nothing stands against a first attempt under the pool's own name, as of the last
    /// [`Self::refresh`].
    pub(super) fn is_open(&self, at: usize) -> bool {
        self.columns.open[at]
    }

    /// Whether [`Self::is_open`] holds of every rank.
    pub(super) fn are_all_open(&self) -> bool {
        self.columns.open.iter().all(|open| *open)
    }

    /// Makes the digests of all ranks that were touched anew.
    pub(super) fn refresh(&mut self) {
        for at in self.stale.drain(..) {
            // Ranks may have left since.
            if let Some(rank) = self.ranks.get(at) {
                self.is_stale[at] = false;
                self.columns.set(at, Digest::of(rank, &self.model));
            }
        }
        #[cfg(debug_assertions)]
        for (at, rank) in self.ranks.iter().enumerate() {
            let now = Digest::of(rank, &self.model);
            assert_eq!(self.columns.digest(at), now, "no rank changes without being touched");
        }
    }

    /// What a choice reads of the ranks, as of the last [`Self::refresh`].
    pub(super) fn columns(&self) -> &Columns {
        debug_assert!(self.stale.is_empty(), "refreshed before a choice");
        &self.columns
    }

    /// Another number whenever a [`Self::lookup`] is another, or at another place.
    pub(super) fn lookups_version(&self) -> u64 {
        self.columns.lookups_version
    }

    /// How the cache of the rank at this place is asked, as of the last [`Self::refresh`].
    #[inline]
    pub(super) fn lookup(&self, at: usize) -> &CacheLookup {
        debug_assert!(!self.is_stale[at], "refreshed before a choice");
        &self.columns.lookups[at]
    }

    /// The rank's slot in an index.
    #[inline]
    pub(super) fn slot(&self, at: usize, mirror: usize) -> Option<Slot> {
        // A slot that a rank once has stays its own; a stale lookup may lack one.
        match self.columns.lookups[at].slot {
            Some((first, slot)) if first as usize == mirror => Some(slot),
            _ => self.ranks[at].slot(mirror),
        }
    }

    fn touch(&mut self, at: usize) {
        if !std::mem::replace(&mut self.is_stale[at], true) {
            self.columns.due[at] = Moment::ZERO;
            self.stale.push(at);
        }
    }
}

impl Index<usize> for Ranks {
    type Output = Rank;

    fn index(&self, at: usize) -> &Rank {
        &self.ranks[at]
    }
}

impl IndexMut<usize> for Ranks {
    fn index_mut(&mut self, at: usize) -> &mut Rank {
        self.touch(at);
        &mut self.ranks[at]
    }
}
