//! The router itself: pools by model, and the in-process adapter of the routing port.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use domain::{
    Base, BoxFuture, BoxStream, Decision, Fleet, LeaseId, ModelId, Moment, RejectReason, Rejected,
    Report, Route, RoutingClient,
};
use events::DecisionEvents;
use parking_lot::{Mutex, RwLock};
use proto::What;
use replication::{
    Audit, AuditReply, Epoch, LeaseKey, MemberList, MessageOf, PoolId, Process, Resume,
};
use tokio::sync::watch;

use crate::config::{Choosing, Shared};
use crate::explain::{Explanations, Outcome, Trace};
use crate::metrics::Families;
use crate::pool::{Answer, Ownership, Peers, Pool, PoolRole, Routed, Seat, State, pool_of};

/// Pools without ranks and leases that are remembered, so that a model whose backends are all
/// gone is told from one that never was. Adapters that come and go must not pile up.
const EMPTY_POOLS: usize = 1024;

/// Decides in this process, at once. Cheap to share.
pub struct Router {
    config: Shared,
    families: Arc<Families>,
    pools: RwLock<Pools>,
    explanations: Explanations,
    /// Held over a whole reconcile.
    reconciling: Mutex<()>,
    /// Set if other routers may serve its pools.
    peers: Option<Peers>,
    /// The list that owners follow from.
    members: RwLock<MemberList>,
    /// Set if others are told of decisions.
    decisions: Option<DecisionEvents>,
    /// How many pools are served here. Changes with every one more or less.
    served: watch::Sender<usize>,
    fleet: watch::Sender<Arc<Fleet>>,
}

#[derive(Default)]
struct Pools {
    by_model: HashMap<ModelId, Arc<Pool>>,
    /// Names that share another model's pool, and which.
    names: HashMap<ModelId, ModelId>,
    by_number: BTreeMap<u64, Arc<Pool>>,
    next: u32,
}

impl Router {
    pub(crate) fn new(config: Choosing, families: Families, peers: Option<Peers>) -> Self {
        Self {
            config: Shared::new(config),
            families: Arc::new(families),
            pools: RwLock::default(),
            explanations: Explanations::default(),
            reconciling: Mutex::default(),
            peers,
            members: RwLock::default(),
            decisions: None,
            served: watch::Sender::new(0),
            fleet: watch::Sender::new(Arc::new(Fleet::default())),
        }
    }

    /// The same, telling others of decisions for edges elsewhere.
    pub(crate) fn telling(self, decisions: Option<DecisionEvents>) -> Self {
        Self { decisions, ..self }
    }

    /// From now on it chooses in this way. What is booked and learned stays.
    pub fn configure(&self, config: crate::Config) {
        self.config.set(config.choosing);
    }

    /// Brings every pool in line with the fleet, then lets the fleet be seen: nobody is told of
    /// a backend before it can be chosen.
    pub(crate) fn reconcile(&self, fleet: Arc<Fleet>) {
        let _one_at_a_time = self.reconciling.lock();
        let bases = fleet.bases();
        let seats = seats(&fleet, &bases);
        for model in seats.keys() {
            self.pool_for(model);
        }
        let names = bases.iter().map(|(id, base)| ((*id).clone(), base.model.clone())).collect();
        self.pools.write().names = names;
        for pool in self.all() {
            pool.reconcile(seats.get(&pool.model).map_or(&[][..], Vec::as_slice));
        }
        self.forget_empty();
        drop((seats, bases));
        self.fleet.send_replace(fleet);
    }

    /// Chooses and books.
    ///
    /// # Errors
    /// [`Rejected`] when no candidate is left.
    #[cfg(test)]
    pub(crate) fn route_at(&self, route: &Route, now: Moment) -> Result<Decision, Rejected> {
        let tried = self.try_route(route, now);
        self.conclude(tried)
    }

    fn try_route(&self, route: &Route, now: Moment) -> Routed {
        let pool = self.pools.read().of(&route.model).cloned();
        match pool {
            Some(pool) => pool.route(route, now),
            None => {
                let mut trace = Trace::new(route);
                trace.rejected = Some(RejectReason::UnknownModel);
                (Err(RejectReason::UnknownModel), trace)
            }
        }
    }

    /// What a Route came to in the end is explained, and counted if it is a rejection.
    fn conclude(&self, (result, trace): Routed) -> Result<Decision, Rejected> {
        let told = result.as_ref().ok().map(|d| (d.lease, d.evidence.clone()));
        self.explanations.record(trace, told, unix_millis());
        result.map_err(|reason| {
            self.families.rejected(reason);
            Rejected { reason, retry_after: None }
        })
    }

