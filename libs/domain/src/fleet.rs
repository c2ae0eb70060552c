//! The observed state of the backends, as telemetry publishes it: one value, replaced whole.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{BackendId, BlockUnit, Incarnation, ModelId, Moment, RankId};

/// All backends at one revision.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Grows with every change.
    pub revision: u64,
    /// The backends, ordered by id.
    pub backends: Vec<Arc<Backend>>,
}

impl Fleet {
    /// The backend of that name.
    pub fn backend(&self, id: &BackendId) -> Option<&Arc<Backend>> {
        self.backends.iter().find(|b| b.id == *id)
    }

    /// The models that have no cache of their own: adapters and other names of a model. A name on
    /// which the backends that list it do not agree is a model of its own, and not among them.
    pub fn bases(&self) -> HashMap<&ModelId, &Base> {
        let mut bases: HashMap<&ModelId, Option<&Base>> = HashMap::new();
        for served in self.backends.iter().flat_map(|b| &b.models) {
            let base = served.base.as_ref();
            let agreed = bases.entry(&served.id).or_insert(base);
            *agreed = agreed.filter(|agreed| Some(*agreed) == base);
        }
        bases.into_iter().filter_map(|(id, base)| Some((id, base?))).collect()
    }

    /// Whether any backend takes new requests.
    pub fn has_ready(&self) -> bool {
        self.backends.iter().any(|b| b.state == BackendState::Ready)
    }

    /// Backends that take new requests for `model`.
    pub fn ready_for<'a>(&'a self, model: &'a ModelId) -> impl Iterator<Item = &'a Arc<Backend>> {
        self.backends.iter().filter(move |b| b.state == BackendState::Ready && b.serves(model))
    }
}

/// One engine endpoint as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// The operator's name for it.
    pub id: BackendId,
    /// Which life of it; bookings of another life do not count here.
    pub incarnation: Incarnation,
    /// Scheme, host and port, without a trailing slash (`http://10.0.0.7:8000`).
    pub url: Arc<str>,
    /// The software behind it.
    pub engine: EngineKind,
    /// Whether it takes requests.
    pub state: BackendState,
    /// What it serves, as its `/v1/models` said last.
    pub models: Vec<ServedModel>,
    /// Its data-parallel ranks, by rank number; never empty.
    pub ranks: Vec<RankState>,
    /// Round trip of the probe, smoothed; part of the score.
    pub network: Duration,
    /// The name of the credential that it asks for, if it does. What the name stands for is in
    /// the config of each process that sends it requests, and nowhere else.
    pub credential: Option<Arc<str>>,
}

impl Backend {
    /// Whether `model` is on its list.
    pub fn serves(&self, model: &ModelId) -> bool {
        self.models.iter().any(|m| m.id == *model)
    }

    /// The full id of one of its ranks.
    pub fn rank_id(&self, rank: u16) -> RankId {
        RankId { backend: self.id.clone(), incarnation: self.incarnation, rank }
    }

    /// The unit in which a rank's cache of `model` is followed by tokens; `None` where it is
    /// followed by text. Tokens need an engine whose eviction is mirrored, a block size, and a
    /// tokenizer that was not seen to differ from ours.
    pub fn token_unit(&self, model: &ServedModel, rank: &RankState) -> Option<BlockUnit> {
        let mirrored = matches!(self.engine, EngineKind::Vllm | EngineKind::Sglang);
        let exact = mirrored && model.parity != Some(false);
        let cache = rank.cache.filter(|cache| exact && cache.block_size > 0)?;
        Some(cache.unit())
    }
}

/// The software of a backend. It decides which metrics are read and which eviction is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// vLLM, and the engine double, which speaks as vLLM does.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server. It has slots, not blocks: `text` level until its mirror exists.
    LlamaCpp,
    /// Anything else that speaks the OpenAI API: `text` level.
    Other,
}

impl EngineKind {
    /// Every kind.
    pub const ALL: [EngineKind; 4] =
        [EngineKind::Vllm, EngineKind::Sglang, EngineKind::LlamaCpp, EngineKind::Other];

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The name in config, labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            EngineKind::Vllm => "vllm",
            EngineKind::Sglang => "sglang",
            EngineKind::LlamaCpp => "llama-cpp",
            EngineKind::Other => "other",
        }
    }
}

/// Where a backend stands. Only `Ready` takes new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendState {
    /// Known, not yet probed with success.
    Joining,
    /// Probes succeed.
    Ready,
    /// An operator wants it to take nothing new; what it has goes on.
    Draining,
    /// An operator has taken it out of service.
    Maintenance,
    /// It was ready and its probes fail.
    Down,
}

impl BackendState {
    /// Every state, for metrics that show one series per state.
    pub const ALL: [BackendState; 5] = [
        BackendState::Joining,
        BackendState::Ready,
        BackendState::Draining,
        BackendState::Maintenance,
        BackendState::Down,
    ];

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// The name in labels, logs and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            BackendState::Joining => "joining",
            BackendState::Ready => "ready",
            BackendState::Draining => "draining",
            BackendState::Maintenance => "maintenance",
            BackendState::Down => "down",
        }
    }
}

