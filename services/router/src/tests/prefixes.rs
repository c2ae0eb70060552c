//! Prefixes stay where they are warm.

use domain::{BlockUnit, Decision, DecisionReason, EvidenceLevel, FailureClass, Usage};

use super::kit::{BLOCK, Bench, doc, fleet_of, shares, text, vllm};

#[test]
fn a_burst_of_one_new_prefix_does_not_scatter() {
    let mut bench = Bench::new(fleet_of(4));
    // 16,000 tokens are close to a second of prefill: going elsewhere means paying it again.
    let burst: Vec<Decision> = (0..8).map(|_| bench.route(doc(1, 500).clone())).collect();
    assert_eq!(burst[0].evidence.matched_blocks, 0);
    let cold = burst.iter().filter(|d| d.evidence.matched_blocks == 0).count();
    assert!(cold <= 2, "{cold} of 8 were cold: {:?}", shares(&burst));
    // Whoever comes when the prefill is done goes to a holder.
    bench.wait(2.0);
    for decision in &burst {
        bench.first_token(decision.lease);
    }
    let later = bench.route(doc(1, 500));
    assert_eq!(later.evidence.matched_blocks, 500);
    assert_eq!(later.evidence.reason, DecisionReason::WarmPrefix);
    assert_eq!(later.evidence.level, EvidenceLevel::Model);
}

#[test]
fn a_prefix_that_most_requests_begin_with_gets_further_holders_one_at_a_time() {
    let mut bench = Bench::new(fleet_of(8));
    let mut copies = 0;
    for n in 0..4_000 {
        // Three of four requests are for one document, the others for one of 14.
        let prompt = if n % 4 > 0 { doc(0, 96) } else { doc(1 + n / 4 % 14, 96) };
        let decision = bench.route(prompt);
        let evidence = decision.evidence;
        if evidence.reason == DecisionReason::HotPrefix {
            assert_eq!((n % 4 > 0, evidence.matched_blocks), (true, 0));
            copies += 1;
        }
        bench.wait(0.005 + f64::from(96 * 16 - evidence.predicted_cached_tokens) / 20_000.0);
        bench.first_token(decision.lease);
        bench.finish(decision.lease);
    }
    // Six times what a rank gets on average in all: three holders have no more than twice of it.
    assert_eq!(copies, 2);
    let counted = "warmpath_router_decisions_total{model=\"model\",reason=\"hot_prefix\"} 2";
    assert!(bench.metrics().contains(counted), "{}", bench.metrics());
}

/// Serves a document on the other backend than this one.
fn serve_beside(bench: &mut Bench, document: u64, taken: usize) {
    let mut route = bench.request(Some(doc(document, 96)));
    route.excluded = vec![fleet_of(2)[taken].rank_id(0)];
    let decision = bench.router.route_at(&route, bench.now).expect("a decision");
    bench.wait(0.2);
    bench.first_token(decision.lease);
    bench.finish(decision.lease);
}

#[test]
fn of_two_copies_one_is_kept_where_caches_are_full_and_both_serve_where_there_is_room() {
    for (documents, is_full) in [(6, true), (2, false)] {
        let mut bench = Bench::new(fleet_of(2));
        for _ in 0..10 {
            (0..2 * documents).for_each(|n| serve_beside(&mut bench, n / 2, n as usize % 2));
        }
        let decisions: Vec<Decision> = (0..6).map(|_| bench.route(doc(1, 96))).collect();
        assert!(decisions.iter().all(|d| d.evidence.matched_blocks == 96));
        let backends = shares(&decisions).len();
        assert_eq!(backends, if is_full { 1 } else { 2 }, "{:?}", shares(&decisions));
    }
}

#[test]
fn documents_settle_each_on_one_backend() {
    let mut bench = Bench::new(fleet_of(3));
    let mut misses = 0;
    for round in 0..10 {
        for d in 0..15 {
            let decision = bench.serve(doc(d, 96));
            misses += u32::from(round > 0 && decision.evidence.matched_blocks < 96);
        }
    }
    assert_eq!(misses, 0, "15 documents of 97 blocks fit three caches of 600");
}

