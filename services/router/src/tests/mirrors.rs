//! Mirrors by engine, and answers that prompts go on with.

use domain::{Backend, BlockUnit, CacheConfig, Decision, EngineKind, KeyList, Report, Usage};

use super::kit::*;

/// Tokens of an answer to a prompt of `doc`: they fill the partial block in which that ends,
/// though the last one is never computed.
const ANSWER: u64 = 12;

/// A conversation whose turns add `turn_blocks` blocks each, as its engine would answer it: the
/// usage of turn `turn`, if the prompt holds the last answer word for word or not.
fn turn(bench: &mut Bench, conversation: u64, turn: u32, verbatim: bool) -> Decision {
    const TURN_BLOCKS: u32 = 10;
    let decision = bench.route(doc(conversation, TURN_BLOCKS * turn));
    bench.first_token(decision.lease);
    let before = TURN_BLOCKS * (turn - 1);
    let found = if before == 0 { 0 } else { before + u32::from(verbatim) };
    let usage = Usage {
        prompt_tokens: u64::from(TURN_BLOCKS * turn * BLOCK + 5),
        completion_tokens: ANSWER,
        cached_tokens: Some(u64::from(found * BLOCK)),
    };
    bench.finish_with(decision.lease, usage);
    decision
}

#[test]
fn answers_are_foretold_once_engines_were_seen_to_find_them() {
    let mut bench = Bench::new(fleet_of(1));
    let matched: Vec<u32> =
        (1..=4).map(|n| turn(&mut bench, 1, n, true).evidence.matched_blocks).collect();
    assert_eq!(matched, [0, 10, 21, 31], "the first answer that was found taught it");
}

#[test]
fn answers_that_templates_drop_are_not_counted_on() {
    let mut bench = Bench::new(fleet_of(1));
    let matched: Vec<u32> =
        (1..=4).map(|n| turn(&mut bench, 1, n, false).evidence.matched_blocks).collect();
    assert_eq!(matched, [0, 10, 20, 30]);
}

#[test]
fn an_answer_whose_keys_the_edge_knows_is_warm_for_the_next_turn() {
    let mut bench = Bench::new(fleet_of(2));
    let first = bench.route(doc(1, 10));
    bench.first_token(first.lease);
    let whole = doc(1, 12);
    let keys = |unit| KeyList { unit, keys: whole.keys[0].keys[10..].into() };
    let usage = Usage { prompt_tokens: 165, completion_tokens: 28, cached_tokens: None };
    let finished = Report::Finished {
        lease: first.lease,
        usage: Some(usage),
        output_keys: vec![keys(BlockUnit::TEXT), keys(BlockUnit::Tokens(BLOCK))],
    };
    bench.router.report_at(&finished, bench.now);
    let next = bench.route(doc(1, 20));
    assert_eq!(next.chosen.rank, first.chosen.rank);
    assert_eq!(next.evidence.matched_blocks, 12, "165 + 27 tokens fill twelve blocks");
}

fn llama(id: &str, slots: u32) -> Backend {
    let mut backend = vllm(id);
    backend.engine = EngineKind::LlamaCpp;
    backend.ranks[0].cache = None;
    backend.ranks[0].slots = Some(slots);
    backend
}

#[test]
fn two_requests_at_once_need_two_of_llama_cpps_slots() {
    let mut bench = Bench::new(vec![llama("a", 2)]);
    bench.serve(text(1, 20));
    let again = bench.route(text(1, 20));
    assert_eq!(again.evidence.matched_blocks, 20);
    bench.first_token(again.lease);
    assert_eq!(bench.route(text(1, 20)).evidence.matched_blocks, 0, "its slot is busy");
}

#[test]
fn a_mirror_of_another_kind_begins_empty() {
    let mut bench = Bench::new(vec![llama("a", 1)]);
    bench.serve(text(1, 20));
    let open = bench.route(text(2, 20));
    bench.reconcile(vec![llama("a", 2)]);
    assert_eq!(bench.field("a", "caches").as_array().map(Vec::len), Some(1));
    assert_eq!(bench.route(text(1, 20)).evidence.matched_blocks, 0);
    bench.finish(open.lease);
    assert_eq!(bench.in_flight("a"), 1);
}

#[test]
fn engine_blocks_below_sixteen_tokens_are_gathered() {
    let mut backend = vllm("a");
    backend.ranks[0].cache =
        Some(CacheConfig { block_size: 8, usable_blocks: 103, prefix_caching: true });
    let mut bench = Bench::new(vec![backend]);
    let prompt = |tokens: u32| {
        let mut prompt = doc(1, tokens / 16);
        prompt.tokens = tokens;
        prompt.keys[0].unit = BlockUnit::Tokens(16);
        prompt
    };
    bench.serve(prompt(165));
    // 10 of the index's blocks; the engine's own end at 160 too.
    assert_eq!(bench.serve(prompt(165)).evidence.predicted_cached_tokens, 160);
    // A prompt that ends with a block of the engine's has that one computed, not sixteen tokens.
    assert_eq!(bench.route(prompt(160)).evidence.predicted_cached_tokens, 152);
    let caches = bench.field("a", "caches");
    assert_eq!(caches[0]["capacity_blocks"], 51, "103 blocks of 8 tokens hold 51 of 16");
}
