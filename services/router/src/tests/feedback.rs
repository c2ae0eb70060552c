//! What engines say they found corrects what is believed of them.

use domain::{EngineKind, EvidenceLevel, Prompt, Usage};
use kv_index::{KvIndex, Slot};

use super::kit::{BLOCK, Bench, doc, text, vllm};

/// The cache of an engine: what it finds of a prompt.
struct Cache {
    index: KvIndex,
    slot: Slot,
}

impl Cache {
    fn of(blocks: u32) -> Self {
        let mut index = KvIndex::new();
        let slot = index.add_rank(blocks);
        Self { index, slot }
    }

    /// Cached tokens of the prompt, which is in the cache from now on.
    fn serve(&mut self, prompt: &Prompt) -> u64 {
        let list = &prompt.keys[0];
        let mut booking = self.index.book(self.slot, &list.keys, 1);
        let found = self.index.start(&mut booking).cached_blocks;
        self.index.finish(booking, 0);
        // A block of text stands for 16 tokens, as the prompts here are made.
        u64::from(found) * u64::from(BLOCK)
    }
}

impl Bench {
    /// Routes, and answers with so many cached tokens.
    fn answer(&mut self, prompt: Prompt, cached_tokens: Option<u64>) -> EvidenceLevel {
        let tokens = prompt.tokens;
        let decision = self.route(prompt);
        self.wait(0.02);
        self.first_token(decision.lease);
        let prompt_tokens = u64::from(tokens);
        self.finish_with(
            decision.lease,
            Usage { prompt_tokens, completion_tokens: 1, cached_tokens },
        );
        decision.evidence.level
    }

    fn cache_field(&self, field: &str) -> f64 {
        self.field("b0", "caches")[0][field].as_f64().expect("a number")
    }
}

#[test]
fn a_rank_that_reports_is_known_by_feedback_and_by_the_model_again_when_it_stops() {
    let mut bench = Bench::new(vec![vllm("b0")]);
    let mut cache = Cache::of(600);
    assert_eq!(bench.answer(doc(1, 10), Some(cache.serve(&doc(1, 10)))), EvidenceLevel::Model);
    for _ in 0..5 {
        bench.answer(doc(1, 10), Some(cache.serve(&doc(1, 10))));
    }
    assert_eq!(bench.field("b0", "evidence"), "feedback");
    for _ in 0..30 {
        bench.answer(doc(1, 10), None);
    }
    assert_eq!(bench.field("b0", "evidence"), "model");
    let metrics = bench.metrics();
    for level in ["feedback", "model"] {
        let change = format!("evidence_changes_total{{level=\"{level}\",model=\"model\"}} 1");
        assert!(metrics.contains(&change), "{level}");
    }
}

#[test]
fn a_cache_of_another_size_than_told_is_learned() {
    for actual in [300, 1_100] {
        let mut bench = Bench::new(vec![vllm("b0")]);
        let mut cache = Cache::of(actual);
        for at in 0..800_u64 {
            // The numbers skip about, the small ones more often.
            let document = (at * 37 % 97) * (at * 53 % 89) / 89;
            let prompt = doc(document, 20);
            let cached = cache.serve(&prompt);
            bench.answer(prompt, Some(cached));
        }
        let capacity = bench.cache_field("capacity_blocks");
        assert!((capacity / f64::from(actual) - 1.0).abs() < 0.2, "{actual}: {capacity}");
        assert_eq!(bench.cache_field("told_blocks"), 600.0);
        assert!(bench.metrics().contains("capacity_corrections_total"));
    }
}

#[test]
fn an_engine_that_tells_no_size_at_all_is_learned_by_text() {
    let mut other = vllm("b0");
    other.engine = EngineKind::Other;
    other.ranks[0].cache = None;
    let mut bench = Bench::new(vec![other]);
    let mut cache = Cache::of(1_000);
    assert_eq!(bench.answer(text(0, 20), Some(0)), EvidenceLevel::Text);
    assert_eq!(bench.cache_field("capacity_blocks"), 8_192.0);
    for at in 0..3_000_u64 {
        let document = (at * 371 % 997) * (at * 53 % 89) / 89 / 4;
        let prompt = text(document, 20);
        let cached = cache.serve(&prompt);
        bench.answer(prompt, Some(cached));
    }
    let capacity = bench.cache_field("capacity_blocks");
    assert!((capacity / 1_000.0 - 1.0).abs() < 0.3, "{capacity}");
    assert_eq!(bench.field("b0", "evidence"), "text");
}

#[test]
fn a_cache_that_was_reset_is_believed_to_be_empty_after_a_run_of_misses() {
    let mut bench = Bench::new(vec![vllm("b0")]);
    let mut cache = Cache::of(600);
    for document in 0..20 {
        bench.answer(doc(document, 20), Some(cache.serve(&doc(document, 20))));
    }
    cache = Cache::of(600);
    for document in 0..8 {
        bench.answer(doc(document, 20), Some(cache.serve(&doc(document, 20))));
    }
    assert!(bench.metrics().contains(
        "warmpath_router_purges_total{backend=\"b0\",model=\"model\",rank=\"0\",scope=\"rank\"} 1"
    ));
    assert_eq!(bench.route(doc(15, 20)).evidence.matched_blocks, 0);
    assert_eq!(bench.cache_field("capacity_blocks"), 600.0);
}

#[test]
fn beliefs_that_stay_wrong_count_for_what_was_confirmed_until_they_are_right() {
    let mut bench = Bench::new(vec![vllm("b0")]);
    for at in 0..120 {
        bench.answer(doc(at % 5, 20), Some(if at < 5 { 0 } else { 48 }));
    }
    assert_eq!(bench.field("b0", "evidence"), "text");
    let decision = bench.route(doc(1, 20));
    assert_eq!(decision.evidence.matched_blocks, 20);
    assert!((30..80).contains(&decision.evidence.predicted_cached_tokens));
    bench.cancel(decision.lease);
    for at in 0..100 {
        bench.answer(doc(at % 5, 20), Some(320));
    }
    assert_eq!(bench.field("b0", "evidence"), "feedback");
    assert_eq!(bench.route(doc(1, 20)).evidence.predicted_cached_tokens, 320);
}

#[test]
fn engines_that_tell_nothing_are_modelled_as_they_say() {
    let mut bench = Bench::new(vec![vllm("b0")]);
    for at in 0..200 {
        assert_eq!(bench.answer(doc(at % 50, 20), None), EvidenceLevel::Model);
    }
    assert_eq!(bench.cache_field("capacity_blocks"), 600.0);
    assert_eq!(bench.field("b0", "evidence"), "model");
}

#[test]
fn a_backend_that_joins_starts_from_what_was_learned_of_those_that_tell_the_same() {
    let mut bench = Bench::new(vec![vllm("b0")]);
    let mut cache = Cache::of(300);
    for at in 0..800_u64 {
        let prompt = doc((at * 37 % 97) * (at * 53 % 89) / 89, 20);
        let cached = cache.serve(&prompt);
        bench.answer(prompt, Some(cached));
    }
    bench.reconcile(vec![vllm("b0"), vllm("b1")]);
    let learned = bench.field("b1", "caches")[0]["capacity_blocks"].as_f64().expect("a number");
    assert!((learned / 300.0 - 1.0).abs() < 0.25, "{learned}");
}
