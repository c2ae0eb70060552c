//! What all connections of one double share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use domain::ModelId;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use tokenization::ModelFolder;

use super::DoubleError;
use super::canned::Canned;
use super::config::DoubleConfig;
use super::core::Core;
use super::fault::FaultBoard;
use super::request::Dialect;
use super::words::Vocabulary;

/// A request as it arrived, for tests of what a gateway sends.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
}

/// The shared state of one double.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: DoubleConfig,
    pub(crate) model_id: ModelId,
    pub(crate) folder: Arc<ModelFolder>,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) core: Arc<Core>,
    pub(crate) faults: FaultBoard,
    /// Unix time of the start, in seconds.
    pub(crate) started: u64,
    canned: [Canned; 2],
    keep_alive_ms: AtomicU64,
    next_id: AtomicU64,
    seen: Mutex<VecDeque<SeenRequest>>,
}

impl Engine {
    pub(crate) fn new(config: DoubleConfig) -> Result<Self, DoubleError> {
        let config = config.checked()?;
        let started = unix_seconds();
        let canned = |dialect| Canned::new(dialect, &config.model, started);
        let folder = config.folder.clone().unwrap_or_else(ModelFolder::builtin);
        Ok(Self {
            model_id: ModelId::new(config.model.as_str()),
            vocabulary: Vocabulary::new(&folder),
            folder,
            core: Arc::new(Core::new(config.engine.clone(), config.log_capacity)?),
            faults: FaultBoard::new(config.faults.clone()),
            started,
            canned: [canned(Dialect::Chat), canned(Dialect::Completion)],
            keep_alive_ms: AtomicU64::new(millis(config.keep_alive)),
            next_id: AtomicU64::new(1),
            seen: Mutex::default(),
            config,
        })
    }

    /// The static mode's answers.
    pub(crate) fn canned(&self, dialect: Dialect) -> &Canned {
        &self.canned[usize::from(dialect == Dialect::Completion)]
    }

    /// How long an idle connection is kept.
    pub(crate) fn keep_alive(&self) -> Duration {
        Duration::from_millis(self.keep_alive_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn set_keep_alive(&self, limit: Duration) {
        self.keep_alive_ms.store(millis(limit), Ordering::Relaxed);
    }

    /// An id that this engine has not used before.
    pub(crate) fn fresh_id(&self) -> String {
        format!("{:016x}", self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Keeps a request for [`take_seen`](Self::take_seen), if any are kept.
    pub(crate) fn note_seen(&self, request: impl FnOnce() -> SeenRequest) {
        if self.config.keep_requests == 0 {
            return;
        }
        let mut seen = self.seen.lock();
        if seen.len() >= self.config.keep_requests {
            seen.pop_front();
        }
        seen.push_back(request());
    }

    pub(crate) fn take_seen(&self) -> Vec<SeenRequest> {
        std::mem::take(&mut *self.seen.lock()).into()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since 1970, for the `created` field of answers.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
