//! The ranks of a pool, and beside them what every choice reads of every one of them.
//!
//! A rank is large, and most of it lies elsewhere on the heap. A choice among a thousand reads a
//! few numbers of each, and most ranks have not changed since the last one. So those numbers stand
//! side by side, in a [`Digest`] for each rank, which is made anew when the rank was given out to
//! be changed.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use domain::{BackendState, EvidenceLevel, ModelId, Moment};
use kv_index::Slot;
use scheduling::{Coefficients, LoadSnapshot};

use super::profile::TokenBlocks;
use super::rank::{Rank, RankKey};

/// What a choice reads of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Digest {
    /// The rank may have changed since.
    is_stale: bool,
    pub(super) caches: bool,
    pub(super) level: EvidenceLevel,
    pub(super) tokens: Option<TokenBlocks>,
    /// Its first slot with the number of the index; few ranks ever have another.
    slot: Option<(usize, Slot)>,
    pub(super) load: LoadSnapshot,
    pub(super) fit: Coefficients,
    pub(super) network_seconds: f64,
    pub(super) last_chosen: u64,
}

impl Digest {
    fn of(rank: &Rank) -> Self {
        Self {
            is_stale: false,
            caches: rank.profile.caches,
            level: rank.level,
            tokens: rank.profile.tokens,
            slot: rank.slots().first().copied(),
            load: rank.load.snapshot(),
            fit: rank.fit.coefficients(),
            network_seconds: rank.seen.network.as_secs_f64(),
            last_chosen: rank.last_chosen,
        }
    }
}

/// What is asked of a rank before anything else.
#[derive(Clone, Copy, Debug)]
struct Gate {
    /// When prefills may have to be started or closed, as far as is known.
    due: Option<Moment>,
    /// Whether nothing stands against a first attempt under the pool's own name.
    is_open: bool,
}

impl Gate {
    fn of(rank: &Rank, model: &ModelId) -> Self {
        let is_ready = rank.seen.state == BackendState::Ready;
        Self {
            due: rank.load.next_due(),
            is_open: is_ready && rank.breaker.is_closed() && rank.serves(model),
        }
    }
}

/// The ranks, in an order of no meaning.
pub(super) struct Ranks {
    model: ModelId,
    ranks: Vec<Rank>,
    digests: Vec<Digest>,
    /// What is asked of each before anything else.
    gates: Vec<Gate>,
    /// Places of ranks whose digests are stale.
    stale: Vec<usize>,
    position: HashMap<RankKey, usize>,
}

impl Ranks {
    /// No ranks, of the pool of `model`.
    pub(super) fn new(model: ModelId) -> Self {
        Self {
            model,
            ranks: Vec::new(),
            digests: Vec::new(),
            gates: Vec::new(),
            stale: Vec::new(),
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
        self.digests.push(Digest::of(&rank));
        self.gates.push(Gate::of(&rank, &self.model));
        self.ranks.push(rank);
        at
    }

    /// Takes a rank out. Another may take its place.
    pub(super) fn remove(&mut self, key: RankKey) -> Option<Rank> {
        let at = self.position.remove(&key)?;
        let rank = self.ranks.swap_remove(at);
        self.digests.swap_remove(at);
        self.gates.swap_remove(at);
        if let Some(moved) = self.ranks.get(at) {
            self.position.insert(moved.key, at);
            // If it was stale, then at its former place.
            self.digests[at].is_stale = false;
            self.touch(at);
        }
        Some(rank)
    }

    /// Whether prefills of the rank may have to be started or closed by now.
    pub(super) fn is_due(&self, at: usize, now: Moment) -> bool {
        self.gates[at].due.is_some_and(|due| due <= now)
    }

    /// Whether nothing stands against a first attempt under the pool's own name, as of the last
    /// [`Self::refresh`].
    pub(super) fn is_open(&self, at: usize) -> bool {
        self.gates[at].is_open
    }

    /// Makes the digests of all ranks that were touched anew.
    pub(super) fn refresh(&mut self) {
        for at in self.stale.drain(..) {
            // Ranks may have left since.
            if let Some(rank) = self.ranks.get(at) {
                self.digests[at] = Digest::of(rank);
                self.gates[at] = Gate::of(rank, &self.model);
            }
        }
        debug_assert!(
            self.ranks.iter().zip(&self.digests).all(|(rank, kept)| *kept == Digest::of(rank)),
            "no rank changes without being touched"
        );
    }

    /// The digest of the rank at this place, as of the last [`Self::refresh`].
    pub(super) fn digest(&self, at: usize) -> &Digest {
        debug_assert!(!self.digests[at].is_stale, "refreshed before a choice");
        &self.digests[at]
    }

    /// The rank's slot in an index.
    pub(super) fn slot(&self, at: usize, mirror: usize) -> Option<Slot> {
        match self.digests[at] {
            Digest { is_stale: false, slot: Some((first, slot)), .. } if first == mirror => {
                Some(slot)
            }
            _ => self.ranks[at].slot(mirror),
        }
    }

    fn touch(&mut self, at: usize) {
        if !std::mem::replace(&mut self.digests[at].is_stale, true) {
            self.gates[at].due = Some(Moment::ZERO);
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
