//! Match, book and release on the trace.

use std::hint::black_box;
use std::time::Duration;

use domain::BlockKey;
use kv_index::{KvIndex, Matches, Slot};
use serde::Serialize;
use sim::index_load::IndexLoad;

use super::clock::{cpu_time, timed};
use crate::stats::{quantile, sorted};

/// One load of the bench.
struct Spec {
    name: &'static str,
    ranks: usize,
    /// Blocks that every block of the trace is cut into.
    cut: u32,
    /// Passes over the trace before the measured one.
    warm_passes: usize,
}

/// The loads that published indexes were measured on. Where caches are to be full, the passes
/// before suffice for it.
const SPECS: [Spec; 7] = [
    Spec { name: "10-ranks", ranks: 10, cut: 1, warm_passes: 1 },
    Spec { name: "1000-ranks", ranks: 1_000, cut: 1, warm_passes: 36 },
    Spec { name: "7000-ranks", ranks: 7_000, cut: 1, warm_passes: 1 },
    Spec { name: "16-tokens", ranks: 100, cut: 32, warm_passes: 1 },
    Spec { name: "10-ranks-16-tokens", ranks: 10, cut: 32, warm_passes: 1 },
    Spec { name: "1000-ranks-16-tokens", ranks: 1_000, cut: 32, warm_passes: 1 },
    Spec { name: "7000-ranks-16-tokens", ranks: 7_000, cut: 32, warm_passes: 1 },
];

/// Blocks of a rank's cache.
const CAPACITY: u32 = 10_000;

/// Blocks of one step of the measured eviction.
const EVICTED_AT_ONCE: u32 = 10;

/// What was measured of one load: the middle of the rounds.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    load: &'static str,
    ranks: usize,
    requests_per_second: f64,
    lowest_requests_per_second: f64,
    highest_requests_per_second: f64,
    match_nanos: f64,
    /// With every rank's depth in a table and the demand, as the router takes them.
    match_for_choice_nanos: f64,
    match_listing_all_nanos: f64,
    book_start_finish_nanos: f64,
    evict_nanos_per_block: f64,
    remove_rank_nanos: f64,
    residencies: usize,
    distinct_blocks: usize,
    nodes: usize,
    /// What nodes, labels, holders and the table take of the heap.
    bytes_per_distinct_block: f64,
    bytes_per_residency: f64,
}

/// One round.
struct Round {
    pass: Duration,
    matching: Duration,
    for_choice: Duration,
    listing: Duration,
    evict: f64,
    remove: Duration,
    bytes: usize,
    stats: kv_index::IndexStats,
}

pub(super) fn run(trace: &IndexLoad, rounds: u32) -> Vec<Figures> {
    SPECS.iter().map(|spec| figures(spec, trace, rounds)).collect()
}

fn figures(spec: &Spec, trace: &IndexLoad, rounds: u32) -> Figures {
    let load = trace.cut(spec.cut);
    let prompts: Vec<Vec<BlockKey>> = (0..load.len()).map(|request| load.keys(request)).collect();
    let rounds: Vec<Round> = (0..rounds).map(|_| round(spec, &prompts)).collect();
    let requests = prompts.len() as f64;
    let of = |value: &dyn Fn(&Round) -> f64| sorted(rounds.iter().map(value).collect());
    let middle = |value: &dyn Fn(&Round) -> f64| quantile(&of(value), 0.5).unwrap_or_default();
    let rates = of(&|r| requests / r.pass.as_secs_f64());
    let nanos = |value: &dyn Fn(&Round) -> Duration| {
        middle(&|round| value(round).as_secs_f64() * 1e9 / requests)
    };
    let stats = rounds[0].stats;
    let figures = Figures {
        load: spec.name,
        ranks: spec.ranks,
        requests_per_second: quantile(&rates, 0.5).unwrap_or_default(),
        lowest_requests_per_second: rates[0],
        highest_requests_per_second: rates[rates.len() - 1],
        match_nanos: nanos(&|r| r.matching),
        match_for_choice_nanos: nanos(&|r| r.for_choice),
        match_listing_all_nanos: nanos(&|r| r.listing),
        book_start_finish_nanos: nanos(&|r| r.pass) - nanos(&|r| r.for_choice),
        evict_nanos_per_block: middle(&|r| r.evict),
        remove_rank_nanos: middle(&|r| r.remove.as_secs_f64() * 1e9),
        residencies: stats.residencies,
        distinct_blocks: stats.distinct_blocks,
        nodes: stats.nodes,
        bytes_per_distinct_block: middle(&|r| r.bytes as f64 / stats.distinct_blocks as f64),
        bytes_per_residency: middle(&|r| r.bytes as f64 / stats.residencies as f64),
    };
    print(&figures);
    figures
}

