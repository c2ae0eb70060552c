//! A pool: the ranks that serve one model, what their caches hold, what was promised to them.
//!
//! Everything sits under one lock, which is held for one decision or one report at a time and
//! never over I/O. The lock does not poison: a panic in one request cannot fail the next.
//!
//! - [`profile`]: what an engine says of its cache, and the unit it is mirrored in
//! - [`measure`]: how a request lies in blocks
//! - [`rank`], [`lease`]: the objects that counts and bookings belong to; [`ranks`]: all of them, and
//!   what a choice reads of each
//! - [`reconcile`]: ranks come, change and go with the fleet
//! - [`prospect`]: what every rank would do with a prompt
//! - [`choice`]: which of them it is; [`keeper`]: and where several hold the same
//! - [`decide`]: a Route becomes a booked choice
//! - [`report`]: what became of it
//! - [`remote`]: leases that edges in other processes hold
//! - [`change`], [`copy`]: what an owner tells of it, and what another router makes of that
//! - [`local`]: whether it is served here
//! - [`feedback`]: what engines found in their caches, and what beliefs are worth; [`level`]: how well
//!   caches are known
//! - [`passing`]: what happens as time passes
//! - [`trace`], [`view`]: what operators are told

mod change;
mod choice;
mod copy;
mod decide;
mod feedback;
mod keeper;
mod lease;
mod level;
mod local;
mod measure;
mod passing;
mod profile;
mod prospect;
mod rank;
mod ranks;
mod reconcile;
mod remote;
mod report;
mod trace;
mod view;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use domain::{
    Backend, BackendId, BlockUnit, Decision, LeaseId, ModelId, Moment, RankId, RejectReason,
    Report, Route,
};
use kv_index::feedback::{Feedback, ToldCapacity};
use kv_index::{AnswerShare, KvIndex, Matches, Slot};
use parking_lot::Mutex;
use proto::What;
use replication::{Audit, AuditReply, LeaseKey, MemberList, MessageOf, Process, Reign, Resume};
use scheduling::PrefillFit;

use crate::config::Shared;
use crate::explain::{Outcome, Trace};
use crate::metrics::{Families, PoolMetrics};
pub(crate) use change::Change;
use change::ChangeLog;
pub(crate) use lease::pool_of;
use lease::{Lease, lease_id};
use level::Rendering;
use local::LocalPool;
pub(crate) use local::{Outbox, Outgoing, Peers, PoolRole};
use passing::{has_room, start};
use prospect::Introduced;
use rank::RankKey;
use ranks::Ranks;
pub(crate) use reconcile::Seat;
use remote::Remote;
pub(crate) use remote::{Answer, RoutedFor};

/// Bytes of canonical text per token before anything was observed: English prose under the
/// byte-pair vocabularies in use.
const INITIAL_BYTES_PER_TOKEN: f64 = 4.0;

/// A decision, or the lack of one, and the trace of how it came about.
pub(crate) type Routed = (Result<Decision, RejectReason>, Trace);

/// The pool of one model.
pub(crate) struct Pool {
    pub(crate) model: ModelId,
    /// The backends of the last reconcile, with the model's name there. Held over a whole
    /// reconcile, so that one at a time runs; decisions never take it.
    seated: Mutex<HashMap<BackendId, (Arc<Backend>, ModelId)>>,
    local: Mutex<LocalPool>,
    families: Arc<Families>,
}

/// Whether a pool is served here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// It is.
    Here(Reign),
    /// Another router serves it, as far as is known.
    Elsewhere(Option<Process>),
    /// Nobody does as far as is known, and nothing is known of it here: somebody soon will.
    Vacant,
}

