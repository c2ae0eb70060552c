//! What differs between engines: metrics pages, capabilities, model lists.
//!
//! Everything here turns bytes that an engine answered into types of `domain`; fetching them is
//! the caller's business. Engines differ from version to version, so every reader is lenient and
//! counts what it could not decode.
//!
//! - [`metrics`]: the Prometheus text format
//! - [`vllm`], [`sglang`], [`llama_cpp`]: what each engine's page says of load and cache
//! - [`mod@detect`]: which engine it is
//! - [`models`][]: `/v1/models`
//! - [`tokens`]: answers of the engine's tokenizer, to compare with ours

pub mod detect;
pub mod llama_cpp;
pub mod metrics;
pub mod models;
pub mod sglang;
pub mod tokens;
pub mod vllm;

use domain::{CacheConfig, EngineKind, LoadSample, Moment};

pub use detect::detect;

/// Ranks of one backend that are read: they are 0 to this less one. Engines of today have some
/// tens; each costs memory and series everywhere, and a page has room for tens of thousands.
pub const MAX_RANKS: u16 = 256;

/// What a metrics page says of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankReading {
    /// The data-parallel rank, from 0.
    pub rank: u16,
    /// Its cache, where the engine tells.
    pub cache: Option<CacheConfig>,
    /// Its load.
    pub load: LoadSample,
}

/// Why an engine's answer could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It is no model list.
    #[error("the model list could not be read: {0}")]
    Models(String),
    /// It does not describe a server.
    #[error("the server's description could not be read: {0}")]
    ServerInfo(String),
    /// It holds no token ids.
    #[error("the tokenizer's answer could not be read: {0}")]
    Tokens(String),
}

/// Series of running requests on a page that are of no rank that is read.
pub fn left_out(engine: EngineKind, page: &metrics::Page<'_>) -> u32 {
    let (name, label) = match engine {
        EngineKind::Vllm => (vllm::RUNNING[0], vllm::RANK),
        EngineKind::Sglang => (sglang::RUNNING, sglang::RANK),
        EngineKind::LlamaCpp | EngineKind::Other => return 0,
    };
    let odd = page.named(name).filter(|sample| rank(sample, label).is_none()).count();
    u32::try_from(odd).unwrap_or(u32::MAX)
}

/// The rank of a series; one without the label comes from an engine that has one rank. `None` for
/// what is no rank, or one too many.
fn rank(sample: &metrics::Sample<'_>, label: &str) -> Option<u16> {
    match sample.label(label) {
        None => Some(0),
        Some(rank) => rank.parse().ok().filter(|rank| *rank < MAX_RANKS),
    }
}

/// Names of every metric that [`read`] reads, of any engine.
pub fn load_metrics() -> impl Iterator<Item = &'static str> + Clone {
    let vllm = vllm::METRICS.iter().flat_map(|names| names.iter());
    let sglang = sglang::METRICS.iter().flat_map(|names| names.iter());
    vllm.chain(sglang).chain(llama_cpp::METRICS).copied()
}

/// Reads the page of an engine of the given kind, one reading per rank, by rank, of the first
/// [`MAX_RANKS`]. Empty if the
/// page is not one of that engine's, and for engines whose metrics are not known.
pub fn read(engine: EngineKind, page: &metrics::Page<'_>, at: Moment) -> Vec<RankReading> {
    match engine {
        EngineKind::Vllm => vllm::read(page, at),
        EngineKind::Sglang => sglang::read(page, at),
        EngineKind::LlamaCpp => llama_cpp::read(page, at),
        EngineKind::Other => Vec::new(),
    }
}
