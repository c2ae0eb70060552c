//! What is known of the cache of one rank, and so which index mirrors it.

use domain::{Backend, BlockUnit, EngineKind, EvidenceLevel, RankState, ServedModel};
use kv_index::Eviction;
use kv_index::feedback::ToldCapacity;

/// Tokens assumed to fit a cache whose engine does not tell. A mirror that is too large costs
/// stale belief, one that is too small forgets what is warm; at moderate load the second costs
/// far more, so this is the order of a mid-sized GPU's cache.
const UNKNOWN_CAPACITY_TOKENS: u64 = 131_072;

/// Slots of a llama.cpp server that does not tell: its own default.
const UNKNOWN_SLOTS: u32 = 4;

/// The cache of one rank as its engine describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Profile {
    /// Its blocks in tokens, where the engine's own prompt tokens are known to us.
    pub(crate) tokens: Option<TokenBlocks>,
    /// Tokens it can hold in all.
    pub(crate) capacity_tokens: u64,
    /// Whether the engine does not tell, and that is an assumption.
    pub(crate) is_assumed: bool,
    /// Whether it keeps prefixes at all.
    pub(crate) caches: bool,
    /// How it evicts.
    pub(crate) eviction: Eviction,
}

/// A cache that is mirrored in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenBlocks {
    /// The unit of the index.
    pub(crate) unit: BlockUnit,
    /// Tokens in a block of the engine's.
    pub(crate) engine_block: u32,
    /// Capacity in index blocks.
    pub(crate) capacity: u32,
}

impl Profile {
    /// For an engine whose eviction is not known, vLLM's stands in as an approximation, at text
    /// level.
    pub(crate) fn of(backend: &Backend, model: &ServedModel, rank: &RankState) -> Self {
        let eviction = match backend.engine {
            EngineKind::LlamaCpp => Eviction::Slots(rank.slots.unwrap_or(UNKNOWN_SLOTS)),
            EngineKind::Sglang => Eviction::RadixLeaves,
            EngineKind::Vllm | EngineKind::Other => Eviction::FreeQueue,
        };
        let Some(cache) = rank.cache else {
            return Self {
                tokens: None,
                capacity_tokens: UNKNOWN_CAPACITY_TOKENS,
                is_assumed: true,
                caches: true,
                eviction,
            };
        };
        let capacity_tokens = u64::from(cache.usable_blocks) * u64::from(cache.block_size);
        let tokens = backend.token_unit(model, rank).map(|unit| TokenBlocks {
            unit,
            engine_block: cache.block_size,
            capacity: blocks(capacity_tokens, unit.size()),
        });
        let caches = cache.prefix_caching;
        Self { tokens, capacity_tokens, is_assumed: false, caches, eviction }
    }

    /// The level that this profile allows for.
    pub(crate) fn level(&self) -> EvidenceLevel {
        if self.tokens.is_some() || !self.caches {
            EvidenceLevel::Model
        } else {
            EvidenceLevel::Text
        }
    }

    /// The unit of the index that mirrors it.
    pub(crate) fn unit(&self) -> BlockUnit {
        self.tokens.map_or(BlockUnit::TEXT, |tokens| tokens.unit)
    }

    /// What the engine tells of its size, in blocks of `unit`. Engines of one pool that tell the
    /// same are expected to be off by the same factor.
    pub(crate) fn told(&self, unit: BlockUnit, bytes_per_token: f64) -> ToldCapacity {
        ToldCapacity {
            blocks: self.capacity(unit, bytes_per_token),
            is_assumed: self.is_assumed,
            group: if self.is_assumed { 0 } else { self.capacity_tokens },
        }
    }

    /// The cache's capacity in blocks of `unit`.
    fn capacity(&self, unit: BlockUnit, bytes_per_token: f64) -> u32 {
        match (unit, self.tokens) {
            (BlockUnit::Tokens(_), Some(tokens)) => tokens.capacity,
            (BlockUnit::Tokens(size), None) => blocks(self.capacity_tokens, size),
            (BlockUnit::Bytes(size), _) => {
                blocks((self.capacity_tokens as f64 * bytes_per_token) as u64, size)
            }
        }
    }
}

fn blocks(length: u64, block: u32) -> u32 {
    u32::try_from(length / u64::from(block.max(1))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use domain::{BackendState, CacheConfig, EngineKind, Incarnation, LoadSample};

    use super::*;

    fn profile(engine: EngineKind, parity: Option<bool>, cache: Option<CacheConfig>) -> Profile {
        let model = ServedModel {
            id: "m".into(),
            max_model_len: None,
            listing: "{}".into(),
            parity,
            base: None,
        };
        let rank = RankState { rank: 0, cache, slots: None, load: None::<LoadSample> };
        let backend = Backend {
            id: "b".into(),
            incarnation: Incarnation::default(),
            url: "http://127.0.0.1:1".into(),
            engine,
            state: BackendState::Ready,
            models: vec![model.clone()],
            ranks: vec![rank.clone()],
            network: std::time::Duration::ZERO,
            credential: None,
        };
        Profile::of(&backend, &model, &rank)
    }

    fn cache(block_size: u32, usable_blocks: u32) -> Option<CacheConfig> {
        Some(CacheConfig { block_size, usable_blocks, prefix_caching: true })
    }

    #[test]
    fn capacity_is_counted_in_index_blocks() {
        let vllm = profile(EngineKind::Vllm, Some(true), cache(8, 599));
        let tokens = vllm.tokens.expect("token level");
        assert_eq!((tokens.unit, tokens.capacity), (BlockUnit::Tokens(16), 299));
        assert_eq!(vllm.capacity(BlockUnit::TEXT, 4.0), 299);
        assert_eq!(vllm.level(), EvidenceLevel::Model);
    }

    #[test]
    fn llama_cpp_is_mirrored_by_its_slots() {
        let told = profile(EngineKind::LlamaCpp, None, None);
        assert_eq!((told.eviction, told.level()), (Eviction::Slots(4), EvidenceLevel::Text));
        assert_eq!(profile(EngineKind::Vllm, None, None).eviction, Eviction::FreeQueue);
        let sglang = profile(EngineKind::Sglang, None, cache(1, 1600));
        assert_eq!(sglang.eviction, Eviction::RadixLeaves);
        assert_eq!(sglang.tokens.map(|t| (t.unit, t.capacity)), Some((BlockUnit::Tokens(16), 100)));
    }

    #[test]
    fn failed_parity_and_other_engines_fall_to_text() {
        assert_eq!(
            profile(EngineKind::Vllm, Some(false), cache(16, 10)).level(),
            EvidenceLevel::Text
        );
        let other = profile(EngineKind::Other, None, None);
        assert_eq!(other.level(), EvidenceLevel::Text);
        assert_eq!(other.capacity(BlockUnit::TEXT, 4.0), 8192);
        assert_eq!(profile(EngineKind::Vllm, None, cache(0, 10)).tokens, None);
    }
}