fn print(f: &Figures) {
    println!(
        "{:<11} {:>8.0} req/s ({:.0} to {:.0}); match {:.0} ns, for a choice {:.0} ns, with every holder {:.0} ns; book, \
         start, finish {:.0} ns; evict {:.0} ns a block; remove a rank {:.0} ns; {:.2} bytes per \
         distinct block, {:.2} per residency",
        f.load,
        f.requests_per_second,
        f.lowest_requests_per_second,
        f.highest_requests_per_second,
        f.match_nanos,
        f.match_for_choice_nanos,
        f.match_listing_all_nanos,
        f.book_start_finish_nanos,
        f.evict_nanos_per_block,
        f.remove_rank_nanos,
        f.bytes_per_distinct_block,
        f.bytes_per_residency,
    );
}

fn round(spec: &Spec, prompts: &[Vec<BlockKey>]) -> Round {
    let mut index = KvIndex::new();
    // Every prompt ends within a block: one block beside the cached ones.
    let slots: Vec<Slot> = (0..spec.ranks).map(|_| index.add_rank(CAPACITY + 1)).collect();
    let mut turn = 0;
    for _ in 0..spec.warm_passes {
        pass(&mut index, &slots, prompts, &mut turn, None);
    }
    let (bytes, stats) = (index.heap_bytes(), index.stats());
    let mut lookup = Lookup::default();
    let begin = cpu_time();
    pass(&mut index, &slots, prompts, &mut turn, Some(&mut lookup));
    let pass = cpu_time() - begin;
    let ((), for_choice) = timed(|| prompts.iter().for_each(|keys| lookup.ask(&index, keys)));
    let mut matches = lookup.matches;
    let ((), matching) = timed(|| {
        prompts.iter().for_each(|keys| {
            index.match_prefix(keys, &mut matches);
            black_box(&matches);
        });
    });
    let ((), listing) = timed(|| {
        prompts.iter().for_each(|keys| {
            index.match_prefix(keys, &mut matches);
            index.list_all(&mut matches);
            black_box(&matches);
        });
    });
    let evict = evict(&mut index, slots[0]);
    let ((), remove) = timed(|| index.remove_rank(slots[1]));
    Round { pass, matching, for_choice, listing, evict, remove, bytes, stats }
}

/// A load of each holder above which a prefix is hot: in the order of what the router asks with.
const HOT_LOAD: f64 = 0.25;

/// What the router asks of the index for each prompt.
#[derive(Default)]
struct Lookup {
    matches: Matches,
    depths: Vec<u32>,
}

impl Lookup {
    fn ask(&mut self, index: &KvIndex, keys: &[BlockKey]) {
        index.match_prefix(keys, &mut self.matches);
        index.blocks_by_slot(&self.matches, &mut self.depths);
        black_box(index.demand(&self.matches, HOT_LOAD));
        black_box(&self.depths);
    }
}

/// Every prompt once, on the rank whose turn it is; looked up before if there is a buffer for it.
fn pass(
    index: &mut KvIndex,
    slots: &[Slot],
    prompts: &[Vec<BlockKey>],
    turn: &mut usize,
    mut lookup: Option<&mut Lookup>,
) {
    for keys in prompts {
        if let Some(lookup) = &mut lookup {
            lookup.ask(index, keys);
        }
        let mut booking = index.book(slots[*turn % slots.len()], keys, 1);
        black_box(index.start(&mut booking));
        index.finish(booking, 0);
        *turn += 1;
    }
}

/// Nanoseconds that it takes to evict one block, a few at a time, down to half of what is there.
fn evict(index: &mut KvIndex, slot: Slot) -> f64 {
    let Some(stats) = index.rank_stats(slot) else { return 0.0 };
    let (from, to) = (stats.resident_keyed_blocks, stats.resident_keyed_blocks / 2);
    let ((), spent) = timed(|| {
        let mut capacity = from;
        while capacity > to {
            capacity = capacity.saturating_sub(EVICTED_AT_ONCE).max(to);
            index.set_capacity(slot, capacity);
        }
    });
    spent.as_secs_f64() * 1e9 / f64::from((from - to).max(1))
}
