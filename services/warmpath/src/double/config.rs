//! What one double is like.

use std::sync::Arc;
use std::time::Duration;

use sim::EngineConfig;
use tokenization::ModelFolder;

use super::DoubleError;
use super::fault::Fault;

/// Output tokens when the client sets no limit: an answer of a few words.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// uvicorn's, and so vLLM's, idle limit of a connection.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Records of finished sequences that are kept: some minutes of a benchmark.
const DEFAULT_LOG_CAPACITY: usize = 65_536;
/// The model name of a double that was given none.
pub(crate) const DEFAULT_MODEL: &str = "warmpath-double";

/// Everything that can be set. The builder is [`Double`](super::Double).
#[derive(Clone, Debug)]
pub(crate) struct DoubleConfig {
    pub(crate) engine: EngineConfig,
    /// Blocks that the metrics name; `None` for the truth.
    pub(crate) told_blocks: Option<u32>,
    pub(crate) model: String,
    /// Adapters over it.
    pub(crate) adapters: Vec<String>,
    /// Data-parallel ranks, each an engine of its own behind the one address.
    pub(crate) ranks: u16,
    /// `None` is the built-in one.
    pub(crate) folder: Option<Arc<ModelFolder>>,
    /// 0 means as long as the cache can hold.
    pub(crate) max_model_len: u32,
    pub(crate) default_max_tokens: u32,
    pub(crate) keep_alive: Duration,
    pub(crate) static_response: bool,
    pub(crate) faults: Vec<Fault>,
    pub(crate) log_capacity: usize,
    /// Requests kept as they arrived.
    pub(crate) keep_requests: usize,
}

impl Default for DoubleConfig {
    fn default() -> Self {
        Self {
            engine: EngineConfig::default(),
            told_blocks: None,
            model: DEFAULT_MODEL.to_owned(),
            adapters: Vec::new(),
            ranks: 1,
            folder: None,
            max_model_len: 0,
            default_max_tokens: DEFAULT_MAX_TOKENS,
            keep_alive: DEFAULT_KEEP_ALIVE,
            static_response: false,
            faults: Vec::new(),
            log_capacity: DEFAULT_LOG_CAPACITY,
            keep_requests: 0,
        }
    }
}

impl DoubleConfig {
    /// # Errors
    /// A context that the cache cannot hold, a name or ranks that are missing.
    pub(crate) fn checked(mut self) -> Result<Self, DoubleError> {
        let longest = self.engine.max_tokens();
        if self.max_model_len == 0 {
            self.max_model_len = longest;
        }
        if self.max_model_len > longest {
            return Err(DoubleError::ContextTooLong { asked: self.max_model_len, longest });
        }
        if self.model.is_empty() || self.adapters.iter().any(String::is_empty) {
            return Err(DoubleError::NoModelName);
        }
        if self.ranks == 0 {
            return Err(DoubleError::NoRanks);
        }
        self.default_max_tokens = self.default_max_tokens.max(1);
        Ok(self)
    }
}
