//! One rank of a pool: the object that bookings and counts belong to.

use std::collections::HashSet;
use std::sync::Arc;

use domain::{
    Backend, BackendState, Candidate, EvidenceLevel, LeaseId, LoadSample, ModelId, Moment, RankId,
    RankState, Route, ServedModel,
};
use kv_index::Slot;
use scheduling::fit::EngineCheck;
use scheduling::{LoadBook, PrefillFit};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::change::Change;
use super::profile::Profile;
use crate::breaker::{Breaker, Gate};
use crate::metrics::{Families, RankMetrics};
use crate::pacing::{Hold, Pacing};

/// A rank's identity within its pool; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RankKey(pub(crate) u64);

/// A rank.
pub(crate) struct Rank {
    pub(crate) key: RankKey,
    pub(crate) id: RankId,
    /// Stands for its backend and number in hashes: the same in every router.
    pub(crate) name: u64,
    /// The observation it was last reconciled with.
    pub(crate) seen: Arc<Backend>,
    pub(crate) profile: Profile,
    /// The names that its backend serves.
    names: HashSet<ModelId>,
    /// The pool's model as its backend names it.
    pub(crate) model: ModelId,
    /// Its slots, by the number of the index they are in.
    slots: Vec<(usize, Slot)>,
    pub(crate) load: LoadBook,
    pub(crate) fit: PrefillFit,
    /// When the fit learned last; `None` for never, or when it started over.
    pub(crate) measured_at: Option<Moment>,
    /// The fit against what the engine counts.
    pub(crate) check: EngineCheck,
    pub(crate) breaker: Breaker,
    pub(crate) pacing: Pacing,
    /// The pool's turn at which it was chosen last.
    pub(crate) last_chosen: u64,
    pub(crate) level: EvidenceLevel,
    pub(crate) metrics: RankMetrics,
    last_sample: Option<Moment>,
}

/// Why a rank takes part in a choice, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eligibility {
    Eligible,
    Excluded,
    NotReady,
    /// It serves the pool's model, but not under the name that is asked for.
    NotServed,
    Broken,
    /// It takes nothing new as long as others can.
    Held(Hold),
}

impl Rank {
    pub(crate) fn new(
        key: RankKey,
        id: RankId,
        seen: Arc<Backend>,
        profile: Profile,
        fit: PrefillFit,
        pacing: Pacing,
        (families, model): (&Families, &ModelId),
    ) -> Self {
        let metrics = families.rank(model, &id);
        let level = profile.level();
        metrics.evidence(level);
        metrics.breaker(Gate::Closed);
        let name = xxh3_64_with_seed(id.backend.as_str().as_bytes(), u64::from(id.rank));
        Self {
            key,
            name,
            id,
            seen,
            profile,
            names: HashSet::new(),
            model: model.clone(),
            slots: Vec::new(),
            load: LoadBook::default(),
            fit,
            measured_at: None,
            check: EngineCheck::default(),
            breaker: Breaker::default(),
            pacing,
            last_chosen: 0,
            level,
            metrics,
            last_sample: None,
        }
    }

    /// Takes over a newer observation. Bookings, counts, breaker and what was learned stay.
    /// Returns whether the cache is another than before.
    pub(crate) fn observe(
        &mut self,
        backend: &Arc<Backend>,
        model: &ServedModel,
        rank: &RankState,
    ) -> bool {
        if self.names.is_empty() || self.seen.models != backend.models {
            self.names = backend.models.iter().map(|m| m.id.clone()).collect();
        }
        self.seen = backend.clone();
        if self.model != model.id {
            self.model = model.id.clone();
        }
        if let Some(sample) = rank.load.filter(|sample| self.is_news(sample)) {
            self.last_sample = Some(sample.at);
            self.load.observe_load(&sample, sample.at);
            let fit = self.fit.coefficients();
            if let Some(counted) = self.check.observe(&sample, &fit, self.measured_at) {
                self.fit.observe(&counted.shape, counted.seconds);
                self.measured_at = Some(sample.at);
            }
        }
        let profile = Profile::of(backend, model, rank);
        let changed = profile != self.profile;
        self.profile = profile;
        changed
    }

    /// Whether a reading of its metrics is later than those taken so far.
    pub(crate) fn is_news(&self, sample: &LoadSample) -> bool {
        self.last_sample.is_none_or(|last| sample.at > last)
    }

    pub(crate) fn eligibility(&self, route: &Route, now: Moment) -> Eligibility {
        if self.seen.state != BackendState::Ready {
            Eligibility::NotReady
        } else if !self.serves(&route.model) {
            Eligibility::NotServed
        } else if route.excluded.contains(&self.id) {
            Eligibility::Excluded
        } else if self.breaker.gate(now) == Gate::Open {
            Eligibility::Broken
        } else {
            self.hold(now).map_or(Eligibility::Eligible, Eligibility::Held)
        }
    }

    /// What holds new requests back from it as long as others can take them.
    pub(crate) fn hold(&self, now: Moment) -> Option<Hold> {
        self.pacing.hold(self.load.in_flight(), now)
    }

    /// A request was answered as it should be, or a trial far enough to say so.
    pub(crate) fn succeeded(&mut self, trial: bool) {
        let was_closed = self.breaker.is_closed();
        self.breaker.succeeded(trial);
        if self.breaker.is_closed() && !was_closed {
            self.pacing.returned();
        }
    }

    /// Whether its backend serves the model under this name.
    pub(crate) fn serves(&self, name: &ModelId) -> bool {
        self.names.contains(name)
    }

    /// Whether it stands for its backend where that is spoken of once.
    pub(crate) fn is_first_of_its_backend(&self) -> bool {
        self.seen.ranks.first().is_some_and(|first| first.rank == self.id.rank)
    }

    /// How fast it is.
    pub(crate) fn learned_change(&self) -> Change {
        Change::Learned {
            rank: self.id.clone(),
            coefficients: self.fit.coefficients(),
            samples: self.fit.samples(),
        }
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate {
            rank: self.id.clone(),
            url: self.seen.url.clone(),
            pin_rank: self.seen.ranks.len() > 1,
        }
    }

    pub(crate) fn slot(&self, mirror: usize) -> Option<Slot> {
        self.slots.iter().find(|(m, _)| *m == mirror).map(|(_, slot)| *slot)
    }

    pub(crate) fn set_slot(&mut self, mirror: usize, slot: Slot) {
        self.slots.push((mirror, slot));
    }

    pub(crate) fn take_slots(&mut self) -> Vec<(usize, Slot)> {
        std::mem::take(&mut self.slots)
    }

    pub(crate) fn slots(&self) -> &[(usize, Slot)] {
        &self.slots
    }

    /// The lease is over for the load book and the gauge.
    pub(crate) fn end(&mut self, lease: LeaseId, now: Moment) {
        self.load.end(lease, now);
        self.show_in_flight();
    }

    pub(crate) fn show_in_flight(&self) {
        self.metrics.in_flight.set(i64::from(self.load.in_flight()));
    }
}
