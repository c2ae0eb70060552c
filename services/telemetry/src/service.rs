//! Telemetry as a service: the registry's backends, a prober for each, and what they see as one
//! fleet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use config_feed::Hub;
use config_store::{ConfigStore, Scope, Timestamp};
use domain::desired::{self, Document};
use domain::{BoxStream, Fleet, ModelId};
use futures_util::{FutureExt, StreamExt};
use lifecycle::{Drain, TaskSpawner};
use tokenization::ModelFolder;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::feed::Outwards;
use crate::http_client::Connectors;
use crate::metrics::Families;
use crate::parity::Parity;
use crate::publish::Publisher;
use crate::registry::Registry;
use crate::supervisor::{Shared, Supervisor};
use crate::{Config, Error, FileBackends};

/// How often everything is compared although nothing was said.
const SUPERVISE: Duration = Duration::from_secs(1);

/// A fleet whose backends do not answer within this counts as seen all the same. Probes and what
/// is learned at a join are limited to a second each; the parity check alone may take longer.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

/// What telemetry needs from outside.
pub struct Deps {
    /// Where its metrics are registered.
    pub registry: prometheus::Registry,
    /// Starts the probers.
    pub spawner: TaskSpawner,
    /// The model folders, for the parity check.
    pub models: HashMap<ModelId, Arc<ModelFolder>>,
    /// The desired state: backends that come and go.
    pub store: Arc<dyn ConfigStore>,
}

/// Telemetry, ready to run.
pub struct Service {
    registry: Registry,
    shared: Shared,
    store: Arc<dyn ConfigStore>,
    hub: Arc<Hub>,
    reload: Reload,
    configs: watch::Receiver<Config>,
}

/// Puts other configs in force. A cheap handle.
#[derive(Clone, Debug)]
pub struct Reload {
    configs: watch::Sender<Config>,
    file: FileBackends,
}

impl Reload {
    /// From now on backends are watched by this config: those of the file that are gone leave at
    /// once, others come, and what stays keeps what is known of it. The store is the one that the
    /// service was built with.
    pub fn apply(&self, config: Config) {
        self.file.replace(&config.backends);
        self.configs.send_replace(config);
    }
}

impl Config {
    /// Builds the service.
    ///
    /// # Errors
    /// The registry already holds telemetry's metrics, or TLS is needed and cannot be set up.
    pub fn build(self, deps: Deps) -> Result<Service, Error> {
        let Deps { registry, spawner, models, store } = deps;
        let families = Arc::new(Families::register(&registry)?);
        let connectors = Connectors::new(self.timing.timeout)?;
        if self.backends.iter().any(|b| b.https) {
            connectors.check()?;
        }
        let publisher = Publisher::new(families.revision.clone(), families.state.clone());
        let shared = Shared {
            spawner,
            families,
            publisher: Arc::new(publisher),
            connectors,
            parity: Parity::new(&models),
            timing: self.timing,
        };
        let file = FileBackends::new(&self.backends);
        let registry =
            Registry::new(store.clone(), self.backends.clone(), self.credentials.clone());
        let hub = Hub::new(Timestamp::now().0, lifecycle::monotonic());
        let (to_configs, configs) = watch::channel(self);
        let reload = Reload { configs: to_configs, file };
        Ok(Service { registry, shared, store, hub, reload, configs })
    }
}

impl Service {
    /// The observed state, and every later one.
    pub fn fleet(&self) -> watch::Receiver<Arc<Fleet>> {
        self.shared.publisher.subscribe()
    }

    /// Whether [`Service::fleet`] is of everything that is wanted, probed at least once. Before
    /// that it says less than what others may still know from an earlier start.
    pub fn whole(&self) -> watch::Receiver<bool> {
        self.shared.publisher.whole()
    }

    /// What edges and routers watch: desired and observed state, and the list of members.
    pub fn hub(&self) -> Arc<Hub> {
        self.hub.clone()
    }

    /// The backends of the config file, for whoever stores others beside them.
    pub fn file_backends(&self) -> FileBackends {
        self.reload.file.clone()
    }

    /// Puts other configs in force while it runs.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Watches the backends until the drain.
    pub async fn run(self, drain: Drain) {
        let publisher = self.shared.publisher.clone();
        let outwards = Outwards {
            hub: self.hub(),
            store: self.store.clone(),
            fleet: self.fleet(),
            whole: self.whole(),
            families: self.shared.families.clone(),
        };
        tokio::select! {
            () = outwards.run(&drain) => {}
            () = publisher.run(&drain) => {}
            () = self.keep(drain.clone()) => {}
            () = settle(&publisher) => {}
        }
    }

    /// Keeps the probers in line with the registry until the drain: after every change, and from
    /// time to time without one.
    async fn keep(mut self, drain: Drain) {
        let (families, publisher) = (self.shared.families.clone(), self.shared.publisher.clone());
        let mut supervisor = Supervisor::new(self.shared, drain.clone());
        let mut wishes = self.reload.file.wishes();
        self.registry.rewish(wishes.borrow_and_update().clone());
        // What the file says needs no store.
        supervisor.reconcile(self.registry.of_file()).await;
        let mut nudges = Nudges::new(self.store);
        // `self` keeps senders, so that neither ever ends.
        let mut configs = self.configs;
        let mut ticks = tokio::time::interval(SUPERVISE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = nudges.next() => {}
                Ok(()) = configs.changed() => {
                    let Config { timing, backends, credentials, store: _ } =
                        configs.borrow_and_update().clone();
                    self.registry.renew(backends, credentials);
                    supervisor.retime(timing).await;
                }
                Ok(()) = wishes.changed() => {
                    self.registry.rewish(wishes.borrow_and_update().clone());
                }
                _ = ticks.tick() => nudges.renew(),
            }
            match self.registry.read().await {
                Ok(roster) => {
                    if let Some(roster) = roster {
                        supervisor.reconcile(roster).await;
                        let revision = self.registry.revision().0;
                        families.registry_revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
                        let refused = self.registry.refused();
                        families.refused.set(i64::try_from(refused).unwrap_or(i64::MAX));
                    }
                    publisher.complete();
                }
                Err(error) => tracing::error!(%error, "the registry cannot be read"),
            }
            supervisor.start_ended();
        }
    }
}

/// After a while, backends that never answered are no reason to say nothing of the others.
async fn settle(publisher: &Publisher) {
    tokio::time::sleep(SETTLE_WITHIN).await;
    publisher.settle();
    std::future::pending().await
}

/// Tells that a backend's document changed. Carries nothing: whoever is nudged reads the store.
struct Nudges {
    store: Arc<dyn ConfigStore>,
    changes: Option<BoxStream<'static, ()>>,
}

impl Nudges {
    fn new(store: Arc<dyn ConfigStore>) -> Self {
        let mut nudges = Self { store, changes: None };
        nudges.renew();
        nudges
    }

    /// A watch that ended is begun again.
    fn renew(&mut self) {
        if self.changes.is_none() {
            let scope = Scope::kind(desired::Backend::KIND);
            let changes = self.store.watch(scope, self.store.revision());
            self.changes =
                Some(changes.take_while(|c| std::future::ready(c.is_ok())).map(drop).boxed());
        }
    }

    /// Returns after a change; several at a time are one.
    async fn next(&mut self) {
        let Some(changes) = &mut self.changes else { return std::future::pending().await };
        let mut next = changes.next().await;
        while next.is_some() {
            match changes.next().now_or_never() {
                Some(more) => next = more,
                None => return,
            }
        }
        self.changes = None;
    }
}

#[cfg(test)]
mod tests;
