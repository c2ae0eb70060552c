//! Keeps exactly one prober per wanted backend running.
//!
//! [`Supervisor::reconcile`] compares what should be there with what is: whatever is the same is
//! not touched. Backends that go are out of the fleet before it waits for anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{BackendId, Incarnation};
use lifecycle::{Drain, TaskHandle, TaskSpawner};

use crate::config::Timing;
use crate::http_client::{Connectors, EngineClient};
use crate::metrics::{BackendMetrics, Families};
use crate::parity::Parity;
use crate::prober::{Prober, ProberDeps, unknown};
use crate::publish::Publisher;
use crate::registry::{Roster, Wanted};

/// First rounds are spread over so much per backend, up to one metrics interval: a small fleet is
/// known at once, a large one is not asked in one instant.
const SPREAD_PER_BACKEND: Duration = Duration::from_millis(10);

/// How often it is looked whether a prober that was told to end has.
const END_CHECK: Duration = Duration::from_millis(1);

/// What all probers share.
pub(crate) struct Shared {
    pub(crate) spawner: TaskSpawner,
    pub(crate) families: Arc<Families>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) connectors: Connectors,
    pub(crate) parity: Parity,
    pub(crate) timing: Timing,
}

/// The probers that run.
pub(crate) struct Supervisor {
    shared: Shared,
    drain: Drain,
    running: BTreeMap<BackendId, Running>,
}

struct Running {
    wanted: Wanted,
    deps: ProberDeps,
    task: TaskHandle,
}

impl Supervisor {
    pub(crate) fn new(shared: Shared, drain: Drain) -> Self {
        Self { shared, drain, running: BTreeMap::new() }
    }

    /// Brings the probers and the fleet in line with what is wanted.
    pub(crate) async fn reconcile(&mut self, roster: Roster) {
        let floors = self.stop_others(&roster).await;
        let fresh = roster.keys().filter(|id| !self.running.contains_key(*id)).count();
        let fresh = u32::try_from(fresh).unwrap_or(u32::MAX);
        let interval = self.shared.timing.metrics_interval;
        let spread = SPREAD_PER_BACKEND.saturating_mul(fresh).min(interval);
        let mut rekeyed = Vec::new();
        for (id, wanted) in roster {
            match self.running.get_mut(&id) {
                Some(running) => {
                    if running.wanted.wish != wanted.wish {
                        self.shared.publisher.wish(&id, wanted.wish);
                        tracing::info!(
                            backend.id = %id, wish = wanted.wish.as_str(), "backend is to be",
                        );
                    }
                    if running.wanted.spec != wanted.spec {
                        rekeyed.push(id);
                    }
                    running.wanted = wanted;
                }
                None => {
                    let phase =
                        if fresh == 1 { Duration::ZERO } else { spread.mul_f64(share(&id)) };
                    self.admit(id.clone(), wanted, floors.get(&id).copied(), phase);
                }
            }
        }
        self.renew(&rekeyed).await;
    }

    /// From now on these are the intervals and limits. What is known of backends stays.
    pub(crate) async fn retime(&mut self, timing: Timing) {
        if self.shared.timing == timing {
            return;
        }
        match Connectors::new(timing.timeout) {
            Ok(connectors) => self.shared.connectors = connectors,
            // It could be set up at the start, so this is theory.
            Err(error) => tracing::error!(%error, "connections keep their time limit"),
        }
        self.shared.timing = timing;
        let all: Vec<BackendId> = self.running.keys().cloned().collect();
        self.renew(&all).await;
    }

    /// Starts probers anew that are to ask otherwise, from what was published last.
    async fn renew(&mut self, ids: &[BackendId]) {
        let tasks = ids.iter().filter_map(|id| self.running.get(id)).map(|r| r.task.clone());
        end_all(tasks.collect()).await;
        for id in ids {
            let Some(Running { wanted, deps, .. }) = self.running.get_mut(id) else { continue };
            deps.client =
                EngineClient::new(self.shared.connectors.get(wanted.spec.https), &wanted.spec);
            deps.spec = wanted.spec.clone();
            deps.timing = self.shared.timing;
            let deps = deps.clone();
            let task = self.start(&deps, deps.timing.metrics_interval.mul_f64(share(id)));
            self.running.entry(id.clone()).and_modify(|running| running.task = task);
        }
    }