/// One entry of a backend's `/v1/models`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedModel {
    /// The name that requests use.
    pub id: ModelId,
    /// Longest prompt plus output in tokens, where the engine tells.
    pub max_model_len: Option<u32>,
    /// The engine's own JSON object for it, unchanged: metadata must reach clients whole.
    pub listing: Arc<str>,
    /// Whether the parity check of this model on this backend passed. `None`: not checked,
    /// as there is no model folder or the engine has no way to ask.
    pub parity: Option<bool>,
    /// The model whose cache it shares, if it is not one of its own.
    pub base: Option<Base>,
}

/// The model behind a name that has no cache of its own. All names of one model take their blocks
/// from one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The name of the model itself.
    pub model: ModelId,
    /// Whether an adapter lies over it. Its KV is then another one than the model's, so it shares
    /// the cache's room and none of its content; without it the name is another name for the
    /// same.
    pub adapter: bool,
}

/// One rank of a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct RankState {
    /// The data-parallel rank, from 0.
    pub rank: u16,
    /// Its cache, where the engine tells.
    pub cache: Option<CacheConfig>,
    /// Sequences that it keeps, of an engine that keeps whole sequences in slots instead of
    /// blocks (llama.cpp), where it tells.
    pub slots: Option<u32>,
    /// The newest load sample; absent until the first scrape, kept when scrapes fail.
    pub load: Option<LoadSample>,
}

/// What the engine says of its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConfig {
    /// Tokens in one of the engine's blocks.
    pub block_size: u32,
    /// Blocks that can hold content. For vLLM that is one less than it reports, as its block 0
    /// is a placeholder (`vllm/v1/core/block_pool.py`, `null_block`).
    pub usable_blocks: u32,
    /// Whether prefix caching is on at all.
    pub prefix_caching: bool,
}

impl CacheConfig {
    /// The unit that keys for this engine are made in.
    pub const fn unit(&self) -> BlockUnit {
        BlockUnit::for_engine_block(self.block_size)
    }
}

/// One reading of a rank's load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadSample {
    /// When the page was read.
    pub at: Moment,
    /// Requests in the engine's batch.
    pub running: u32,
    /// Requests the engine has accepted and not begun.
    pub waiting: u32,
    /// Share of blocks that live requests hold, 0 to 1. No measure of what is cached.
    pub kv_usage: Option<f64>,
    /// Requests preempted so far.
    pub preemptions: Option<u64>,
    /// Prompt tokens looked up in, and found in, the prefix cache so far.
    pub prefix_cache: Option<(u64, u64)>,
    /// What the engine counts of its prefills.
    pub prefills: Option<PrefillCounters>,
}

/// An engine's own account of its prefills, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillCounters {
    /// Requests that it has of.
    pub requests: u64,
    /// Prompt tokens they had to compute.
    pub tokens: u64,
    /// Seconds they spent in their prefills. Prompts that share a step have its time each.
    pub seconds: f64,
}

/// How well a backend's cache content is known, best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvidenceLevel {
    /// No tokenizer, or one that disagrees with the engine: keys over text.
    Text,
    /// The engine's eviction mirrored, nothing heard back.
    Model,
    /// The mirror corrected by the cached tokens that the engine reports.
    Feedback,
}

impl EvidenceLevel {
    /// Every level, for metrics that show one series per level.
    pub const ALL: [EvidenceLevel; 3] =
        [EvidenceLevel::Text, EvidenceLevel::Model, EvidenceLevel::Feedback];

    /// The name in labels, logs and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            EvidenceLevel::Text => "text",
            EvidenceLevel::Model => "model",
            EvidenceLevel::Feedback => "feedback",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(id: &str, models: &[(&str, Option<(&str, bool)>)]) -> Arc<Backend> {
        let served = |&(id, base): &(&str, Option<(&str, bool)>)| ServedModel {
            id: id.into(),
            max_model_len: None,
            listing: "{}".into(),
            parity: None,
            base: base.map(|(model, adapter)| Base { model: model.into(), adapter }),
        };
        Arc::new(Backend {
            id: id.into(),
            incarnation: Incarnation(1),
            url: "http://127.0.0.1:1".into(),
            engine: EngineKind::Vllm,
            state: BackendState::Ready,
            models: models.iter().map(served).collect(),
            ranks: Vec::new(),
            network: Duration::ZERO,
            credential: None,
        })
    }

    #[test]
    fn a_name_belongs_to_a_model_where_all_its_backends_say_so() {
        let fleet = Fleet {
            revision: 1,
            backends: vec![
                backend("a", &[("m", None), ("sql", Some(("m", true))), ("x", Some(("m", true)))]),
                backend("b", &[("m", None), ("sql", Some(("m", true))), ("x", None)]),
                backend("c", &[("n", None), ("x", Some(("n", true))), ("y", Some(("n", false)))]),
            ],
        };
        let mut bases: Vec<_> = fleet
            .bases()
            .into_iter()
            .map(|(id, base)| (id.as_str(), base.model.as_str(), base.adapter))
            .collect();
        bases.sort_unstable();
        assert_eq!(bases, [("sql", "m", true), ("y", "n", false)]);
    }
}
