//! The router as a service: follows the fleet, lets time pass.

use std::sync::Arc;
use std::time::Duration;

use domain::{Fleet, RoutingClient};
use events::DecisionEvents;
use lifecycle::{Drain, TaskSpawner};
use prometheus::Registry;
use replication::{MemberList, Process};
use rpc::{ClientConfig, Fingerprint};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tonic::service::Routes;

use crate::metrics::{Families, Region as RegionMetrics};
use crate::pool::{Outbox, Outgoing, Peers};
use crate::replica::{self, OUTBOX, RegionBus, Replica};
use crate::sessions::{self, Sessions};
use crate::{Config, Error, Router};

/// How often gauges are set and lost leases looked for. Decisions never wait for it.
const TICK: Duration = Duration::from_secs(1);

/// What the router needs from outside.
pub struct Deps {
    /// Where its metrics are registered.
    pub registry: Registry,
    /// The backends as last seen, and every later state.
    pub fleet: watch::Receiver<Arc<Fleet>>,
}

/// What it needs besides to be a process of its own, perhaps one of several.
pub struct RegionDeps {
    /// This process, as it is a member.
    pub me: Process,
    /// The members of the region, from which follows which pools this router serves.
    pub members: watch::Receiver<MemberList>,
    /// Of the region's secret: edges and routers must have the same.
    pub fingerprint: Fingerprint,
    /// How other routers are called.
    pub client: ClientConfig,
    /// Where owners of pools tell their copies what they do; by direct calls without.
    pub bus: Option<RegionBus>,
    /// Whether others are told of decisions.
    pub decisions: Option<DecisionEvents>,
    /// What its tasks are started with.
    pub spawner: TaskSpawner,
}

/// A router that is ready to decide; [`run`](Self::run) keeps it up to date.
pub struct Service {
    router: Arc<Router>,
    fleet: watch::Receiver<Arc<Fleet>>,
    region: Option<Region>,
}

/// The router among others.
struct Region {
    members: watch::Receiver<MemberList>,
    sessions: Sessions,
    replica: Replica,
    outgoing: mpsc::Receiver<Outgoing>,
}

impl Config {
    /// Builds a router that serves its own process and everything that process has. It knows the
    /// fleet as it is now before this returns.
    ///
    /// # Errors
    /// When the registry already holds the router's metrics.
    pub fn build(self, deps: Deps) -> Result<Service, Error> {
        let Deps { registry, fleet } = deps;
        let router = Router::new(self.choosing, Families::register(&registry)?, None);
        Ok(Service::new(Arc::new(router), fleet, None))
    }

    /// Builds a router that edges of other processes ask, and that shares the region's pools with
    /// other routers.
    ///
    /// # Errors
    /// When the registry already holds the router's metrics.
    pub fn build_in_region(self, deps: Deps, region: RegionDeps) -> Result<Service, Error> {
        let Deps { registry, fleet } = deps;
        let RegionDeps { me, members, fingerprint, client, bus, decisions, spawner } = region;
        let metrics = RegionMetrics::register(&registry)?;
        let (outbox, outgoing) = Outbox::new(OUTBOX, metrics.copies.clone());
        let hidden = Arc::new(Families::register(&Registry::new())?);
        let peers = Peers { me: me.clone(), hidden, outbox };
        let families = Families::register(&registry)?;
        let router = Router::new(self.choosing, families, Some(peers)).telling(decisions);
        let router = Arc::new(router);
        let sessions = Sessions::new(
            sessions::Deps {
                router: router.clone(),
                me: me.clone(),
                fingerprint,
                spawner: spawner.clone(),
            },
            &registry,
        )?;
        let replica = Replica::new(replica::Deps {
            router: router.clone(),
            me,
            fingerprint,
            client,
            bus,
            spawner,
            metrics,
        });
        let region = Region { members, sessions, replica, outgoing };
        Ok(Service::new(router, fleet, Some(region)))
    }
}

impl Service {
    fn new(
        router: Arc<Router>,
        mut fleet: watch::Receiver<Arc<Fleet>>,
        mut region: Option<Region>,
    ) -> Self {
        let now = fleet.borrow_and_update().clone();
        router.reconcile(now);
        if let Some(region) = &mut region {
            let list = region.members.borrow_and_update().clone();
            router.set_list(&list, lifecycle::monotonic());
        }
        Self { router, fleet, region }
    }

    /// The routing port, in this process.
    pub fn client(&self) -> Arc<dyn RoutingClient> {
        self.router.clone()
    }

    /// What edges and routers in other processes call; nothing of a router that has no region.
    pub fn routes(&self) -> Routes {
        let routes = Routes::default();
        match &self.region {
            None => routes,
            Some(Region { sessions, replica, .. }) => {
                routes.add_service(sessions.service()).add_service(replica.service())
            }
        }
    }

    /// The router itself, for [`api::admin_routes`](crate::api::admin_routes).
    pub fn admin(&self) -> Arc<Router> {
        self.router.clone()
    }

    /// All that is kept of a recent request, as JSON; `None` if it is unknown or too long ago.
    pub fn explain(&self, request: &str) -> Option<serde_json::Value> {
        self.router.explain(request)
    }

    /// Follows the fleet until the drain. The handles that were given out go on deciding on the
    /// last state after that.
    pub async fn run(self, drain: Drain) {
        let Self { router, fleet, region } = self;
        let following = follow(router.clone(), fleet, drain.clone());
        match region {
            None => following.await,
            Some(Region { members, replica, outgoing, .. }) => {
                let listening = follow_members(router, members, drain.clone());
                tokio::join!(following, listening, replica.run(outgoing, drain));
            }
        }
    }
}

async fn follow(router: Arc<Router>, mut fleet: watch::Receiver<Arc<Fleet>>, drain: Drain) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_followed = true;
    loop {
        tokio::select! {
            () = drain.signaled() => return,
            _ = tick.tick() => router.tick(lifecycle::monotonic()),
            changed = fleet.changed(), if is_followed => match changed {
                Ok(()) => {
                    let fleet = fleet.borrow_and_update().clone();
                    router.reconcile(fleet);
                }
                // Whoever published is gone; the last state stands.
                Err(_) => is_followed = false,
            },
        }
    }
}

async fn follow_members(
    router: Arc<Router>,
    mut members: watch::Receiver<MemberList>,
    drain: Drain,
) {
    loop {
        tokio::select! {
            () = drain.signaled() => return,
            changed = members.changed() => {
                // Whoever published is gone; the last list stands, and other members have it.
                if changed.is_err() {
                    return drain.signaled().await;
                }
                let list = members.borrow_and_update().clone();
                router.set_list(&list, lifecycle::monotonic());
            }
        }
    }
}
