//! Conversations on an index with full caches, always the same: for counting instructions, which
//! do not depend on what else the machine does.
//!
//! ```sh
//! cargo build --release -p kv-index --example instructions
//! valgrind --tool=callgrind --callgrind-out-file=/dev/stdout target/release/examples/instructions 10
//! ```
//!
//! The argument is the number of ranks. Every turn of a conversation brings two more blocks; all
//! conversations share their first block.

use std::hint::black_box;

use domain::BlockKey;
use kv_index::{KvIndex, Matches, Slot};

const CAPACITY: u32 = 600;
const TURNS: u64 = 12;
const TURN_BLOCKS: u64 = 2;
/// Conversations that go on at the same time, for each rank.
const AT_ONCE: u64 = 4;

/// A well spread key.
fn key(n: u64) -> BlockKey {
    let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    BlockKey(n ^ (n >> 32))
}

fn prompt(conversation: u64, turn: u64) -> Vec<BlockKey> {
    let own = (1..=(turn + 1) * TURN_BLOCKS).map(|block| (conversation + 1) * 1_000 + block);
    std::iter::once(0).chain(own).map(key).collect()
}

/// The measured part is inside, so that the making of prompts can be told from it.
#[inline(never)]
fn serve(index: &mut KvIndex, matches: &mut Matches, slot: Slot, keys: &[BlockKey]) {
    index.match_prefix(keys, matches);
    black_box(&matches);
    let mut booking = index.book(slot, keys, 1);
    black_box(index.start(&mut booking));
    index.finish(booking, 0);
}

fn main() {
    let ranks: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    let mut index = KvIndex::new();
    let mut matches = Matches::default();
    let slots: Vec<Slot> = (0..ranks).map(|_| index.add_rank(CAPACITY)).collect();
    let mut requests = 0_u64;
    let mut cached = 0_usize;
    for group in 0..10 {
        for turn in 0..TURNS {
            for member in 0..ranks * AT_ONCE {
                let keys = prompt(group * ranks * AT_ONCE + member, turn);
                // A conversation stays on its rank.
                let slot = slots[(member % ranks) as usize];
                serve(&mut index, &mut matches, slot, &keys);
                requests += 1;
                cached += matches.listed().len();
            }
        }
    }
    println!("{requests} requests, {cached} holders listed, {:?}", index.stats());
}
