//! What every request handler shares.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use domain::{BackendId, RoutingClient};
use lifecycle::{Drain, TaskSpawner};
use settings::Redacted;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use traces::Tracer;

use crate::access::AccessWatch;
use crate::answer::Answers;
use crate::fleet::FleetWatch;
use crate::headers::RequestIds;
use crate::metrics::Families;
use crate::owners::Owners;
use crate::upstream::Upstream;

/// The edge as its request handlers see it.
pub(crate) struct Gateway {
    /// Who may ask, how much, and by which rules.
    pub(crate) access: AccessWatch,
    pub(crate) region_secret: Redacted<Vec<u8>>,
    pub(crate) routing: Arc<dyn RoutingClient>,
    pub(crate) upstream: Upstream,
    pub(crate) fleet: FleetWatch,
    pub(crate) families: Arc<Families>,
    pub(crate) ids: RequestIds,
    pub(crate) tracer: Tracer,
    /// Which backend keeps which response.
    pub(crate) owners: Arc<Owners>,
    /// Keys of answers.
    pub(crate) answers: Arc<Answers>,
    /// Bodies being worked on off the asynchronous threads.
    pub(crate) heavy: Heavy,
    /// Request bodies held, in steps of [`STEP`](crate::memory::STEP), with what is made of them.
    pub(crate) body_memory: Arc<Semaphore>,
    pub(crate) drain: Drain,
    /// For what outlives its request.
    pub(crate) spawner: TaskSpawner,
    /// The drain has taken too long: what is open ends now.
    pub(crate) cut: Arc<AtomicBool>,
}

/// What a client is told when there was no other engine.
pub(crate) const KEY_REFUSED: &str = "no engine could answer: one refused the gateway's own key; \
                                      the gateway's operator has to see to it";

impl Gateway {
    /// An engine wants a key that this edge has not, or another one. That is nobody's fault but
    /// the operator's: clients' keys never reach an engine.
    pub(crate) fn key_refused(&self, request: &str, backend: Option<&BackendId>) {
        tracing::error!(
            request.id = request,
            backend.id = backend.map(BackendId::as_str),
            "an engine refused the gateway's key, or the want of one: see [[credentials]] and \
             the backend's `api_key` or `credential`"
        );
        self.families.engine_unauthorized.inc();
    }
}

/// Turns for work off the asynchronous threads. Long bodies have lanes of their own: a prompt of
/// seconds must make nobody wait whose prompt takes milliseconds.
pub(crate) struct Heavy {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// Bodies above this are long: some tenths of a second to tokenise.
const LONG_BYTES: usize = 256 * 1024;

impl Heavy {
    /// For so many cores, half of them for long bodies.
    pub(crate) fn new(cores: usize) -> Self {
        let lane = |turns: usize| Arc::new(Semaphore::new(turns.max(1)));
        Self { short: lane(cores), long: lane(cores / 2) }
    }

    /// Waits for a turn; `None` never comes.
    pub(crate) async fn turn(&self, body_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let lane = if body_bytes > LONG_BYTES { &self.long } else { &self.short };
        Arc::clone(lane).acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn long_bodies_keep_no_short_one_waiting() {
        let heavy = Heavy::new(2);
        let long = heavy.turn(3 << 20).now_or_never().flatten().expect("the first");
        assert!(heavy.turn(3 << 20).now_or_never().is_none(), "one at a time on two cores");
        let short = || heavy.turn(10 << 10).now_or_never().flatten();
        let turns = [short(), short()];
        assert!(turns.iter().all(Option::is_some) && short().is_none());
        drop(long);
        assert!(heavy.turn(3 << 20).now_or_never().is_some());
    }
}