    /// As [`route_at`](Self::route_at), waiting while no backend is ready.
    async fn route_held(&self, route: Route, until: Moment) -> Result<Decision, Rejected> {
        let mut fleet = self.fleet.subscribe();
        loop {
            fleet.mark_unchanged();
            let now = lifecycle::monotonic();
            let tried = self.try_route(&route, now);
            if now >= until || !tried.0.as_ref().is_err_and(|reason| reason.may_pass()) {
                return self.conclude(tried);
            }
            tokio::select! {
                Ok(()) = fleet.changed() => {}
                () = tokio::time::sleep(until - now) => {}
            }
        }
    }

    /// Every later state of the fleet, once pools are in line with it.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Fleet>> {
        self.fleet.subscribe()
    }

    /// Chooses and books for an edge elsewhere.
    pub(crate) fn ask(&self, pool: &PoolId, key: &LeaseKey, route: &Route, now: Moment) -> Answer {
        let Some(pool) = self.named(pool) else {
            return Answer::Rejected(RejectReason::UnknownModel);
        };
        let (answer, trace) = pool.route_for(key, route, now);
        let took = lifecycle::monotonic().seconds_since(now);
        self.families.decision_seconds.observe(took);
        if let Some((trace, id)) = trace {
            let told = match (&answer, id) {
                (Answer::Decided(decision, _), Some(id)) => {
                    if let Some(events) = &self.decisions {
                        events.decided(route, decision);
                    }
                    Some((id, decision.evidence.clone()))
                }
                _ => None,
            };
            self.explanations.record(trace, told, unix_millis());
        }
        answer
    }

    /// Takes a report of an edge elsewhere.
    pub(crate) fn hear(&self, pool: &PoolId, key: LeaseKey, what: &What, now: Moment) {
        if let Some(pool) = self.named(pool) {
            self.explain_all(pool.hear(key, what, now));
        }
    }

    /// An edge elsewhere says in short what it holds.
    pub(crate) fn audit(&self, pool: &PoolId, audit: &Audit, now: Moment) -> Option<AuditReply> {
        self.named(pool)?.audit(audit, now)
    }

    /// An edge elsewhere says one by one what it holds.
    pub(crate) fn resume(&self, pool: &PoolId, resume: &Resume, now: Moment) {
        if let Some(pool) = self.named(pool) {
            self.explain_all(pool.resume(resume, now));
        }
    }

    /// The last session of an edge's process broke.
    pub(crate) fn broken(&self, edge: &Process, now: Moment) {
        for pool in self.all() {
            pool.broken(edge, now);
        }
    }

    /// Whether a pool is served here; `None` if it is not known.
    pub(crate) fn ownership(&self, pool: &PoolId, now: Moment) -> Option<Ownership> {
        Some(self.named(pool)?.ownership(now))
    }

    /// The list that owners follow from.
    pub(crate) fn members(&self) -> MemberList {
        self.members.read().clone()
    }

    /// Its epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        self.members.read().epoch
    }

    /// A member list came, from telemetry or another member.
    pub(crate) fn set_list(&self, list: &MemberList, now: Moment) {
        if !self.members.write().replace_if_newer(list) {
            return;
        }
        for pool in self.all() {
            pool.set_list(list, now);
        }
    }

    /// Another router says something of a pool.
    pub(crate) fn hear_router(
        &self,
        from: &Process,
        pool: &PoolId,
        message: MessageOf<State>,
        now: Moment,
    ) {
        if let Some(pool) = self.named(pool) {
            pool.hear_router(from, message, now);
        }
    }

    /// Time has passed for the copies of pools. Returns how many are served here, and how many
    /// copies are in step.
    pub(crate) fn tick_copies(&self, now: Moment) -> (usize, usize) {
        let (mut served, mut followed) = (0, 0);
        for pool in self.all() {
            pool.tick_copies(now);
            match pool.role() {
                PoolRole::Serves => served += 1,
                PoolRole::Follows => followed += 1,
                PoolRole::Aside => {}
            }
        }
        self.served.send_if_modified(|before| std::mem::replace(before, served) != served);
        (served, followed)
    }

    /// Tells when other pools are served here than before.
    pub(crate) fn watch_served(&self) -> watch::Receiver<usize> {
        self.served.subscribe()
    }

    /// Leases of edges elsewhere.
    #[cfg(test)]
    pub(crate) fn booked(&self, pool: &PoolId) -> Vec<(LeaseKey, replication::Lease)> {
        self.named(pool).map(|pool| pool.booked()).unwrap_or_default()
    }

    /// A pool's state.
    #[cfg(test)]
    pub(crate) fn with_state<R>(&self, pool: &PoolId, read: impl FnOnce(&State) -> R) -> R {
        self.named(pool).expect("a known pool").with_state(read)
    }

    /// A Route of an edge elsewhere had no decision.
    pub(crate) fn count_rejected(&self, reason: RejectReason) {
        self.families.rejected(reason);
    }

    fn named(&self, pool: &PoolId) -> Option<Arc<Pool>> {
        self.pools.read().by_model.get(pool.as_str()).cloned()
    }

    fn explain_all(&self, outcomes: Vec<(LeaseId, Outcome)>) {
        for (lease, outcome) in outcomes {
            self.explanations.update(lease, outcome);
        }
    }

    /// Takes a report; those for unknown leases are ignored.
    pub(crate) fn report_at(&self, report: &Report, now: Moment) {
        let lease = report.lease();
        let pool = self.pools.read().by_number.get(&pool_of(lease)).cloned();
        if let Some(outcome) = pool.and_then(|p| p.report(report, now)) {
            self.explanations.update(lease, outcome);
        }
    }

    /// Time has passed: due prefills begin, lost leases end, gauges are set.
    pub(crate) fn tick(&self, now: Moment) {
        for pool in self.all() {
            self.explain_all(pool.tick(now));
        }
    }

    /// All that is kept of a recent request: every candidate's score, why it lost, the outcome.
    pub fn explain(&self, request: &str) -> Option<serde_json::Value> {
        self.explanations.explain(request)
    }

    /// Every rank of every pool, as operators see them.
    pub(crate) fn view(&self, now: Moment) -> serde_json::Value {
        let ranks: Vec<serde_json::Value> = self.all().iter().flat_map(|p| p.view(now)).collect();
        serde_json::json!({ "fleet_revision": self.fleet.borrow().revision, "ranks": ranks })
    }

    fn all(&self) -> Vec<Arc<Pool>> {
        self.pools.read().by_number.values().cloned().collect()
    }

    fn pool_for(&self, model: &ModelId) {
        if self.pools.read().by_model.contains_key(model) {
            return;
        }
        let mut pools = self.pools.write();
        let number = pools.next;
        pools.next += 1;
        let families = self.families.clone();
        let pool =
            Pool::new(model.clone(), number, self.config.clone(), families, self.peers.as_ref());
        pool.set_list(&self.members.read(), lifecycle::monotonic());
        let pool = Arc::new(pool);
        pools.by_model.insert(model.clone(), pool.clone());
        pools.by_number.insert(u64::from(number), pool);
    }

    fn forget_empty(&self) {
        if self.pools.read().by_number.len() <= EMPTY_POOLS {
            return;
        }
        let mut pools = self.pools.write();
        let empty: Vec<u64> =
            pools.by_number.iter().filter(|(_, p)| p.is_empty()).map(|(n, _)| *n).collect();
        let surplus = empty.len().saturating_sub(EMPTY_POOLS);
        for number in &empty[..surplus] {
            if let Some(pool) = pools.by_number.remove(number) {
                pools.by_model.remove(&pool.model);
                self.families.remove_pool(&pool.model);
            }
        }
    }
}

