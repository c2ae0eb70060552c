//! The routing port over sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    BoxFuture, BoxStream, Decision, Fleet, ModelId, Moment, Rejected, Report, Route, RoutingClient,
};
use lifecycle::{TaskSpawner, Throttle};
use parking_lot::Mutex;
use proto::Reported;
use proto::routing::v1::edge_message::Kind;
use proto::routing::v1::{self};
use replication::{MemberList, PoolId, Process};
use rpc::Fingerprint;
use tokio::sync::{Notify, watch};
use tokio_stream::wrappers::WatchStream;

use crate::links::Links;
use crate::state::State;
use crate::{Config, Metrics, ask, links};

/// How often it is looked whether a router is connected, where that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the edge's end of sessions needs.
pub struct Deps {
    /// What its tasks are started with. Sessions end with its drain: give it the spawner of the
    /// background stage, so that requests still have routers while the edge drains.
    pub spawner: TaskSpawner,
    /// This process, as it is a member.
    pub me: Process,
    /// Of the region's secret: routers must have the same.
    pub fingerprint: Fingerprint,
    /// The backends as last seen, and every later state.
    pub fleet: watch::Receiver<Arc<Fleet>>,
    /// The members of the region, and every later list.
    pub members: watch::Receiver<MemberList>,
    /// Its series.
    pub metrics: Metrics,
}

/// Asks the routers of a region. A cheap handle; its tasks end with the spawner's drain.
#[derive(Clone)]
pub struct SessionClient(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) spawner: TaskSpawner,
    pub(crate) me: Process,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) fleet: watch::Receiver<Arc<Fleet>>,
    pub(crate) metrics: Metrics,
    pub(crate) state: Mutex<State>,
    pub(crate) links: Links,
    pub(crate) pools: Mutex<Pools>,
    /// When the edge decided alone last, while it counts as being alone.
    pub(crate) alone_at: Mutex<Option<Moment>>,
    /// A stream was opened: who waits for one may try again.
    pub(crate) opened: Notify,
    /// Lines about what routers say that is of no use.
    pub(crate) lines: Throttle,
}

/// The pools of all names that are served, by one state of the fleet.
#[derive(Default)]
pub(crate) struct Pools {
    fleet: Arc<Fleet>,
    of_names: HashMap<ModelId, PoolId>,
}

impl SessionClient {
    /// Begins to connect to the routers of the list, and goes on as it changes.
    pub fn start(config: Config, deps: Deps) -> Self {
        let Deps { spawner, me, fingerprint, fleet, members, metrics } = deps;
        let shared = Arc::new(Shared {
            config,
            spawner: spawner.clone(),
            state: Mutex::new(State::new(me.clone())),
            me,
            fingerprint,
            fleet,
            metrics,
            links: Links::new(lifecycle::monotonic()),
            pools: Mutex::default(),
            alone_at: Mutex::default(),
            opened: Notify::new(),
            lines: Throttle::default(),
        });
        let list = members.borrow().clone();
        links::set_list(&shared, &list);
        spawner.spawn("session-members", links::follow(Arc::clone(&shared), members));
        spawner.spawn("session-audits", links::audit(Arc::clone(&shared)));
        Self(shared)
    }

    /// Waits until a router is connected.
    pub async fn connected(&self) {
        while self.0.metrics.streams.get() == 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl RoutingClient for SessionClient {
    fn route(&self, route: Route) -> BoxFuture<'_, Result<Decision, Rejected>> {
        Box::pin(ask::route(Arc::clone(&self.0), route))
    }

    fn report(&self, report: Report) {
        let Some(reported) = self.0.state.lock().report(report) else { return };
        if !self.0.tell(&reported) {
            self.0.metrics.reports_dropped.inc();
        }
    }

    fn fleet(&self) -> Arc<Fleet> {
        self.0.fleet.borrow().clone()
    }

    fn watch_fleet(&self) -> BoxStream<'static, Arc<Fleet>> {
        Box::pin(WatchStream::from_changes(self.0.fleet.clone()))
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Moment {
        lifecycle::monotonic()
    }

    /// The pool of a model: that of its base where it has no cache of its own. `None` for one
    /// that no backend lists: what clients ask for must not make pools.
    pub(crate) fn pool_of(&self, model: &ModelId) -> Option<PoolId> {
        let fleet = self.fleet.borrow().clone();
        let mut pools = self.pools.lock();
        if !Arc::ptr_eq(&pools.fleet, &fleet) {
            let bases = fleet.bases();
            let served = fleet.backends.iter().flat_map(|backend| &backend.models);
            let pool = |id: &ModelId| {
                let model = bases.get(id).map_or(id, |base| &base.model);
                (id.clone(), PoolId::new(model.as_str()))
            };
            let of_names = served.map(|served| pool(&served.id)).collect();
            drop(bases);
            *pools = Pools { fleet, of_names };
        }
        pools.of_names.get(model).cloned()
    }

    /// Tells the router that the pool would be asked of. `false` if there is none.
    pub(crate) fn tell(&self, reported: &Reported) -> bool {
        let order = self.state.lock().holdings.ask_order(&reported.pool);
        let stream = self.links.first_open(&order, reported.lease.0);
        stream.is_some_and(|stream| stream.outbox.push(Kind::Report(v1::Report::from(reported))))
    }
}