/// What the lock guards.
pub(crate) struct State {
    model: ModelId,
    number: u32,
    config: Shared,
    /// Where its series are: those of the process, or of nobody while it is a copy.
    families: Arc<Families>,
    hidden: Arc<Families>,
    metrics: PoolMetrics,
    /// Whether another router's changes are made here, and no other.
    is_copy: bool,
    /// When something was heard of it last.
    now: Moment,
    /// What copies are to be told.
    changes: ChangeLog,
    ranks: Ranks,
    /// What was found at the last decision of whether all of them can be asked.
    introduced: Option<Introduced>,
    by_backend: HashMap<BackendId, Vec<RankKey>>,
    /// One index for each unit ever in use; kept for the pool's life, so that a booking of a
    /// rank that is gone can never meet a younger index.
    mirrors: Vec<Mirror>,
    leases: BTreeMap<LeaseId, Lease>,
    /// What edges in other processes hold, and whose sessions live.
    remote: Remote,
    /// What was learned of ranks that left, for when they come back.
    retired_fits: HashMap<(BackendId, u16), PrefillFit>,
    next_rank: u64,
    next_lease: u64,
    turn: u64,
    /// Whether prompts go on with earlier answers.
    answers: AnswerShare,
    /// Whether prompts come with tokens.
    rendering: Rendering,
    bytes_per_token: f64,
    /// The value that the text mirrors' capacities were set by.
    scaled_by: f64,
}

/// The index of one block unit.
struct Mirror {
    unit: BlockUnit,
    index: KvIndex,
    matches: Matches,
    /// Leading blocks of the prompt that was looked up last, by slot.
    matched_by_slot: Vec<u32>,
    /// Leading blocks of the prompt looked up last that one more rank should hold; 0 if none.
    hot_blocks: u32,
    /// What the engines of its ranks say they found.
    feedback: Feedback,
}

impl Pool {
    /// An empty pool: one that this process serves alone, or one of which `peers` keep copies.
    pub(crate) fn new(
        model: ModelId,
        number: u32,
        config: Shared,
        families: Arc<Families>,
        peers: Option<&Peers>,
    ) -> Self {
        let state = |families: &Arc<Families>| {
            State::new(model.clone(), number, config.clone(), families.clone())
        };
        let local = match peers {
            None => LocalPool::alone(state(&families)),
            Some(peers) => LocalPool::shared(&model, state(&peers.hidden), peers),
        };
        Self { model, seated: Mutex::default(), local: Mutex::new(local), families }
    }

    /// Brings the ranks in line with the fleet. Decisions wait only for what changed.
    pub(crate) fn reconcile(&self, seats: &[Seat<'_>]) {
        let mut seated = self.seated.lock();
        let is_known = |s: &&Seat<'_>| {
            seated.get(&s.backend.id).is_some_and(|(before, _)| Arc::ptr_eq(before, s.backend))
        };
        let changed: Vec<Seat<'_>> = seats.iter().filter(|s| !is_known(s)).copied().collect();
        let present: HashSet<&BackendId> = seats.iter().map(|s| &s.backend.id).collect();
        let gone: Vec<BackendId> =
            seated.keys().filter(|id| !present.contains(id)).cloned().collect();
        for id in &gone {
            seated.remove(id);
        }
        for seat in &changed {
            let known = (seat.backend.clone(), seat.model.id.clone());
            seated.insert(seat.backend.id.clone(), known);
        }
        if !gone.is_empty() || !changed.is_empty() {
            self.act(|state| state.reconcile(&gone, &changed));
        }
    }

    /// Does something with the state and tells copies of it. `None` if it is not served here.
    fn act<R>(&self, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        let mut local = self.local.lock();
        let result = act(local.active()?);
        local.publish();
        Some(result)
    }

    /// Chooses and books.
    pub(crate) fn route(&self, route: &Route, now: Moment) -> Routed {
        let elsewhere = || (Err(RejectReason::NoReadyBackend), Trace::new(route));
        self.act(|state| state.route(route, now)).unwrap_or_else(elsewhere)
    }

    /// Takes a report; returns what it adds to the explanation.
    pub(crate) fn report(&self, report: &Report, now: Moment) -> Option<Outcome> {
        self.act(|state| state.report(report, now))?
    }

