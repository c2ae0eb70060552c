//! Tables of known words. A thread takes a table for the time of one text, so that looking up a
//! word takes no lock.

use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

/// Longer words are not remembered.
const WORD_BYTES: usize = 30;
/// Words of more tokens are not remembered.
const WORD_TOKENS: usize = 8;
/// Words in a table; a power of two. A table takes 2 MiB.
const SLOTS: usize = 1 << 15;
/// Tables kept while no thread uses them.
const IDLE_TABLES: usize = 16;

/// Tables not in use.
#[derive(Default)]
pub(super) struct WordPool {
    idle: Mutex<Vec<Words>>,
    tables: AtomicU64,
}

impl WordPool {
    pub(super) fn take(&self) -> Words {
        if let Some(table) = self.idle.lock().pop() {
            return table;
        }
        self.tables.fetch_add(1, Ordering::Relaxed);
        Words { slots: vec![Word::NONE; SLOTS] }
    }

    pub(super) fn put_back(&self, table: Words) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_TABLES {
            idle.push(table);
        } else {
            self.tables.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.tables.load(Ordering::Relaxed) * (SLOTS * size_of::<Word>()) as u64
    }

    pub(super) fn reset(&self) {
        let dropped = std::mem::take(&mut *self.idle.lock()).len();
        self.tables.fetch_sub(dropped as u64, Ordering::Relaxed);
    }
}

/// A table in pairs of slots: a word lies in one of the two its hash names, and a new one takes
/// the place of the older of the two.
pub(super) struct Words {
    slots: Vec<Word>,
}

/// One cache line.
#[derive(Clone, Copy)]
struct Word {
    length: u8,
    count: u8,
    bytes: [u8; WORD_BYTES],
    tokens: [u32; WORD_TOKENS],
}

impl Word {
    const NONE: Word =
        Word { length: 0, count: 0, bytes: [0; WORD_BYTES], tokens: [0; WORD_TOKENS] };

    fn is(&self, text: &[u8]) -> bool {
        usize::from(self.length) == text.len() && self.bytes[..text.len()] == *text
    }
}

impl Words {
    /// Appends the tokens of a known word.
    pub(super) fn get(&self, word: &str, out: &mut Vec<u32>) -> bool {
        let text = word.as_bytes();
        if text.len() > WORD_BYTES {
            return false;
        }
        let pair = pair_of(text);
        let Some(known) = self.slots[pair..pair + 2].iter().find(|slot| slot.is(text)) else {
            return false;
        };
        out.extend_from_slice(&known.tokens[..usize::from(known.count)]);
        true
    }

    /// Remembers a word that was not known.
    pub(super) fn insert(&mut self, word: &str, tokens: &[u32]) {
        let text = word.as_bytes();
        if text.len() > WORD_BYTES || tokens.len() > WORD_TOKENS {
            return;
        }
        // Both fit: the limits above are below 256.
        let mut new = Word { length: text.len() as u8, count: tokens.len() as u8, ..Word::NONE };
        new.bytes[..text.len()].copy_from_slice(text);
        new.tokens[..tokens.len()].copy_from_slice(tokens);
        let pair = pair_of(text);
        self.slots[pair + 1] = self.slots[pair];
        self.slots[pair] = new;
    }
}

fn pair_of(text: &[u8]) -> usize {
    // Truncation keeps the low bits, which are all that is needed.
    (xxh3_64(text) as usize & (SLOTS / 2 - 1)) * 2
}
