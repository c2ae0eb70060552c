//! The router as a service: follows the fleet, lets time pass.

use std::sync::Arc;
use std::time::Duration;

use domain::{Fleet, RoutingClient};
use lifecycle::Drain;
use prometheus::Registry;
use replication::MemberList;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::metrics::Families;
use crate::{Config, Error, Router, SessionDeps, Sessions};

/// How often gauges are set and lost leases looked for. Decisions never wait for it.
const TICK: Duration = Duration::from_secs(1);

/// What the router needs from outside.
pub struct Deps {
    /// Where its metrics are registered.
    pub registry: Registry,
    /// The backends as last seen, and every later state.
    pub fleet: watch::Receiver<Arc<Fleet>>,
    /// The members of the region, from which follows which pools this router serves; the empty
    /// list where it is the only one.
    pub members: watch::Receiver<MemberList>,
}

/// A router that is ready to decide; [`run`](Self::run) keeps it up to date.
pub struct Service {
    router: Arc<Router>,
    fleet: watch::Receiver<Arc<Fleet>>,
    members: watch::Receiver<MemberList>,
    sessions: Option<Sessions>,
}

impl Config {
    /// Builds the service. It knows the fleet as it is now before this returns.
    ///
    /// # Errors
    /// When the registry already holds the router's metrics.
    pub fn build(self, deps: Deps) -> Result<Service, Error> {
        let Deps { registry, mut fleet, members } = deps;
        let router = Arc::new(Router::new(self.scheduling, Families::register(&registry)?));
        let now = fleet.borrow_and_update().clone();
        router.reconcile(now);
        Ok(Service { router, fleet, members, sessions: None })
    }
}

impl Service {
    /// The routing port, in this process.
    pub fn client(&self) -> Arc<dyn RoutingClient> {
        self.router.clone()
    }

    /// What edges in other processes connect to. To be asked for once, before
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// When the registry already holds the metrics of sessions.
    pub fn sessions(&mut self, deps: SessionDeps) -> Result<Sessions, Error> {
        let list = self.members.borrow_and_update().clone();
        let sessions = Sessions::new(self.router.clone(), list, deps)?;
        self.sessions = Some(sessions.clone());
        Ok(sessions)
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
    pub async fn run(mut self, drain: Drain) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut followed, mut listed) = (true, self.sessions.is_some());
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                _ = tick.tick() => self.router.tick(lifecycle::monotonic()),
                changed = self.fleet.changed(), if followed => match changed {
                    Ok(()) => {
                        let fleet = self.fleet.borrow_and_update().clone();
                        self.router.reconcile(fleet);
                    }
                    // Whoever published is gone; the last state stands.
                    Err(_) => followed = false,
                },
                changed = self.members.changed(), if listed => match (changed, &self.sessions) {
                    (Ok(()), Some(sessions)) => {
                        let list = self.members.borrow_and_update().clone();
                        sessions.set_list(&list, lifecycle::monotonic());
                    }
                    _ => listed = false,
                },
            }
        }
    }
}