    /// Time has passed: starts prefills that are due, reaps lost leases, gives ranks that nobody
    /// tries another chance, shows gauges.
    pub(crate) fn tick(&self, now: Moment) -> Vec<(LeaseId, Outcome)> {
        let ticked = self.act(|state| {
            state.advance(now);
            let mut reaped = state.reap(now);
            reaped.extend(state.end_orphans(now));
            state.adopt_leases_without_rank(now);
            state.reconsider(now);
            state.ranks.refresh();
            state.show(now);
            reaped
        });
        ticked.unwrap_or_default()
    }

    /// As [`route`](Self::route) for an edge elsewhere, which names the lease.
    pub(crate) fn route_for(&self, key: &LeaseKey, route: &Route, now: Moment) -> RoutedFor {
        let routed = self.act(|state| state.route_for(key, route, now));
        routed.unwrap_or((Answer::Elsewhere, None))
    }

    /// As [`report`](Self::report) for an edge elsewhere.
    pub(crate) fn hear(&self, key: LeaseKey, what: &What, now: Moment) -> Vec<(LeaseId, Outcome)> {
        self.act(|state| state.hear(key, what, now)).unwrap_or_default()
    }

    /// An edge says in short what it holds here.
    pub(crate) fn audit(&self, audit: &Audit, now: Moment) -> Option<AuditReply> {
        self.act(|state| state.audit(audit, now))?
    }

    /// An edge says one by one what it holds here.
    pub(crate) fn resume(&self, resume: &Resume, now: Moment) -> Vec<(LeaseId, Outcome)> {
        self.act(|state| state.resume(resume, now)).unwrap_or_default()
    }

    /// The last session of an edge's process broke.
    pub(crate) fn broken(&self, edge: &Process, now: Moment) {
        self.act(|state| state.broken(edge, now));
    }

    /// Whether it is served here. It is asked for an edge, so if it is not it may have to be.
    pub(crate) fn ownership(&self, now: Moment) -> Ownership {
        if let Some(reign) = self.local.lock().reign() {
            return Ownership::Here(reign);
        }
        self.drive(now, |pool| {
            pool.asked(now);
            pool.tick(now)
        });
        self.local.lock().ownership(now)
    }

    /// The member list is another.
    pub(crate) fn set_list(&self, list: &MemberList, now: Moment) {
        self.drive(now, |pool| pool.set_list(list, now));
    }

    /// Another router says something of it.
    pub(crate) fn hear_router(&self, from: &Process, message: MessageOf<State>, now: Moment) {
        self.drive(now, |pool| pool.on_message(from, message, now));
    }

    /// Time has passed for its copies.
    pub(crate) fn tick_copies(&self, now: Moment) {
        self.drive(now, |pool| pool.tick(now));
    }

    /// Lets its copy machine do something, and does what that wants done.
    fn drive(
        &self,
        now: Moment,
        step: impl FnOnce(&mut replication::Pool<State>) -> Vec<replication::OutputOf<State>>,
    ) {
        if !self.local.lock().drive(now, step) {
            return;
        }
        let seated = self.seated.lock();
        let seats: Vec<Seat<'_>> = (seated.values())
            .filter_map(|(backend, name)| {
                let model = backend.models.iter().find(|model| model.id == *name)?;
                Some(Seat { backend, model })
            })
            .collect();
        self.local.lock().begin(&self.families, &seats, now);
    }

    /// Leases of edges elsewhere, as the replicated book has them.
    #[cfg(test)]
    pub(crate) fn booked(&self) -> Vec<(LeaseKey, replication::Lease)> {
        self.local.lock().state().booked()
    }