impl Pools {
    /// The pool of the model behind a name.
    fn of(&self, name: &ModelId) -> Option<&Arc<Pool>> {
        self.by_model.get(self.names.get(name).unwrap_or(name))
    }
}

/// Who serves each model, under any of its names. A backend has one seat in a pool, whatever the
/// number of names: it has one cache.
fn seats<'a>(
    fleet: &'a Fleet,
    bases: &HashMap<&'a ModelId, &'a Base>,
) -> HashMap<&'a ModelId, Vec<Seat<'a>>> {
    let mut seats: HashMap<&ModelId, Vec<Seat<'_>>> = HashMap::new();
    for backend in &fleet.backends {
        for model in &backend.models {
            let pool = bases.get(&model.id).map_or(&model.id, |base| &base.model);
            let seats = seats.entry(pool).or_default();
            match seats.last_mut().filter(|seat| Arc::ptr_eq(seat.backend, backend)) {
                Some(seat) if model.id == *pool => seat.model = model,
                Some(_) => {}
                None => seats.push(Seat { backend, model }),
            }
        }
    }
    seats
}

fn unix_millis() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

impl RoutingClient for Router {
    fn route(&self, route: Route) -> BoxFuture<'_, Result<Decision, Rejected>> {
        let started = lifecycle::monotonic();
        let tried = self.try_route(&route, started);
        let took = lifecycle::monotonic().seconds_since(started);
        self.families.decision_seconds.observe(took);
        let waits = tried.0.as_ref().is_err_and(|reason| reason.may_pass());
        if waits && !route.hold.is_zero() {
            let until = started + route.hold;
            return Box::pin(self.route_held(route, until));
        }
        Box::pin(std::future::ready(self.conclude(tried)))
    }

    fn report(&self, report: Report) {
        self.report_at(&report, lifecycle::monotonic());
    }

    fn fleet(&self) -> Arc<Fleet> {
        self.fleet.borrow().clone()
    }

    fn watch_fleet(&self) -> BoxStream<'static, Arc<Fleet>> {
        Box::pin(tokio_stream::wrappers::WatchStream::from_changes(self.fleet.subscribe()))
    }
}
