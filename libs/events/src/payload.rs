//! What is told.

use serde::{Deserialize, Serialize};

/// A backend came, went, or changed its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendEvent {
    /// When it was told, in milliseconds since 1970.
    pub at_ms: u64,
    /// The region.
    pub region: String,
    /// Its name.
    pub backend: String,
    /// Which life of it: grows when the engine restarts.
    pub incarnation: u64,
    /// Scheme, host and port.
    pub url: String,
    /// The software behind it: `vllm`, `sglang`, `llama-cpp`, `other`.
    pub engine: String,
    /// `joining`, `ready`, `draining`, `maintenance`, `down`, or `removed`.
    pub state: String,
    /// The state before; absent where it is told of for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The names that it serves.
    pub models: Vec<String>,
}

/// How busy a backend is, as its metrics said last, and in what state it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadEvent {
    /// When it was told, in milliseconds since 1970.
    pub at_ms: u64,
    /// The region.
    pub region: String,
    /// Its name.
    pub backend: String,
    /// Which life of it: counters begin anew with each.
    pub incarnation: u64,
    /// `joining`, `ready`, `draining`, `maintenance` or `down`.
    pub state: String,
    /// Its ranks that were read.
    pub ranks: Vec<RankLoad>,
}

/// The newest reading of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLoad {
    /// Its number.
    pub rank: u16,
    /// How old the reading was when it was told, in milliseconds.
    pub age_ms: u64,
    /// Requests in the engine's batch.
    pub running: u32,
    /// Requests that the engine has accepted and not begun.
    pub waiting: u32,
    /// Share of the cache's blocks that live requests hold, 0 to 1, where the engine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_usage: Option<f64>,
    /// Requests preempted so far, where the engine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<u64>,
    /// Prompt tokens looked up in the prefix cache so far, where the engine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_queries: Option<u64>,
    /// Those of them that were found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_hits: Option<u64>,
}

/// A request was sent somewhere, or was not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionEvent {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The region.
    pub region: String,
    /// The gateway's id of the request.
    pub request: String,
    /// 0 for the first choice, then one more for each engine that was tried.
    pub attempt: u32,
    /// Who asked.
    pub tenant: String,
    /// For which model.
    pub model: String,
    /// Tokens of the prompt, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// The backend that was chosen.
    pub backend: String,
    /// Its rank.
    pub rank: u16,
    /// Why, as in explain: `warm_prefix`, `cold`, …
    pub reason: String,
    /// Tokens of the prompt that are expected to be cached there.
    pub predicted_cached_tokens: u32,
    /// When the first token is expected, in seconds.
    pub predicted_ttft_seconds: f64,
    /// How many decisions this one stands for: 1 where every one is told.
    pub stands_for: u32,
}
