//! The engine double: one vLLM engine for tests, demonstrations and measurements.
//!
//! It speaks HTTP as vLLM does (OpenAI endpoints, server-sent events, `/metrics`, `/tokenize`, its
//! errors) and behaves like it where a router can tell: [`sim::EngineModel`] keeps the prefix
//! cache block by block and says when each token exists. It computes nothing: answers are plain
//! words chosen by the prompt's hash. Truth about cache hits is read here ([`DoubleHandle::stats`],
//! `GET /stats`), never in the router's belief.
//!
//! - `config`, `args`: what one double is like, as a builder and as a command line
//! - `server`, `socket`, `websocket`: connections, and what can be done to them
//! - `route`, `routes`, `generate`, `derender`, `pooling`, `scores`, `realtime`, `canned`, `metrics`: the
//!   endpoints
//! - `request`, `errors`, `wire`, `stream`, `body`, `kept`: vLLM's shapes, in and out
//! - `core`, `stats`: the model in real time, and what really happened
//! - `fault`: what can be made to go wrong
//!
//! With `--data-parallel N` there are N engines behind one address, as in vLLM: a request goes to
//! the one that its `X-data-parallel-rank` names, else to the one with the fewest.
//!
//! Routes of its own: `GET /stats` (totals), `GET /records` (one entry per finished sequence),
//! `GET|POST|DELETE /fault`.

mod args;
mod body;
mod canned;
mod config;
mod core;
mod derender;
mod engine;
mod errors;
mod fault;
mod generate;
mod kept;
mod metrics;
mod pooling;
mod realtime;
mod request;
mod route;
mod routes;
mod scores;
mod server;
mod socket;
mod stats;
mod stream;
mod websocket;
mod wire;
mod words;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sim::EngineConfig;
use tokenization::ModelFolder;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use args::{Args, run};
use config::DoubleConfig;
use engine::Engine;
pub use engine::SeenRequest;
pub use fault::{Cut, Fault, FaultKind, FaultSyntax};
pub use stats::{SequenceRecord, Stats};

