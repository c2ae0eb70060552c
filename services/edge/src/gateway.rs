//! What every request handler shares.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use domain::RoutingClient;
use lifecycle::{Drain, TaskSpawner};
use settings::Redacted;
use tokio::sync::Semaphore;

use crate::access::AccessWatch;
use crate::aliases::Aliases;
use crate::answer::Answers;
use crate::config::Timeouts;
use crate::fleet::FleetWatch;
use crate::headers::RequestIds;
use crate::metrics::Families;
use crate::owners::Owners;
use crate::terms::Terms;
use crate::upstream::Upstream;

/// The edge as its request handlers see it.
pub(crate) struct Gateway {
    pub(crate) access: AccessWatch,
    pub(crate) terms: Terms,
    pub(crate) aliases: Arc<Aliases>,
    pub(crate) max_attempts: usize,
    /// How long a request waits while no backend of its model is ready.
    pub(crate) backend_wait: Duration,
    pub(crate) timeouts: Timeouts,
    pub(crate) region_secret: Redacted<Vec<u8>>,
    pub(crate) routing: Arc<dyn RoutingClient>,
    pub(crate) upstream: Upstream,
    pub(crate) fleet: FleetWatch,
    pub(crate) families: Arc<Families>,
    pub(crate) ids: RequestIds,
    /// Which backend keeps which response.
    pub(crate) owners: Arc<Owners>,
    /// Keys of answers.
    pub(crate) answers: Arc<Answers>,
    /// Bodies being worked on off the asynchronous threads.
    pub(crate) heavy: Arc<Semaphore>,
    /// Request bodies held, in steps of [`BODY_STEP`].
    pub(crate) body_memory: Arc<Semaphore>,
    pub(crate) drain: Drain,
    /// How long what has no end of its own goes on after a drain has begun.
    pub(crate) drain_notice: Duration,
    /// For what outlives its request.
    pub(crate) spawner: TaskSpawner,
    /// The drain has taken too long: what is open ends now.
    pub(crate) cut: Arc<AtomicBool>,
}

/// Bytes that one permit of the body memory stands for.
pub(crate) const BODY_STEP: usize = 1024;
