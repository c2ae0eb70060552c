//! Block keys: names of whole prefixes.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The chained hash of a prefix that ends with one full block. Two equal keys name the same
/// whole prefix (same model, adapter, salt and text), up to the odds of a 64-bit hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockKey(pub u64);

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What one block of a key list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockUnit {
    /// So many tokens, the engine's block size or the smallest multiple of it that is ≥ 16.
    Tokens(u32),
    /// So many bytes of canonical text: the level without a tokenizer.
    Bytes(u32),
}

impl BlockUnit {
    /// The unit of the `text` level: 64 bytes of UTF-8 stand for about 16 tokens of prose.
    pub const TEXT: BlockUnit = BlockUnit::Bytes(64);

    /// Tokens or bytes in a block.
    pub const fn size(self) -> u32 {
        match self {
            BlockUnit::Tokens(n) | BlockUnit::Bytes(n) => n,
        }
    }

    /// Whether the blocks are counted in tokens.
    pub const fn is_tokens(self) -> bool {
        matches!(self, BlockUnit::Tokens(_))
    }

    /// The index block of an engine whose own block holds `engine_block` tokens: that size, or
    /// its smallest multiple that is ≥ 16 (SGLang's page is 1). Zero counts as one.
    pub const fn for_engine_block(engine_block: u32) -> BlockUnit {
        let size = if engine_block == 0 { 1 } else { engine_block };
        if size >= 16 {
            BlockUnit::Tokens(size)
        } else {
            BlockUnit::Tokens(16_u32.div_ceil(size) * size)
        }
    }
}

/// The keys of one prompt in one unit, first block first. Full blocks only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyList {
    /// What one block holds.
    pub unit: BlockUnit,
    /// One key per full block.
    pub keys: Arc<[BlockKey]>,
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): spreads every bit of the input
/// over the output, one to one.
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_engine_blocks_are_gathered_to_at_least_sixteen_tokens() {
        let size = |engine| BlockUnit::for_engine_block(engine).size();
        assert_eq!(size(0), 16);
        assert_eq!(size(1), 16);
        assert_eq!(size(6), 18);
        assert_eq!(size(16), 16);
        assert_eq!(size(32), 32);
        assert_eq!(size(528), 528);
    }
}