#[test]
fn cached_tokens_are_foretold_as_the_engine_counts_them() {
    let mut bench = Bench::new(fleet_of(1));
    let mut exact = doc(1, 64);
    exact.tokens = 1024;
    bench.serve(exact.clone());
    let again = bench.serve(exact);
    assert_eq!(again.evidence.matched_blocks, 64);
    assert_eq!(again.evidence.predicted_cached_tokens, 1008);
    let longer = bench.serve(doc(1, 64));
    assert_eq!(longer.evidence.predicted_cached_tokens, 1024);
}

#[test]
fn a_booking_that_fails_before_its_prefill_leaves_nothing() {
    let mut bench = Bench::new(fleet_of(1));
    let ahead = bench.route(doc(1, 550));
    let behind = bench.route(doc(2, 20));
    let third = bench.route(doc(2, 20));
    assert_eq!(third.evidence.matched_blocks, 20, "booked blocks count at once");
    bench.fail(third.lease, FailureClass::BackPressure);
    bench.fail(behind.lease, FailureClass::BackPressure);
    assert_eq!(bench.route(doc(2, 20)).evidence.matched_blocks, 0);
    assert!(bench.metrics().contains("warmpath_router_rollbacks_total{model=\"model\"} 2"));
    bench.first_token(ahead.lease);
    bench.finish(ahead.lease);
    assert_eq!(bench.route(doc(1, 550)).evidence.matched_blocks, 550);
}

#[test]
fn a_cancelled_request_that_ran_keeps_its_prefix_warm() {
    let mut bench = Bench::new(fleet_of(2));
    let decision = bench.route(doc(1, 50));
    bench.wait(0.1);
    bench.first_token(decision.lease);
    bench.progress(decision.lease, 40);
    bench.cancel(decision.lease);
    let again = bench.route(doc(1, 50));
    assert_eq!(again.evidence.matched_blocks, 50);
    assert_eq!(again.chosen.rank, decision.chosen.rank);
}

#[test]
fn output_presses_on_the_capacity() {
    let mut bench = Bench::new(fleet_of(1));
    bench.serve(doc(1, 300));
    // 200 blocks of prompt and 200 of output leave room for 200 of the first document's 300.
    let big = bench.route(doc(2, 200));
    bench.wait(0.2);
    bench.first_token(big.lease);
    bench.progress(big.lease, 200 * 16);
    bench.finish(big.lease);
    let matched = bench.route(doc(1, 300)).evidence.matched_blocks;
    assert!((195..=200).contains(&matched), "{matched}");
}

#[test]
fn what_a_prompt_loses_while_it_waits_for_room_is_foretold() {
    let mut bench = Bench::new(fleet_of(1));
    bench.serve(doc(1, 100));
    let running = bench.route(doc(2, 450));
    bench.wait(0.5);
    bench.first_token(running.lease);
    bench.wait(0.5);
    // Two that do not fit beside the running one, and would need all of the cache.
    for waiting in [3, 4] {
        bench.route(doc(waiting, 300));
        bench.wait(0.5);
    }
    let decision = bench.route(doc(1, 100));
    assert_eq!(decision.evidence.matched_blocks, 100, "it is all there yet");
    assert_eq!(decision.evidence.predicted_cached_tokens, 0);
    // One that is for the same as the last one before it will find that.
    let next = bench.route(doc(1, 100));
    assert_eq!(next.evidence.predicted_cached_tokens, 100 * BLOCK);
}

#[test]
fn a_failed_parity_check_means_text_and_its_repair_means_tokens_again() {
    let mut wrong = vllm("b0");
    wrong.models[0].parity = Some(false);
    let mut bench = Bench::new(vec![wrong]);
    let mut both = doc(1, 32);
    both.keys.extend(text(1, 32).keys);
    assert_eq!(bench.serve(both.clone()).evidence.level, EvidenceLevel::Text);
    assert_eq!(bench.field("b0", "evidence"), "text");

    let mut right = vllm("b0");
    right.models[0].parity = Some(true);
    bench.reconcile(vec![right]);
    assert_eq!(bench.serve(both).evidence.level, EvidenceLevel::Model);
    assert_eq!(bench.field("b0", "evidence"), "model");
    let metrics = bench.metrics();
    assert!(
        metrics.contains("warmpath_router_evidence_changes_total{level=\"model\""),
        "{metrics}"
    );
}

