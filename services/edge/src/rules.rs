//! What the config file says of requests, as one value.
//!
//! A request takes it when its head has come and keeps it to its end, so that it goes by one file
//! throughout; another file makes another value.

use std::time::Duration;

use crate::access::FileAccess;
use crate::aliases::Aliases;
use crate::config::Timeouts;
use crate::retries::RetryTerms;
use crate::terms::Terms;

/// Everything of the config file that can change while the edge runs.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Who may ask, and how much.
    pub(crate) access: FileAccess,
    pub(crate) aliases: Aliases,
    pub(crate) terms: Terms,
    pub(crate) timeouts: Timeouts,
    pub(crate) max_attempts: usize,
    /// How many of them beyond the first there may be of all requests of a pool together.
    pub(crate) retry_budget: RetryTerms,
    /// How long a request waits while no backend of its model is ready.
    pub(crate) backend_wait: Duration,
    /// How long new connections are taken after a drain has begun, and what has no end of its own
    /// goes on.
    pub(crate) drain_notice: Duration,
    /// When answers still open after a drain has begun are ended.
    pub(crate) drain_limit: Option<Duration>,
}
