//! Whether a pool is served here, by a router that is alone or by one of several.

use std::sync::Arc;

use domain::{ModelId, Moment};
use replication::{MessageOf, Output, OutputOf, PoolId, Process, Reign, RingLimits, To};
use tokio::sync::mpsc;

use super::reconcile::Seat;
use super::{Ownership, State};
use crate::metrics::{CopyMetrics, Families};

/// A message for other routers.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) pool: PoolId,
    pub(crate) to: To,
    pub(crate) message: MessageOf<State>,
}

/// Where messages for other routers wait. What does not fit is lost, as any message may be.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<Outgoing>,
    pub(crate) metrics: CopyMetrics,
}

impl Outbox {
    pub(crate) fn new(room: usize, metrics: CopyMetrics) -> (Self, mpsc::Receiver<Outgoing>) {
        let (queue, waiting) = mpsc::channel(room);
        (Self { queue, metrics }, waiting)
    }

    fn send(&self, outgoing: Outgoing) {
        if self.queue.try_send(outgoing).is_err() {
            self.metrics.dropped.inc();
        }
    }
}

/// What a pool needs to be one router's of several.
#[derive(Clone)]
pub(crate) struct Peers {
    /// This process.
    pub(crate) me: Process,
    /// Where copies have their series: nowhere.
    pub(crate) hidden: Arc<Families>,
    pub(crate) outbox: Outbox,
}

/// The state of a pool in this process.
pub(super) enum LocalPool {
    /// Nobody else has it.
    Alone(Box<State>),
    /// One router of several serves it.
    Shared(Box<Shared>),
}

pub(super) struct Shared {
    pool: replication::Pool<State>,
    /// It is served here, and the state is in line with the fleet as seen here.
    begun: bool,
    outbox: Outbox,
}

/// What this router is to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolRole {
    /// It decides.
    Serves,
    /// It keeps a copy that is in step with the owner's.
    Follows,
    /// Neither, or its copy is not in step yet.
    Aside,
}

impl PoolRole {
    /// As operators see it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            PoolRole::Serves => "serves",
            PoolRole::Follows => "follows",
            PoolRole::Aside => "aside",
        }
    }
}

impl LocalPool {
    pub(super) fn alone(state: State) -> Self {
        LocalPool::Alone(Box::new(state))
    }

    pub(super) fn shared(model: &ModelId, mut state: State, peers: &Peers) -> Self {
        state.is_copy = true;
        let id = PoolId::new(model.as_str());
        let pool = replication::Pool::new(peers.me.clone(), id, state, RingLimits::default());
        LocalPool::Shared(Box::new(Shared { pool, begun: false, outbox: peers.outbox.clone() }))
    }

    pub(super) fn state(&self) -> &State {
        match self {
            LocalPool::Alone(state) => state,
            LocalPool::Shared(shared) => shared.pool.state(),
        }
    }

    /// The state, if it is this process's to change.
    pub(super) fn active(&mut self) -> Option<&mut State> {
        match self {
            LocalPool::Alone(state) => Some(state),
            LocalPool::Shared(shared) => shared.begun.then(|| shared.pool.state_mut()),
        }
    }

    /// Tells copies what was done since the last call.
    pub(super) fn publish(&mut self) {
        let LocalPool::Shared(shared) = self else { return };
        let changes = shared.pool.state_mut().changes.take();
        let has_peers = shared.pool.has_peers();
        for change in changes {
            let published = shared.pool.publish(change);
            if let Some(Output::Send(to, message)) = published.filter(|_| has_peers) {
                shared.send(to, message);
            }
        }
    }

    /// The reign under which it is served here.
    pub(super) fn reign(&self) -> Option<Reign> {
        match self {
            LocalPool::Shared(shared) if shared.begun => shared.pool.reign().cloned(),
            _ => None,
        }
    }

    pub(super) fn ownership(&self, now: Moment) -> Ownership {
        match (self.reign(), self) {
            (Some(reign), _) => Ownership::Here(reign),
            (None, LocalPool::Shared(shared)) => match shared.pool.owner(now) {
                None if shared.pool.position().is_none() => Ownership::Vacant,
                owner => Ownership::Elsewhere(owner),
            },
            (None, LocalPool::Alone(_)) => Ownership::Elsewhere(None),
        }
    }

    pub(super) fn role(&self) -> PoolRole {
        match self {
            LocalPool::Alone(_) => PoolRole::Serves,
            LocalPool::Shared(shared) if shared.begun => PoolRole::Serves,
            LocalPool::Shared(shared) if shared.pool.is_in_step() => PoolRole::Follows,
            LocalPool::Shared(_) => PoolRole::Aside,
        }
    }

    /// Lets the copy machine do something. Returns whether it serves from now on and is to
    /// [`begin`](Self::begin).
    pub(super) fn drive(
        &mut self,
        now: Moment,
        step: impl FnOnce(&mut replication::Pool<State>) -> Vec<OutputOf<State>>,
    ) -> bool {
        let LocalPool::Shared(shared) = self else { return false };
        shared.pool.state_mut().now = now;
        let outputs = step(&mut shared.pool);
        shared.carry_out(outputs);
        shared.pool.is_serving() && !shared.begun
    }

    /// Serves from now on, by the backends as seen here.
    pub(super) fn begin(&mut self, families: &Arc<Families>, seats: &[Seat<'_>], now: Moment) {
        let LocalPool::Shared(shared) = self else { return };
        if !shared.pool.is_serving() || shared.begun {
            return;
        }
        shared.begun = true;
        shared.pool.state_mut().begin(families, seats, now);
        self.publish();
    }
}

impl Shared {
    fn send(&self, to: To, message: MessageOf<State>) {
        self.outbox.send(Outgoing { pool: self.pool.id().clone(), to, message });
    }

    fn carry_out(&mut self, outputs: Vec<OutputOf<State>>) {
        let (metrics, pool) = (self.outbox.metrics.clone(), self.pool.id().clone());
        for output in outputs {
            match output {
                Output::Send(to, message) => self.send(to, message),
                Output::TookOver { warm } => {
                    tracing::info!(pool = pool.as_str(), warm, "this router serves the pool");
                    metrics.took_over(warm);
                }
                Output::SteppedDown => {
                    tracing::info!(pool = pool.as_str(), "another router serves the pool");
                    if std::mem::take(&mut self.begun) {
                        self.pool.state_mut().rest();
                    }
                }
                Output::Resync(reason) => {
                    tracing::info!(pool = pool.as_str(), ?reason, "takes a whole copy of the pool");
                    metrics.resyncs(reason);
                }
            }
        }
    }
}