/// Why a double cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum DoubleError {
    /// Size or speed of the engine make no sense.
    #[error(transparent)]
    Engine(#[from] sim::Error),
    /// One request could be longer than the cache.
    #[error("max_model_len: {asked} tokens, but the cache holds {longest}")]
    ContextTooLong {
        /// The context length that was asked for.
        asked: u32,
        /// Tokens in all usable blocks.
        longest: u32,
    },
    /// The model's name is empty.
    #[error("model: the name is empty")]
    NoModelName,
    /// There is no rank.
    #[error("data_parallel: at least one rank is needed")]
    NoRanks,
    /// The listener is not usable.
    #[error("the listener has no address: {0}")]
    Listener(#[from] std::io::Error),
}

/// Builds a double. Every setting has a default; see [`Args`] for what they mean.
#[derive(Clone, Debug, Default)]
pub struct Double {
    config: DoubleConfig,
}

impl Double {
    /// All defaults: 600 blocks of 16 tokens, the built-in tokenizer.
    pub fn builder() -> Self {
        Self::default()
    }

    fn set(mut self, set: impl FnOnce(&mut DoubleConfig)) -> Self {
        set(&mut self.config);
        self
    }

    /// Size and speed in one.
    pub fn engine(self, engine: EngineConfig) -> Self {
        self.set(|config| config.engine = engine)
    }

    /// KV cache blocks, the one that is never used included.
    pub fn blocks(self, blocks: u32) -> Self {
        self.set(|config| config.engine.blocks = blocks)
    }

    /// KV cache blocks that the metrics name, instead of the true number.
    pub fn told_blocks(self, blocks: u32) -> Self {
        self.set(|config| config.told_blocks = Some(blocks))
    }

    /// Tokens in a block.
    pub fn block_size(self, tokens: u32) -> Self {
        self.set(|config| config.engine.block_size = tokens)
    }

    /// Uncached prompt tokens computed in a second.
    pub fn prefill_tokens_per_second(self, tokens: f64) -> Self {
        self.set(|config| config.engine.prefill_tokens_per_second = tokens)
    }

    /// Time between two output tokens.
    pub fn itl(self, itl: Duration) -> Self {
        self.set(|config| config.engine.itl_base_seconds = itl.as_secs_f64())
    }

    /// Requests that run at once.
    pub fn max_running(self, requests: u32) -> Self {
        self.set(|config| config.engine.max_running = requests)
    }

    /// The model's name.
    pub fn model(self, name: impl Into<String>) -> Self {
        self.set(|config| config.model = name.into())
    }

    /// An adapter over the model, as one loaded with vLLM's `--lora-modules`.
    pub fn adapter(self, name: impl Into<String>) -> Self {
        self.set(|config| config.adapters.push(name.into()))
    }

    /// So many data-parallel ranks behind the address, each with a cache, a batch and metrics of
    /// its own.
    pub fn data_parallel(self, ranks: u16) -> Self {
        self.set(|config| config.ranks = ranks)
    }

    /// The tokenizer and chat template, instead of the built-in ones.
    pub fn model_folder(self, folder: Arc<ModelFolder>) -> Self {
        self.set(|config| config.folder = Some(folder))
    }

    /// Longest prompt plus output in tokens, instead of all the cache holds.
    pub fn max_model_len(self, tokens: u32) -> Self {
        self.set(|config| config.max_model_len = tokens)
    }

    /// Output tokens of requests that set no limit.
    pub fn default_max_tokens(self, tokens: u32) -> Self {
        self.set(|config| config.default_max_tokens = tokens)
    }

    /// How long an idle connection is kept; zero closes it right after the response.
    pub fn keep_alive(self, limit: Duration) -> Self {
        self.set(|config| config.keep_alive = limit)
    }

    /// Whether generations get one canned answer without tokenising.
    pub fn static_response(self, canned: bool) -> Self {
        self.set(|config| config.static_response = canned)
    }

    /// One more fault from the start.
    pub fn fault(self, fault: Fault) -> Self {
        self.set(|config| config.faults.push(fault))
    }

    /// All faults from the start.
    pub fn faults(self, faults: Vec<Fault>) -> Self {
        self.set(|config| config.faults = faults)
    }

    /// Keeps the last `count` requests as they arrived, for [`DoubleHandle::take_requests`].
    /// None by default.
    pub fn keep_requests(self, count: usize) -> Self {
        self.set(|config| config.keep_requests = count)
    }

    /// Serves on the listener, in tasks that live as long as the handle.
    ///
    /// # Errors
    /// A setting that makes no sense.
    pub fn spawn(self, listener: TcpListener) -> Result<DoubleHandle, DoubleError> {
        let addr = listener.local_addr()?;
        let engine = Arc::new(Engine::new(self.config)?);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for rank in engine.ranks() {
            tasks.spawn(Arc::clone(rank).drive());
        }
        let server = tasks.spawn(server::serve(Arc::clone(&engine), listener, stop.clone()));
        Ok(DoubleHandle { addr, engine, stop, server, tasks: Mutex::new(tasks) })
    }
}

/// A running double. Dropping it kills the double.
#[derive(Debug)]
pub struct DoubleHandle {
    addr: SocketAddr,
    engine: Arc<Engine>,
    stop: CancellationToken,
    server: tokio::task::AbortHandle,
    tasks: Mutex<JoinSet<()>>,
}

impl DoubleHandle {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Totals so far, and the load now, over all ranks.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Of each data-parallel rank what its own engine counts. Requests and connections are those
    /// of the whole double.
    pub fn rank_stats(&self) -> Vec<Stats> {
        self.engine.rank_stats()
    }

    /// What became of the newest sequences, rank by rank, in the order they left it. Forgotten by
    /// the double afterwards.
    pub fn take_records(&self) -> Vec<SequenceRecord> {
        self.engine.ranks().iter().flat_map(|rank| rank.take_records()).collect()
    }

    /// The requests as they arrived, as many as [`Double::keep_requests`] keeps. Forgotten by the
    /// double afterwards.
    pub fn take_requests(&self) -> Vec<SeenRequest> {
        self.engine.take_seen()
    }

    /// Replaces all faults by one.
    pub fn set_fault(&self, fault: Fault) {
        self.engine.faults.set(vec![fault]);
    }

    /// Replaces all faults.
    pub fn set_faults(&self, faults: Vec<Fault>) {
        self.engine.faults.set(faults);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.engine.faults.set(Vec::new());
    }

    /// How long idle connections are kept; for connections opened from now on.
    pub fn set_keep_alive(&self, limit: Duration) {
        self.engine.set_keep_alive(limit);
    }

    /// Drops the prefix cache. Refused (`false`) while a request runs.
    pub fn reset_prefix_cache(&self) -> bool {
        self.engine.reset_prefix_cache()
    }

    /// Ends at once, as a killed process does: the port is closed, connections break.
    pub async fn kill(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        self.closed().await;
    }

    /// Closes the port and lets the requests in flight finish, for ten seconds at most; then ends.
    /// Whether they all finished.
    pub async fn shutdown(&self) -> bool {
        self.stop.cancel();
        let finished = async {
            while !self.server.is_finished() {
                tokio::time::sleep(CLOSE_POLL).await;
            }
        };
        let in_time = tokio::time::timeout(SHUTDOWN_LIMIT, finished).await.is_ok();
        self.kill().await;
        in_time
    }

    /// Waits until the aborted connections have let go of their sockets.
    async fn closed(&self) {
        let closed = async {
            while self.stats().open_sockets > 0 {
                tokio::time::sleep(CLOSE_POLL).await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_LIMIT, closed).await;
    }
}

/// Time for requests in flight to finish at a shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
/// How often, and for how long at most, the end of connections is waited for.
const CLOSE_POLL: Duration = Duration::from_millis(2);
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
