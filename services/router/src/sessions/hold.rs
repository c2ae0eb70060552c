//! Routes that wait while their pool has no ready backend.

use std::collections::HashMap;
use std::sync::Arc;

use domain::{LeaseId, Moment};
use instrumentation::CountedIn;
use lifecycle::TaskHandle;
use parking_lot::Mutex;
use proto::Asked;
use proto::routing::v1::router_message::Kind;
use replication::Process;

use super::answer::Step;
use super::stream::{Frames, send};
use super::{ROUTE_CREDIT, Shared};

/// The waiting Routes of one stream. They end with it.
#[derive(Default)]
pub(super) struct Holds(Arc<Mutex<HashMap<LeaseId, TaskHandle>>>);

impl Holds {
    /// Waits for a decision in a task of its own. `false` if too many wait.
    pub(super) fn hold(
        &self,
        shared: &Arc<Shared>,
        edge: &Process,
        asked: Asked,
        frames: &Frames,
        until: Moment,
    ) -> bool {
        let mut waiting = self.0.lock();
        if waiting.len() >= ROUTE_CREDIT as usize {
            return false;
        }
        let lease = asked.lease;
        let (edge, frames) = (edge.clone(), frames.clone());
        let (of_stream, of_task) = (Arc::downgrade(&self.0), Arc::clone(shared));
        let held = CountedIn::new(&shared.metrics.held);
        let task = shared.spawner.spawn("router-hold", async move {
            let _held = held;
            let answer = wait(&of_task, &edge, &asked, until).await;
            if let Some(waiting) = of_stream.upgrade() {
                waiting.lock().remove(&lease);
            }
            if let Some(answer) = answer {
                let _ = send(&frames, vec![answer]).await;
            }
        });
        // Asked again on the same stream, the later one waits on.
        if let Some(before) = waiting.insert(lease, task) {
            before.abort();
        }
        true
    }

    /// Nobody waits for it any more.
    pub(super) fn end(&self, lease: LeaseId) {
        if let Some(task) = self.0.lock().remove(&lease) {
            task.abort();
        }
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        for (_, task) in self.0.lock().drain() {
            task.abort();
        }
    }
}

async fn wait(shared: &Shared, edge: &Process, asked: &Asked, until: Moment) -> Option<Kind> {
    let mut fleet = shared.router.subscribe();
    let drain = shared.spawner.drain();
    let mut served = shared.router.watch_served();
    loop {
        fleet.mark_unchanged();
        served.mark_unchanged();
        let now = lifecycle::monotonic();
        match shared.decide(edge, asked, now) {
            Step::Answer(answer) => return Some(*answer),
            Step::Nothing => return None,
            Step::Wait(reason) if now >= until => return Some(shared.reject(asked.lease, reason)),
            Step::Vacant if now >= until => {
                return Some(shared.not_owner(&asked.pool, asked.lease, None));
            }
            Step::Wait(_) | Step::Vacant => {}
        }
        tokio::select! {
            Ok(()) = fleet.changed() => {}
            Ok(()) = served.changed() => {}
            () = tokio::time::sleep(until - now) => {}
            () = drain.signaled() => return None,
        }
    }
}
