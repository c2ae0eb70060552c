//! Telemetry as a service: a prober per backend, and what they see as one fleet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{BackendId, Fleet, ModelId};
use lifecycle::{Drain, TaskHandle, TaskSpawner};
use prometheus::Registry;
use tokenization::ModelFolder;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::http_client::{EngineClient, connector};
use crate::metrics::{BackendMetrics, Families};
use crate::parity::Parity;
use crate::prober::{Prober, ProberDeps, unknown};
use crate::publish::Publisher;
use crate::{Config, Error};

/// First rounds are spread over so much per backend, up to one metrics interval: a small fleet is
/// known at once, a large one is not asked in one instant.
const SPREAD_PER_BACKEND: Duration = Duration::from_millis(10);

/// How often it is seen to that every prober still runs.
const SUPERVISE: Duration = Duration::from_secs(1);

/// What telemetry needs from outside.
pub struct Deps {
    /// Where its metrics are registered.
    pub registry: Registry,
    /// Starts the probers.
    pub spawner: TaskSpawner,
    /// The model folders, for the parity check.
    pub models: HashMap<ModelId, Arc<ModelFolder>>,
}

/// Telemetry, ready to run.
pub struct Service {
    spawner: TaskSpawner,
    families: Arc<Families>,
    publisher: Arc<Publisher>,
    probers: Vec<(ProberDeps, Duration)>,
}

impl Config {
    /// Builds the service. The fleet holds every backend from now on, as joining.
    ///
    /// # Errors
    /// The registry already holds telemetry's metrics, or TLS is needed and cannot be set up.
    pub fn build(self, deps: Deps) -> Result<Service, Error> {
        let Deps { registry, spawner, models } = deps;
        let families = Arc::new(Families::register(&registry)?);
        let tls = self.backends.iter().any(|b| b.https);
        let connector = connector(tls, self.timing.timeout)?;
        let parity = Parity::new(&models);
        let backends = self.backends.iter().map(|spec| unknown(spec)).collect();
        let publisher = Arc::new(Publisher::new(backends, families.revision.clone()));
        let count = u32::try_from(self.backends.len()).unwrap_or(u32::MAX);
        let spread = SPREAD_PER_BACKEND.saturating_mul(count).min(self.timing.metrics_interval);
        let probers = self
            .backends
            .into_iter()
            .map(|spec| {
                let phase = spread.mul_f64(share(&spec.id));
                let client = EngineClient::new(connector.clone(), &spec);
                let (timing, parity) = (self.timing, parity.clone());
                (ProberDeps { spec, timing, client, parity, publisher: publisher.clone() }, phase)
            })
            .collect();
        Ok(Service { spawner, families, publisher, probers })
    }
}

impl Service {
    /// The observed state, and every later one.
    pub fn fleet(&self) -> watch::Receiver<Arc<Fleet>> {
        self.publisher.subscribe()
    }

    /// Watches the backends until the drain.
    pub async fn run(self, drain: Drain) {
        tokio::select! {
            () = self.publisher.run(&drain) => {}
            () = self.supervise(&drain) => {}
        }
    }

    /// Keeps exactly one prober per backend running. One that ended by a panic is started again
    /// from what was published last; a backend that nobody watches would stay as it is for ever.
    async fn supervise(&self, drain: &Drain) {
        let mut running = self.start_all(drain);
        let mut ticks = tokio::time::interval(SUPERVISE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                _ = ticks.tick() => {}
            }
            self.start_ended(&mut running, drain);
        }
    }

    fn start_all(&self, drain: &Drain) -> Vec<TaskHandle> {
        self.probers.iter().map(|(deps, phase)| self.start(deps, *phase, drain)).collect()
    }

    fn start_ended(&self, running: &mut [TaskHandle], drain: &Drain) {
        for (task, (deps, phase)) in running.iter_mut().zip(&self.probers) {
            if task.is_finished() && !drain.is_draining() {
                tracing::error!(backend.id = %deps.spec.id, "prober ended, starting it again");
                self.families.prober_restarts.inc();
                *task = self.start(deps, *phase, drain);
            }
        }
    }

    fn start(&self, deps: &ProberDeps, phase: Duration, drain: &Drain) -> TaskHandle {
        let metrics = BackendMetrics::new(&self.families, &deps.spec.id);
        let prober = Prober::new(deps.clone(), metrics);
        self.spawner.spawn("telemetry-prober", prober.run(phase, drain.clone()))
    }
}

/// A number from 0 to 1 that belongs to the name: the same at every start, and spread evenly
/// over many names (FNV-1a, whose high bits are mixed well enough for that).
fn share(id: &BackendId) -> f64 {
    let hash = id.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The top 32 bits of a final multiplication: short names differ in their last byte only.
    f64::from((hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod unit_tests {
    use domain::BackendState;
    use lifecycle::Lifecycle;

    use super::*;
    use crate::tests::kit::{Engine, Script, quick};

    #[test]
    fn a_thousand_backends_are_spread_over_the_interval() {
        let mut tenths = [0; 10];
        for i in 0..1000 {
            let at = share(&format!("backend-{i}").as_str().into());
            tenths[((at * 10.0) as usize).min(9)] += 1;
        }
        assert!(tenths.iter().all(|n| (60..=140).contains(n)), "{tenths:?}");
    }

    #[tokio::test]
    async fn a_prober_that_ended_is_started_again_and_goes_on_from_what_was_seen() {
        let engine = Engine::start(Script::default()).await;
        let lifecycle = Lifecycle::new();
        let deps = Deps {
            registry: Registry::new(),
            spawner: lifecycle.spawner(),
            models: HashMap::new(),
        };
        let config = Config::new(quick(), vec![engine.backend("a")]).expect("valid");
        let service = config.build(deps).expect("an empty registry");
        let mut fleet = service.fleet();
        let drain = lifecycle.drain();
        let mut running = service.start_all(&drain);
        let is = |f: &Arc<Fleet>, state| f.backends[0].state == state;
        let publish = service.publisher.run(&drain);
        tokio::select! {
            () = publish => panic!("it publishes until the drain"),
            ready = fleet.wait_for(|f| is(f, BackendState::Ready)) => drop(ready.expect("alive")),
        }
        running[0].abort();
        while !running[0].is_finished() {
            tokio::task::yield_now().await;
        }
        service.start_ended(&mut running, &drain);
        assert_eq!(service.families.prober_restarts.get(), 1);
        assert!(is(&fleet.borrow(), BackendState::Ready), "nobody is taken out by it");
        engine.change(|s| s.health = 503);
        let publish = service.publisher.run(&drain);
        tokio::select! {
            () = publish => panic!("it publishes until the drain"),
            down = fleet.wait_for(|f| is(f, BackendState::Down)) => drop(down.expect("alive")),
        }
        assert_eq!(fleet.borrow().backends[0].incarnation.0, 1);
    }
}
