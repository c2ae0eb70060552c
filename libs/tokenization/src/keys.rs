//! Block keys: the one place that hashes prompts.
//!
//! The key of a block is the hash of its tokens, seeded with the key before it, so a key names a
//! whole prefix. The seed of the first block comes from the region's secret, the model, the
//! adapter and the cache salt; requests that differ in any of them share no key, just as their
//! engines share no KV block.

use domain::{BlockKey, ModelId};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The name space of one (region, model, adapter, salt). Cheap to make, once per request.
///
/// ```
/// # use domain::ModelId;
/// # use tokenization::KeySpace;
/// let space = KeySpace::new(b"secret", &ModelId::new("llama"), None, None);
/// let keys = space.keys(&[1, 2, 3, 4, 5], 2);
/// assert_eq!(keys.len(), 2); // the fifth token fills no block
/// ```
#[derive(Clone, Copy)]
pub struct KeySpace {
    token_seed: u64,
    text_seed: u64,
}

impl KeySpace {
    /// The space of `model` as asked for with `adapter` (the LoRA's name) and `cache_salt`.
    /// An absent adapter or salt differs from an empty one.
    pub fn new(
        region_secret: &[u8],
        model: &ModelId,
        adapter: Option<&str>,
        cache_salt: Option<&str>,
    ) -> Self {
        let mut hasher = Sha256::new();
        frame(&mut hasher, Some(region_secret));
        frame(&mut hasher, Some(model.as_str().as_bytes()));
        frame(&mut hasher, adapter.map(str::as_bytes));
        frame(&mut hasher, cache_salt.map(str::as_bytes));
        let digest = hasher.finalize();
        let word = |at: usize| {
            let mut bytes = [0_u8; 8];
            bytes.copy_from_slice(&digest[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Self { token_seed: word(0), text_seed: word(8) }
    }

    /// One key for each full block of `block_size` tokens. A block size of 0 gives no keys.
    pub fn keys(&self, tokens: &[u32], block_size: u32) -> Vec<BlockKey> {
        self.keys_after(None, tokens, block_size)
    }

    /// The keys of the full blocks that follow the block of key `parent` (`None`: the first
    /// ones), where `tokens` begin.
    pub fn keys_after(
        &self,
        parent: Option<BlockKey>,
        tokens: &[u32],
        block_size: u32,
    ) -> Vec<BlockKey> {
        let size = block_size as usize;
        if size == 0 {
            return Vec::new();
        }
        let mut bytes = vec![0_u8; size.min(tokens.len()) * 4];
        let mut key = parent.map_or(self.token_seed, |parent| parent.0);
        let mut keys = Vec::with_capacity(tokens.len() / size);
        for block in tokens.chunks_exact(size) {
            for (token, slot) in block.iter().zip(bytes.chunks_exact_mut(4)) {
                slot.copy_from_slice(&token.to_le_bytes());
            }
            key = xxh3_64_with_seed(&bytes, key);
            keys.push(BlockKey(key));
        }
        keys
    }

    /// As [`keys`](Self::keys), of tokens that are not all there at once: of the first `most`
    /// tokens at most.
    pub fn token_writer(&self, block_size: u32, most: usize) -> KeyWriter {
        let size = block_size as usize;
        let room = if size == 0 { 0 } else { most.saturating_mul(4) };
        KeyWriter::new(self.token_seed, size * 4, room)
    }

    /// As [`text_keys`](Self::text_keys), of text that is not all there at once.
    pub fn text_writer(&self, block_bytes: u32) -> KeyWriter {
        let room = if block_bytes == 0 { 0 } else { usize::MAX };
        KeyWriter::new(self.text_seed, block_bytes as usize, room)
    }

    /// One key for each full block of `block_bytes` bytes of canonical text. A size of 0 gives
    /// no keys.
    pub fn text_keys(&self, text: &[u8], block_bytes: u32) -> Vec<BlockKey> {
        let size = block_bytes as usize;
        if size == 0 {
            return Vec::new();
        }
        let mut key = self.text_seed;
        let mut keys = Vec::with_capacity(text.len() / size);
        for block in text.chunks_exact(size) {
            key = xxh3_64_with_seed(block, key);
            keys.push(BlockKey(key));
        }
        keys
    }
}

/// Makes keys of a prompt that comes bit by bit: what is held of it is less than a block. They are
/// those of a prompt that is there whole, of which no block is copied.
pub struct KeyWriter {
    key: u64,
    /// Bytes of a block.
    size: usize,
    /// Bytes that are still taken.
    room: usize,
    /// What came behind the last full block.
    pending: Vec<u8>,
    keys: Vec<BlockKey>,
}

impl KeyWriter {
    fn new(seed: u64, size: usize, room: usize) -> Self {
        Self { key: seed, size, room, pending: Vec::new(), keys: Vec::new() }
    }

    /// Makes room for the keys of so many bytes, so that none of it is taken twice.
    #[must_use]
    pub fn expecting(mut self, bytes: usize) -> Self {
        self.keys.reserve_exact(bytes.min(self.room) / self.size.max(1));
        self
    }

    /// The next token.
    pub fn write_token(&mut self, token: u32) {
        self.write(&token.to_le_bytes());
    }

    /// The next bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        let mut bytes = &bytes[..bytes.len().min(self.room)];
        if bytes.is_empty() {
            return;
        }
        self.room -= bytes.len();
        let lacks = self.size - self.pending.len();
        if lacks < self.size || bytes.len() < self.size {
            let (now, later) = bytes.split_at(lacks.min(bytes.len()));
            self.pending.extend_from_slice(now);
            if self.pending.len() < self.size {
                return;
            }
            self.add(xxh3_64_with_seed(&self.pending, self.key));
            self.pending.clear();
            bytes = later;
        }
        let blocks = bytes.chunks_exact(self.size);
        let rest = blocks.remainder();
        for block in blocks {
            self.add(xxh3_64_with_seed(block, self.key));
        }
        self.pending.extend_from_slice(rest);
    }

    fn add(&mut self, key: u64) {
        self.key = key;
        self.keys.push(BlockKey(key));
    }

    /// The keys of what was taken, and the tokens behind the last full block.
    pub fn finish(self) -> (Vec<BlockKey>, Box<[u32]>) {
        let token = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        (self.keys, self.pending.chunks_exact(4).map(token).collect())
    }
}

/// Presence, length, bytes: no two different lists of fields give the same stream.
fn frame(hasher: &mut Sha256, field: Option<&[u8]>) {
    match field {
        None => hasher.update([0]),
        Some(bytes) => {
            hasher.update([1]);
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
    }
}

impl std::fmt::Debug for KeySpace {
    /// The seeds stay secret: who knows them can forge keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeySpace").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn space(secret: &[u8], model: &str, adapter: Option<&str>, salt: Option<&str>) -> KeySpace {
        KeySpace::new(secret, &ModelId::new(model), adapter, salt)
    }

    #[test]
    fn a_key_names_the_whole_prefix_before_it() {
        let space = space(b"s", "m", None, None);
        let tokens: Vec<u32> = (0..64).collect();
        let keys = space.keys(&tokens, 16);
        assert_eq!(keys.len(), 4);
        assert_eq!(space.keys(&tokens[..63], 16), keys[..3]);
        let mut other = tokens.clone();
        other[3] += 1;
        let changed = space.keys(&other, 16);
        assert!(keys.iter().zip(&changed).all(|(a, b)| a != b));
        other[3] -= 1;
        other[40] += 1;
        let changed = space.keys(&other, 16);
        assert_eq!(keys[..2], changed[..2]);
        assert_ne!(keys[2], changed[2]);
        assert_ne!(keys[3], changed[3]);
    }

    #[test]
    fn keys_go_on_where_others_ended() {
        let space = space(b"s", "m", None, None);
        let tokens: Vec<u32> = (0..100).collect();
        let whole = space.keys(&tokens, 16);
        let first = space.keys(&tokens[..40], 16);
        assert_eq!(space.keys_after(first.last().copied(), &tokens[32..], 16), whole[2..]);
        assert_eq!(space.keys_after(None, &tokens, 16), whole);
    }

    #[test]
    fn equal_blocks_at_different_depths_have_different_keys() {
        let keys = space(b"s", "m", None, None).keys(&[7; 160], 16);
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 10);
    }

    #[test]
    fn model_adapter_and_salt_span_disjoint_spaces() {
        let tokens: Vec<u32> = (0..4096).collect();
        let spaces = [
            space(b"s", "base", None, None),
            space(b"s", "base", None, Some("t1")),
            space(b"s", "base", None, Some("t2")),
            space(b"s", "base", None, Some("")),
            space(b"s", "base", Some("lora-a"), None),
            space(b"s", "base", Some("lora-b"), None),
            space(b"s", "base", Some("t1"), None),
            space(b"s", "baset1", None, None),
            space(b"sb", "ase", None, None),
            space(b"other", "base", None, None),
        ];
        let mut seen = HashSet::new();
        for space in spaces {
            for key in space.keys(&tokens, 16).into_iter().chain(space.text_keys(&[0; 4096], 64)) {
                assert!(seen.insert(key));
            }
        }
    }

    #[test]
    fn only_full_blocks_count_and_a_size_of_zero_gives_none() {
        let space = space(b"s", "m", None, None);
        assert!(space.keys(&[1, 2, 3], 4).is_empty());
        assert!(space.keys(&[1, 2, 3], 0).is_empty());
        assert!(space.text_keys(b"abc", 0).is_empty());
        assert_eq!(space.text_keys(&[b'x'; 130], 64).len(), 2);
    }

    #[test]
    fn what_comes_bit_by_bit_has_the_keys_of_the_whole() {
        let space = space(b"s", "m", None, None);
        let tokens: Vec<u32> = (0..1000).map(|i| i * 77).collect();
        for size in [1, 16, 18, 528, 2000] {
            let mut writer = space.token_writer(size, usize::MAX).expecting(tokens.len());
            tokens.iter().for_each(|token| writer.write_token(*token));
            let (keys, tail) = writer.finish();
            assert_eq!(keys, space.keys(&tokens, size));
            assert_eq!(*tail, tokens[keys.len() * size as usize..]);
        }
        let text: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
        for piece in [1, 7, 64, 65, 300, 1000] {
            let mut writer = space.text_writer(64);
            text.chunks(piece).for_each(|piece| writer.write(piece));
            assert_eq!(writer.finish().0, space.text_keys(&text, 64), "in pieces of {piece}");
        }
        assert_eq!(space.text_writer(0).finish().0, []);
    }

    #[test]
    fn no_more_is_taken_than_the_most() {
        let space = space(b"s", "m", None, None);
        let tokens: Vec<u32> = (0..100).collect();
        for most in [0, 15, 16, 40, 96, 100, 200] {
            let mut writer = space.token_writer(16, most);
            tokens.iter().for_each(|token| writer.write_token(*token));
            let taken = &tokens[..most.min(100)];
            let (keys, tail) = writer.finish();
            assert_eq!(keys, space.keys(taken, 16), "{most}");
            assert_eq!(*tail, taken[keys.len() * 16..], "{most}");
        }
        let mut writer = space.token_writer(0, 100);
        writer.write_token(1);
        assert_eq!(writer.finish().0, []);
    }

    #[test]
    fn the_format_of_keys_is_fixed() {
        // Replicas of different minor versions must agree, so these values never change. They were
        // computed apart, with the reference implementations of SHA-256 and XXH3.
        let space = space(b"region", "model", Some("adapter"), Some("salt"));
        let keys = space.keys(&[1, 2, 3, 4], 2);
        let text = space.text_keys(b"0123456789abcdef", 8);
        assert_eq!(format!("{keys:?} {text:?}"), FIXED);
    }

    const FIXED: &str = "[c2e902e705fb77c8, 875e1c9727d3b7b7] [358e118af9814421, 576808b21a314268]";
}
