//! What all connections of one double share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
use super::errors::EngineError;
use super::fault::FaultBoard;
use super::kept::Kept;
use super::request::Dialect;
use super::stats::Stats;
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
    /// The model's name, then those of the adapters.
    names: Vec<ModelId>,
    pub(crate) folder: Arc<ModelFolder>,
    pub(crate) vocabulary: Vocabulary,
    ranks: Vec<Arc<Core>>,
    /// Inference requests that arrived.
    pub(crate) requests: AtomicU64,
    pub(crate) open_sockets: Arc<AtomicUsize>,
    pub(crate) faults: FaultBoard,
    /// Unix time of the start, in seconds.
    pub(crate) started: u64,
    canned: [Canned; 2],
    keep_alive_ms: AtomicU64,
    next_id: AtomicU64,
    seen: Mutex<VecDeque<SeenRequest>>,
    /// Responses that requests may go on from.
    pub(crate) kept: Kept,
}

impl Engine {
    pub(crate) fn new(config: DoubleConfig) -> Result<Self, DoubleError> {
        let config = config.checked()?;
        let started = unix_seconds();
        let canned = |dialect| Canned::new(dialect, &config.model, started);
        let folder = config.folder.clone().unwrap_or_else(ModelFolder::builtin);
        Ok(Self {
            names: std::iter::once(&config.model)
                .chain(&config.adapters)
                .map(|name| ModelId::new(name.as_str()))
                .collect(),
            vocabulary: Vocabulary::new(&folder),
            folder,
            ranks: (0..config.ranks)
                .map(|_| Ok(Arc::new(Core::new(config.engine.clone(), config.log_capacity)?)))
                .collect::<Result<_, DoubleError>>()?,
            requests: AtomicU64::new(0),
            open_sockets: Arc::default(),
            faults: FaultBoard::new(config.faults.clone()),
            started,
            canned: [canned(Dialect::Chat), canned(Dialect::Completion)],
            keep_alive_ms: AtomicU64::new(millis(config.keep_alive)),
            next_id: AtomicU64::new(1),
            seen: Mutex::default(),
            kept: Kept::default(),
            config,
        })
    }

    /// The data-parallel ranks, by number.
    pub(crate) fn ranks(&self) -> &[Arc<Core>] {
        &self.ranks
    }

    /// The model and, if it is one, the adapter that is served under a name.
    pub(crate) fn served(&self, name: &str) -> Option<(&ModelId, Option<&ModelId>)> {
        let at = self.names.iter().position(|served| served.as_str() == name)?;
        Some((&self.names[0], (at > 0).then_some(&self.names[at])))
    }

    /// The rank that a request runs on: the one it names, else the one with the fewest requests.
    pub(crate) fn rank_for(&self, headers: &HeaderMap) -> Result<&Arc<Core>, EngineError> {
        let Some(named) = headers.get("x-data-parallel-rank") else {
            return Ok(self.ranks.iter().min_by_key(|rank| rank.load()).unwrap_or(&self.ranks[0]));
        };
        let number = named.to_str().ok().and_then(|number| number.parse::<usize>().ok());
        number.and_then(|number| self.ranks.get(number)).ok_or_else(|| {
            let message = format!("data_parallel_rank is out of range [0, {})", self.ranks.len());
            EngineError::bad_request("data_parallel_rank", message)
        })
    }

    /// Of each rank what it counts.
    pub(crate) fn rank_stats(&self) -> Vec<Stats> {
        let requests = self.requests.load(Ordering::Relaxed);
        let open_sockets = self.open_sockets.load(Ordering::Relaxed) as u64;
        let of = |rank: &Arc<Core>| Stats { requests, open_sockets, ..rank.stats() };
        self.ranks.iter().map(of).collect()
    }

    /// The ranks' counts together.
    pub(crate) fn stats(&self) -> Stats {
        self.rank_stats().into_iter().reduce(Stats::with).unwrap_or_default()
    }

    /// Drops every rank's prefix cache; whether none was busy.
    pub(crate) fn reset_prefix_cache(&self) -> bool {
        let done = |rank: &Arc<Core>| rank.reset_prefix_cache();
        !self.ranks.iter().map(done).collect::<Vec<_>>().contains(&false)
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
