//! The router as a service: follows the fleet, lets time pass.

use std::sync::Arc;
use std::time::Duration;

use domain::{Fleet, RoutingClient};
use lifecycle::Drain;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::metrics::Families;
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

/// A router that is ready to decide; [`run`](Self::run) keeps it up to date.
pub struct Service {
    router: Arc<Router>,
    fleet: watch::Receiver<Arc<Fleet>>,
}

impl Config {
    /// Builds the service. It knows the fleet as it is now before this returns.
    ///
    /// # Errors
    /// When the registry already holds the router's metrics.
    pub fn build(self, deps: Deps) -> Result<Service, Error> {
        let Deps { registry, mut fleet } = deps;
        let router = Arc::new(Router::new(self.scheduling, Families::register(&registry)?));
        let now = fleet.borrow_and_update().clone();
        router.reconcile(now);
        Ok(Service { router, fleet })
    }
}

impl Service {
    /// The routing port, in this process.
    pub fn client(&self) -> Arc<dyn RoutingClient> {
        self.router.clone()
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
        let mut followed = true;
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
            }
        }
    }
}