#[test]
fn without_token_keys_the_text_decides() {
    let mut bench = Bench::new(fleet_of(3));
    let first = bench.serve(text(1, 100));
    for d in 2..8 {
        bench.serve(text(d, 100));
    }
    let again = bench.serve(text(1, 100));
    assert_eq!(again.chosen.rank, first.chosen.rank);
    assert_eq!(again.evidence.level, EvidenceLevel::Text);
    assert_eq!(again.evidence.matched_blocks, 100);
    // 6,400 of 6,420 bytes of an estimated 1,605 tokens.
    assert_eq!(again.evidence.predicted_cached_tokens, 1600);
}

#[test]
fn ranks_are_shown_at_the_level_that_decisions_about_them_have() {
    let mut bench = Bench::new(fleet_of(2));
    let shown = |bench: &Bench| ["b0", "b1"].map(|id| bench.field(id, "evidence"));
    assert_eq!(shown(&bench), ["model", "model"], "as far as the engines tell");
    assert_eq!(bench.serve(text(1, 100)).evidence.level, EvidenceLevel::Text);
    assert_eq!(shown(&bench), ["text", "text"]);
    // One that joins is no better known.
    bench.reconcile(fleet_of(3));
    assert_eq!(bench.field("b2", "evidence"), "text");
    // A model folder is there from now on.
    for d in 0..80 {
        assert_eq!(bench.serve(doc(d, 10)).evidence.level, EvidenceLevel::Model);
    }
    assert_eq!(shown(&bench), ["model", "model"]);
    bench.serve(text(1, 100));
    assert_eq!(shown(&bench), ["model", "model"], "one could not be rendered");
}

#[test]
fn the_text_mirror_is_scaled_by_the_bytes_per_token_that_were_seen() {
    let mut bench = Bench::new(fleet_of(1));
    let capacity = |bench: &Bench| {
        let caches = bench.field("b0", "caches");
        let text = caches
            .as_array()
            .and_then(|c| c.iter().find(|c| c["unit"] == serde_json::json!(BlockUnit::TEXT)));
        text.and_then(|c| c["capacity_blocks"].as_u64()).expect("a text mirror")
    };
    bench.serve(text(1, 100));
    assert_eq!(capacity(&bench), 600);
    for _ in 0..100 {
        let decision = bench.route(text(1, 100));
        bench.first_token(decision.lease);
        let usage = Usage { prompt_tokens: 6420 / 2, completion_tokens: 1, cached_tokens: Some(0) };
        bench.finish_with(decision.lease, usage);
    }
    assert!((300..=320).contains(&capacity(&bench)), "{}", capacity(&bench));
}

#[test]
fn an_engine_without_prefix_caching_is_never_believed_warm() {
    let mut off = vllm("b0");
    if let Some(cache) = &mut off.ranks[0].cache {
        cache.prefix_caching = false;
    }
    let mut bench = Bench::new(vec![off]);
    for _ in 0..3 {
        let decision = bench.serve(doc(1, 20));
        assert_eq!(decision.evidence.matched_blocks, 0);
        assert_eq!(decision.evidence.predicted_cached_tokens, 0);
    }
}

#[test]
fn each_block_size_has_its_own_keys_and_all_are_scored_together() {
    let mut wide = vllm("wide");
    if let Some(cache) = &mut wide.ranks[0].cache {
        cache.block_size = 32;
        cache.usable_blocks = 300;
    }
    let mut bench = Bench::new(vec![vllm("narrow"), wide]);
    let mut prompt = doc(1, 64);
    let mut halves = doc(7, 32).keys.remove(0);
    halves.unit = BlockUnit::Tokens(32);
    prompt.keys.push(halves);
    let first = bench.serve(prompt.clone());
    let again = bench.serve(prompt.clone());
    assert_eq!(again.chosen.rank, first.chosen.rank);
    assert_eq!(again.evidence.predicted_cached_tokens, 1024);
    bench.reconcile(vec![vllm("narrow")]);
    bench.serve(prompt.clone());
    assert_eq!(bench.serve(prompt).evidence.matched_blocks, 64);
}
