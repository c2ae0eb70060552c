//! Tests against the plain model, against recorded evictions of a real engine, and by name.

mod answers;
mod bookings;
mod copies;
mod demand;
mod eviction;
mod foresight;
mod invariants;
mod model;
mod purges;
mod radix;
mod random;
mod removal;
mod replay;
mod shape;
mod slots;
mod snapshot;
mod winner;

use domain::BlockKey;

use crate::{KvIndex, Matches, Slot};

fn keys(range: std::ops::Range<u64>) -> Vec<BlockKey> {
    range.map(BlockKey).collect()
}

/// Matched and confirmed blocks of one rank.
fn matched(index: &KvIndex, slot: Slot, prompt: &[BlockKey]) -> (u32, u32) {
    let mut into = Matches::default();
    index.match_prefix(prompt, &mut into);
    index.matched(&into, slot).map_or((0, 0), |m| (m.blocks, m.confirmed_blocks))
}

/// Books, starts and finishes a prompt. Returns cached and evicted blocks.
fn serve(index: &mut KvIndex, slot: Slot, prompt: &[BlockKey], extra: u32) -> (u32, u32) {
    let mut booking = index.book(slot, prompt, extra);
    let started = index.start(&mut booking);
    index.finish(booking, 0);
    (started.cached_blocks, started.evicted_blocks)
}

/// Blocks that so many new ones would evict.
fn would_evict(index: &KvIndex, slot: Slot, new_blocks: u32) -> u64 {
    let blocks = index.ranks[slot.index as usize].evicted_by(new_blocks);
    blocks.end - blocks.start
}
