//! Ranks come, change and go with the fleet.

use std::collections::HashMap;
use std::sync::Arc;

use domain::{Backend, BackendId, BackendState, Moment, RankId, RankState, ServedModel};
use scheduling::fit::FitOfRank;
use scheduling::{Coefficients, PrefillFit};

use super::State;
use super::change::Change;
use super::profile::Profile;
use super::rank::{Rank, RankKey};
use crate::pacing::Pacing;

/// Fits of ranks that left, kept for their return. Far more than a fleet has at once.
const RETIRED_FITS: usize = 4096;

/// One backend that serves the pool's model.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'a> {
    pub(crate) backend: &'a Arc<Backend>,
    pub(crate) model: &'a ServedModel,
}

impl State {
    /// Takes out the backends that are `gone`, and brings the ranks of those that `changed` in
    /// line. What belongs to a rank that stays (bookings, counts, breaker, fit, cache content) is
    /// not touched by any number of reconciles.
    pub(super) fn reconcile(&mut self, gone: &[BackendId], changed: &[Seat<'_>]) {
        for id in gone {
            self.changes.record(|| Change::Unseated { backend: id.clone() });
            for key in self.by_backend.remove(id).unwrap_or_default() {
                self.retire(key);
            }
        }
        for seat in changed {
            self.reseat(seat);
        }
        // Here, so that no decision pays for it.
        self.ranks.refresh();
    }

    fn reseat(&mut self, seat: &Seat<'_>) {
        let held = self.by_backend.remove(&seat.backend.id).unwrap_or_default();
        let before = held.first().and_then(|key| self.ranks.position(*key));
        if before.is_none_or(|at| is_news(&self.ranks[at], seat)) {
            self.changes.record(|| Change::Seated {
                backend: seat.backend.clone(),
                model: seat.model.id.clone(),
            });
        }
        let mut known: HashMap<RankId, RankKey> = held
            .into_iter()
            .filter_map(|key| Some((self.ranks[self.ranks.position(key)?].id.clone(), key)))
            .collect();
        let stays = |id: &RankId| {
            id.incarnation == seat.backend.incarnation
                && seat.backend.ranks.iter().any(|r| r.rank == id.rank)
        };
        let leaving: Vec<RankId> = known.keys().filter(|id| !stays(id)).cloned().collect();
        // Out before in: the series of both have the same labels.
        for id in leaving {
            if let Some(key) = known.remove(&id) {
                self.retire(key);
            }
        }
        let mut keys = Vec::with_capacity(seat.backend.ranks.len());
        for state in &seat.backend.ranks {
            let key = match known.remove(&seat.backend.rank_id(state.rank)) {
                Some(key) => {
                    self.refresh(key, seat, state);
                    key
                }
                None => self.admit(seat, state),
            };
            keys.push(key);
        }
        self.by_backend.insert(seat.backend.id.clone(), keys);
    }

    fn admit(&mut self, seat: &Seat<'_>, state: &RankState) -> RankKey {
        let id = seat.backend.rank_id(state.rank);
        let mut pacing = Pacing::new(self.config.get().recovery_in_flight);
        let fit = match self.retired_fits.remove(&(id.backend.clone(), id.rank)) {
            Some(fit) => {
                // A copy hears of no answers, so it would never let go of it.
                if !self.is_copy {
                    pacing.returned();
                }
                fit
            }
            None => PrefillFit::new(self.prior()),
        };
        let key = RankKey(self.next_rank);
        self.next_rank += 1;
        let profile = Profile::of(seat.backend, seat.model, state);
        if !self.is_copy {
            tracing::info!(
                model = %self.model, backend.id = %id.backend, rank = id.rank,
                incarnation = id.incarnation.0, level = profile.level().as_str(),
                "rank joins the pool",
            );
        }
        let mut rank = Rank::new(
            key,
            id,
            seat.backend.clone(),
            profile,
            fit,
            pacing,
            (&self.families, &self.model),
        );
        rank.observe(seat.backend, seat.model, state);
        // Ranks that never were chosen differ by the order of their coming.
        self.turn += 1;
        rank.last_chosen = self.turn;
        let at = self.ranks.push(rank);
        self.home(at);
        self.relevel(at);
        key
    }

    fn refresh(&mut self, key: RankKey, seat: &Seat<'_>, state: &RankState) {
        let Some(at) = self.ranks.position(key) else { return };
        let rank = &mut self.ranks[at];
        let evicted = rank.profile.eviction;
        let preempted =
            state.load.filter(|sample| rank.is_news(sample)).and_then(|s| s.preemptions);
        let was_down = rank.seen.state == BackendState::Down;
        let changed = rank.observe(seat.backend, seat.model, state);
        if was_down && rank.seen.state == BackendState::Ready && !self.is_copy {
            rank.pacing.returned();
        }
        if let Some(total) = preempted {
            for &(mirror, slot) in rank.slots() {
                self.mirrors[mirror].feedback.preempted(slot, total);
            }
        }
        if !changed {
            return;
        }
        if rank.profile.eviction != evicted {
            // Another kind of mirror, which begins empty.
            for (mirror, slot) in rank.take_slots() {
                self.mirrors[mirror].index.remove_rank(slot);
                self.mirrors[mirror].feedback.remove(slot);
            }
        }
        let rank = &self.ranks[at];
        let profile = rank.profile;
        // A copy is told: what it would make of the size itself could evict too much.
        let slots = if self.is_copy { &[] } else { rank.slots() };
        for &(mirror, slot) in slots {
            let told = profile.told(self.mirrors[mirror].unit, self.scaled_by);
            self.mirrors[mirror].set_told_capacity(slot, told, &rank.id, &mut self.changes);
        }
        self.home(at);
        self.relevel(at);
    }

    /// The slot that the rank's own profile calls for; others come when a Route needs them.
    fn home(&mut self, at: usize) {
        let profile = self.ranks[at].profile;
        if profile.caches {
            let mirror = self.mirror(profile.unit());
            self.ensure_slot(at, mirror);
        }
    }

    /// Its number, once it is there.
    pub(super) fn home_of(&self, at: usize) -> Option<usize> {
        let unit = self.ranks[at].profile.unit();
        self.mirrors.iter().position(|mirror| mirror.unit == unit)
    }

    /// Takes a rank out. Its holders vanish at once; leases that are still open find no rank.
    fn retire(&mut self, key: RankKey) {
        let Some(rank) = self.ranks.remove(key) else { return };
        for &(mirror, slot) in rank.slots() {
            self.mirrors[mirror].index.remove_rank(slot);
            self.mirrors[mirror].feedback.remove(slot);
        }
        self.families.remove_rank(&self.model, &rank.id);
        if !self.is_copy {
            tracing::info!(
                model = %self.model, backend.id = %rank.id.backend, rank = rank.id.rank,
                incarnation = rank.id.incarnation.0, "rank leaves the pool",
            );
        }
        if self.retired_fits.len() >= RETIRED_FITS
            && let Some(any) = self.retired_fits.keys().next().cloned()
        {
            // Which one hardly matters: it is a better beginning at most.
            self.retired_fits.remove(&any);
        }
        self.retired_fits.insert((rank.id.backend, rank.id.rank), rank.fit);
    }

    /// Ranks without a sample follow what the others have learned. Without this the first rank
    /// that turns out faster than the general prior would look better than all untried ones, and
    /// keep everything to itself.
    pub(super) fn share_prior(&mut self) {
        let untried: Vec<usize> =
            (0..self.ranks.len()).filter(|at| self.ranks[*at].fit.samples() == 0).collect();
        if untried.is_empty() {
            return;
        }
        let prior = self.prior();
        for at in untried {
            self.ranks[at].fit = PrefillFit::new(prior);
        }
    }

    /// Gives ranks that look slow and are not tried another chance.
    pub(super) fn reconsider(&mut self, now: Moment) {
        let known = self.ranks.iter().map(|rank| FitOfRank {
            fit: &rank.fit,
            measured_at: rank.measured_at,
            is_idle: rank.load.in_flight() == 0,
        });
        let Some(anew) = scheduling::fit::reconsider(known, now) else { return };
        for at in anew.ranks {
            self.ranks[at].fit.start_over(anew.common);
            self.ranks[at].measured_at = None;
        }
    }

    /// Where a new rank's fit begins: in the middle of those that have samples.
    fn prior(&self) -> Coefficients {
        let learned: Vec<Coefficients> = self
            .ranks
            .iter()
            .filter(|r| r.fit.samples() > 0)
            .map(|r| r.fit.coefficients())
            .collect();
        Coefficients::median(&learned).unwrap_or_default()
    }
}

/// Whether a copy has to know what is seen of a backend now.
fn is_news(rank: &Rank, seat: &Seat<'_>) -> bool {
    let (before, now) = (&rank.seen, seat.backend);
    let cache = |rank: &RankState| (rank.rank, rank.cache, rank.slots);
    rank.model != seat.model.id
        || before.incarnation != now.incarnation
        || before.engine != now.engine
        || before.models != now.models
        || !before.ranks.iter().map(cache).eq(now.ranks.iter().map(cache))
}
