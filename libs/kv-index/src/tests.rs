//! Tests against the plain model, against recorded evictions of a real engine, and by name.

mod behaviour;
mod demand;
mod foresight;
mod invariants;
mod model;
mod radix;
mod random;
mod replay;
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
