//! The choice made from what a match tells is the choice made by asking the model of every rank.

use domain::BlockKey;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scheduling::{
    CandidateView, Coefficients, Config, Field, Line, Selection, select, select_sparing,
};

use super::random::{Alphabet, Pair, random_op, random_path};

const BLOCK_TOKENS: u32 = 16;

/// What is known of the ranks beside their caches, and drawn.
struct Rest {
    queue_delay_seconds: f64,
    last_chosen: u64,
}

fn views(
    pair: &Pair,
    blocks: &[u32],
    evicted: &[f64],
    rest: &[Rest],
    prompt: u32,
) -> Vec<CandidateView<'static>> {
    (0..pair.ranks.len())
        .map(|rank| CandidateView {
            matched_blocks: blocks[rank],
            cached_tokens: blocks[rank] * BLOCK_TOKENS,
            uncached_tokens: (prompt - blocks[rank]) * BLOCK_TOKENS + 1,
            hot_tokens: 0,
            queue_delay_seconds: rest[rank].queue_delay_seconds,
            network_seconds: 0.0,
            evicted_ask_tokens: evicted[rank] * f64::from(BLOCK_TOKENS),
            booked_seconds: rest[rank].queue_delay_seconds,
            arrivals_per_second: 1.0,
            in_flight: 0,
            running: 0,
            last_chosen: rest[rank].last_chosen,
            saturated: false,
            fit: &Coefficients::DEFAULT,
        })
        .collect()
}

/// Blocks by rank in every way that a match tells them.
fn told(pair: &mut Pair, prompt: &[BlockKey]) -> Vec<(&'static str, Vec<u32>)> {
    let Pair { index, ranks, into, blocks, .. } = pair;
    index.match_prefix(prompt, into);
    let one_by_one: Vec<u32> =
        ranks.iter().map(|(slot, _)| index.matched(into, *slot).map_or(0, |m| m.blocks)).collect();
    if let Some(shared) = index.shared(into) {
        for (rank, (slot, _)) in ranks.iter().enumerate() {
            let is_listed = into.listed().iter().any(|m| m.slot == *slot);
            assert!(is_listed || one_by_one[rank] <= shared.blocks, "{shared:?}");
        }
    } else {
        assert_eq!(one_by_one.iter().filter(|b| **b > 0).count(), into.listed().len());
    }
    index.blocks_by_slot(into, blocks);
    let by_slot = ranks.iter().map(|(slot, _)| blocks[slot.number()]).collect();
    index.list_all(into);
    let listed = |slot| into.listed().iter().find(|m| m.slot == slot).map_or(0, |m| m.blocks);
    let all = ranks.iter().map(|(slot, _)| listed(*slot)).collect();
    vec![("matched", one_by_one), ("blocks_by_slot", by_slot), ("list_all", all)]
}

fn compare(pair: &mut Pair, rng: &mut SmallRng) {
    let prompt = pair.keys(&random_path(rng));
    let len = prompt.len() as u32;
    let rest: Vec<Rest> = (0..pair.ranks.len())
        .map(|rank| Rest {
            queue_delay_seconds: f64::from(rng.random_range(0..4)) * 0.002,
            last_chosen: (rng.random_range(0..100) << 8) + rank as u64,
        })
        .collect();
    let model = &pair.model;
    let by_model =
        pair.ranks.iter().map(|(_, twin)| model.matched(*twin, &prompt).map_or(0, |(b, _)| b));
    let by_model: Vec<u32> = by_model.collect();
    let slots: Vec<_> = pair.ranks.iter().map(|(slot, _)| *slot).collect();
    let evicted: Vec<f64> = slots
        .iter()
        .zip(&by_model)
        .map(|(slot, blocks)| pair.index.asks_evicted_by(*slot, len + 1 - blocks))
        .collect();
    let config = Config::default();
    let expected: Selection = select(&config, &views(pair, &by_model, &evicted, &rest, len));
    for listed in [0, 1, 3, pair.ranks.len()] {
        pair.index.listed = listed;
        for (way, blocks) in told(pair, &prompt) {
            let unknown = vec![0.0; evicted.len()];
            let views = views(pair, &blocks, &unknown, &rest, len);
            let field = Field::new(&config, views.iter().map(Line::from));
            let chosen = select_sparing(&config, &field, |rank| {
                let new_blocks = len + 1 - views[rank].matched_blocks;
                let asks = pair.index.asks_evicted_by(slots[rank], new_blocks);
                asks * f64::from(BLOCK_TOKENS)
            });
            assert_eq!(chosen, expected, "{way} with {listed} listed of {prompt:?}");
        }
    }
}

#[test]
fn the_choice_is_that_of_asking_the_model_of_every_rank() {
    for seed in 0..8 {
        let mut rng = SmallRng::seed_from_u64(0x5eed_0010 + seed);
        let mut pair = Pair::new(Alphabet::Chained);
        for _ in 0..2_000 {
            pair.apply(&random_op(&mut rng));
            compare(&mut pair, &mut rng);
        }
    }
}