    /// Its copy of the state.
    #[cfg(test)]
    pub(crate) fn with_state<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(self.local.lock().state())
    }

    /// Whether nothing is left in it.
    pub(crate) fn is_empty(&self) -> bool {
        let is_unseated = self.seated.lock().is_empty();
        let local = self.local.lock();
        let state = local.state();
        is_unseated && state.ranks.is_empty() && state.leases.is_empty()
    }

    /// What this router is to it.
    pub(crate) fn role(&self) -> PoolRole {
        self.local.lock().role()
    }

    /// The ranks as operators see them.
    pub(crate) fn view(&self, now: Moment) -> Vec<serde_json::Value> {
        let seated = self.seated.lock();
        let mut local = self.local.lock();
        let role = local.role();
        if let Some(state) = local.active() {
            state.advance(now);
            local.publish();
        }
        // Copies are not told of states: should this router serve, it goes by what it sees itself.
        let state_of = |backend: &BackendId| seated.get(backend).map(|(seen, _)| seen.state);
        local.state().view(role.as_str(), &state_of, now)
    }
}

impl Mirror {
    /// Leading blocks that a slot's rank holds of the prompt that was looked up last.
    #[inline]
    fn matched_blocks(&self, slot: Slot) -> u32 {
        self.matched_by_slot.get(slot.number()).copied().unwrap_or(0)
    }

    /// The engine of `rank` tells its size, at first or anew.
    fn set_told_capacity(
        &mut self,
        slot: Slot,
        told: ToldCapacity,
        rank: &RankId,
        changes: &mut ChangeLog,
    ) {
        let blocks = self.feedback.set_told_capacity(slot, told);
        self.index.set_capacity(slot, blocks);
        let unit = self.unit;
        changes.record(|| Change::Capacity { rank: rank.clone(), unit, blocks });
    }
}

impl State {
    fn new(model: ModelId, number: u32, config: Shared, families: Arc<Families>) -> Self {
        Self {
            ranks: Ranks::new(model.clone()),
            introduced: None,
            metrics: families.pool(&model),
            model,
            number,
            config,
            hidden: families.clone(),
            families,
            is_copy: false,
            now: Moment::ZERO,
            changes: ChangeLog::default(),
            by_backend: HashMap::new(),
            mirrors: Vec::new(),
            leases: BTreeMap::new(),
            remote: Remote::default(),
            retired_fits: HashMap::new(),
            next_rank: 0,
            next_lease: 0,
            turn: 0,
            answers: AnswerShare::default(),
            rendering: Rendering::default(),
            bytes_per_token: INITIAL_BYTES_PER_TOKEN,
            scaled_by: INITIAL_BYTES_PER_TOKEN,
        }
    }

    /// The number of the index of `unit`, made on first use.
    fn mirror(&mut self, unit: BlockUnit) -> usize {
        if let Some(i) = self.mirrors.iter().position(|m| m.unit == unit) {
            return i;
        }
        self.mirrors.push(Mirror {
            unit,
            index: KvIndex::new(),
            matches: Matches::default(),
            matched_by_slot: Vec::new(),
            hot_blocks: 0,
            feedback: Feedback::default(),
        });
        self.mirrors.len() - 1
    }

    /// Gives the rank at `at` a slot in an index if it has none there.
    fn ensure_slot(&mut self, at: usize, mirror: usize) {
        let (rank, mirror_state) = (&mut self.ranks[at], &mut self.mirrors[mirror]);
        if rank.slot(mirror).is_none() {
            let told = rank.profile.told(mirror_state.unit, self.scaled_by);
            let slot = mirror_state.index.add_rank_as(told.blocks, rank.profile.eviction);
            mirror_state.set_told_capacity(slot, told, &rank.id, &mut self.changes);
            rank.set_slot(mirror, slot);
        }
    }

    /// The name of a lease that is about to be kept.
    fn new_lease(&mut self) -> LeaseId {
        let id = lease_id(self.number, self.next_lease);
        self.next_lease += 1;
        id
    }

    fn keep(&mut self, id: LeaseId, lease: Lease) {
        self.leases.insert(id, lease);
        self.metrics.leases.set(self.leases.len() as i64);
    }
}