    /// Ends the probers of backends that are gone or are another engine now. Returns the last
    /// incarnation of those that go on under their name.
    async fn stop_others(&mut self, roster: &Roster) -> BTreeMap<BackendId, Incarnation> {
        let mut floors = BTreeMap::new();
        let mut ending = Vec::new();
        self.running.retain(|id, running| {
            let wanted = roster.get(id);
            let same = wanted.is_some_and(|wanted| {
                wanted.spec.is_same_engine(&running.wanted.spec)
                    && wanted.created == running.wanted.created
            });
            if !same {
                ending.push(running.task.clone());
                if let Some(last) = self.shared.publisher.last(id) {
                    floors.insert(id.clone(), last.incarnation);
                }
                // One that is made anew is another backend: nothing of this one may be seen in it.
                self.shared.publisher.remove(id);
                tracing::info!(backend.id = %id, "backend is removed");
            }
            same
        });
        end_all(ending).await;
        floors
    }

    fn admit(
        &mut self,
        id: BackendId,
        wanted: Wanted,
        floor: Option<Incarnation>,
        phase: Duration,
    ) {
        let shared = &self.shared;
        let least = floor.map_or(Incarnation(0), |last| Incarnation(last.0 + 1));
        let backend = unknown(&wanted.spec, least.max(Incarnation(wanted.created + 1)));
        let client = EngineClient::new(shared.connectors.get(wanted.spec.https), &wanted.spec);
        let deps = ProberDeps {
            spec: wanted.spec.clone(),
            seat: shared.publisher.admit(backend, wanted.wish),
            created: wanted.created,
            timing: shared.timing,
            client,
            parity: shared.parity.clone(),
            publisher: shared.publisher.clone(),
        };
        tracing::info!(backend.id = %id, wish = wanted.wish.as_str(), "backend is known");
        let task = self.start(&deps, phase);
        self.running.insert(id, Running { wanted, deps, task });
    }

    /// Starts probers again that ended by a panic, from what was published last; a backend that
    /// nobody watches would stay as it is for ever.
    pub(crate) fn start_ended(&mut self) {
        let ended = self.running.iter().filter(|(_, running)| running.task.is_finished());
        let ended: Vec<BackendId> = ended.map(|(id, _)| id.clone()).collect();
        for id in ended {
            if self.drain.is_draining() {
                return;
            }
            tracing::error!(backend.id = %id, "prober ended, starting it again");
            self.shared.families.prober_restarts.inc();
            if let Some(deps) = self.running.get(&id).map(|running| running.deps.clone()) {
                let task = self.start(&deps, Duration::ZERO);
                self.running.entry(id).and_modify(|running| running.task = task);
            }
        }
    }

    fn start(&self, deps: &ProberDeps, phase: Duration) -> TaskHandle {
        let metrics = BackendMetrics::new(&self.shared.families, &deps.spec.id);
        let prober = Prober::new(deps.clone(), metrics);
        self.shared.spawner.spawn("telemetry-prober", prober.run(phase, self.drain.clone()))
    }

    /// Ends a prober as a panic would.
    #[cfg(test)]
    pub(crate) async fn break_off(&self, id: &str) {
        let task = &self.running[&BackendId::from(id)].task;
        task.abort();
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
    }
}

/// Ends probers and waits for that: the next one of a name would lose its series to the end of the
/// one before.
async fn end_all(tasks: Vec<TaskHandle>) {
    tasks.iter().for_each(TaskHandle::abort);
    for task in tasks {
        while !task.is_finished() {
            tokio::time::sleep(END_CHECK).await;
        }
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
mod tests {
    use super::*;

    #[test]
    fn a_thousand_backends_are_spread_over_the_interval() {
        let mut tenths = [0; 10];
        for i in 0..1000 {
            let at = share(&format!("backend-{i}").as_str().into());
            tenths[((at * 10.0) as usize).min(9)] += 1;
        }
        assert!(tenths.iter().all(|n| (60..=140).contains(n)), "{tenths:?}");
    }
}
