//! Scheduling, timing, preemption and cancellation, and what must hold whatever comes.

use std::collections::HashMap;

use domain::Moment;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{EngineConfig, EngineEvent, EngineModel, EventKind};
use crate::Error;

/// 1 ms a token of prefill, 10 ms a decode step: figures that can be added in the head.
fn config() -> EngineConfig {
    EngineConfig {
        blocks: 65,
        block_size: 16,
        prefill_tokens_per_second: 1000.0,
        prefill_floor_seconds: 0.0,
        token_budget: 8192,
        itl_base_seconds: 0.010,
        itl_per_running_seconds: 0.0,
        max_running: 256,
        decode: true,
    }
}

fn engine(config: EngineConfig) -> EngineModel {
    EngineModel::new(config).expect("a valid configuration")
}

/// Chain hashes of `blocks` blocks of a document.
fn document(number: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|i| number * 1000 + i).collect()
}

fn at_ms(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

fn run_out(model: &mut EngineModel) -> Vec<EngineEvent> {
    let mut events = Vec::new();
    while let Some(at) = model.next_event_at() {
        events.extend(model.advance(at));
    }
    events
}

fn when(events: &[EngineEvent], id: u64, kind: EventKind) -> Option<u64> {
    let event = events.iter().find(|e| e.id == id && e.kind == kind)?;
    Some(event.at.as_nanos() / 1_000_000)
}

#[test]
fn a_cold_prompt_takes_its_prefill_and_a_warm_one_its_uncached_tail() {
    let mut model = engine(config());
    model.submit(1, document(1, 10), 168, 2, Moment::ZERO).expect("fits");
    let events = run_out(&mut model);
    assert_eq!(when(&events, 1, EventKind::Scheduled { cached_tokens: 0 }), Some(0));
    assert_eq!(when(&events, 1, EventKind::FirstToken), Some(168));
    assert_eq!(when(&events, 1, EventKind::Finished { output_tokens: 2 }), Some(178));
    model.submit(2, document(1, 10), 168, 1, at_ms(1000)).expect("fits");
    let events = run_out(&mut model);
    assert_eq!(when(&events, 2, EventKind::Scheduled { cached_tokens: 160 }), Some(1000));
    assert_eq!(when(&events, 2, EventKind::FirstToken), Some(1008));
}

#[test]
fn a_prompt_that_is_all_cached_has_its_last_block_computed_again() {
    let mut model = engine(config());
    for (id, cached_tokens) in [(1, 0), (2, 48)] {
        model.submit(id, document(1, 4), 64, 1, at_ms(id * 1000)).expect("fits");
        let events = run_out(&mut model);
        assert!(when(&events, id, EventKind::Scheduled { cached_tokens }).is_some());
    }
}

#[test]
fn arrivals_of_one_moment_share_a_step_and_the_second_hits_what_the_first_schedules() {
    let mut model = engine(config());
    model.submit(1, document(1, 10), 160, 1, Moment::ZERO).expect("fits");
    model.submit(2, document(1, 10), 168, 1, Moment::ZERO).expect("fits");
    let events = run_out(&mut model);
    assert_eq!(when(&events, 2, EventKind::Scheduled { cached_tokens: 160 }), Some(0));
    assert_eq!(when(&events, 1, EventKind::FirstToken), Some(168));
    assert_eq!(when(&events, 2, EventKind::FirstToken), Some(168));
}

#[test]
fn a_long_prompt_is_computed_in_chunks_between_decode_steps() {
    let mut model = engine(EngineConfig { token_budget: 100, ..config() });
    model.submit(1, document(1, 1), 16, 20, Moment::ZERO).expect("fits");
    model.submit(2, document(2, 15), 250, 1, at_ms(16)).expect("fits");
    let events = run_out(&mut model);
    // Request 1 decodes in every step, so that 99 tokens are left for the prompt of request 2.
    assert_eq!(when(&events, 2, EventKind::Scheduled { cached_tokens: 0 }), Some(16));
    assert_eq!(when(&events, 1, EventKind::Token { index: 1 }), Some(16 + 109));
    assert_eq!(when(&events, 1, EventKind::Token { index: 2 }), Some(16 + 2 * 109));
    assert_eq!(when(&events, 2, EventKind::FirstToken), Some(16 + 2 * 109 + 62));
}

#[test]
fn blocks_are_hashed_chunk_by_chunk() {
    let mut model = engine(EngineConfig { token_budget: 40, ..config() });
    model.submit(1, document(1, 10), 160, 1, Moment::ZERO).expect("fits");
    model.advance(Moment::ZERO);
    assert_eq!(model.cached_blocks(), 2);
    model.advance(at_ms(40));
    assert_eq!(model.cached_blocks(), 5);
}

#[test]
fn when_blocks_run_out_the_youngest_is_preempted_and_later_resumes_from_the_cache() {
    let mut model = engine(EngineConfig { blocks: 9, ..config() });
    model.submit(1, document(1, 3), 48, 40, Moment::ZERO).expect("fits");
    model.submit(2, document(2, 3), 48, 40, Moment::ZERO).expect("fits");
    let events = run_out(&mut model);
    let preempted: Vec<u64> =
        events.iter().filter(|e| e.kind == EventKind::Preempted).map(|e| e.id).collect();
    assert_eq!(preempted, [2]);
    assert_eq!(model.counters().preemptions, 1);
    let finished = |id| when(&events, id, EventKind::Finished { output_tokens: 40 });
    assert!(finished(1) < finished(2));
    let resumed = events.iter().find(|e| matches!(e.kind, EventKind::Resumed { .. }));
    assert_eq!(resumed.map(|e| e.id), Some(2));
    // Looked up once, when it was first scheduled.
    assert_eq!(model.counters().queried_tokens, 96);
    assert_eq!(model.counters().generated_tokens, 80);
}

#[test]
fn a_prompt_waits_until_all_of_it_fits() {
    let mut model = engine(EngineConfig { blocks: 11, token_budget: 16, ..config() });
    model.submit(1, document(1, 6), 96, 1, Moment::ZERO).expect("fits");
    model.submit(2, document(2, 6), 96, 1, Moment::ZERO).expect("fits");
    model.submit(3, document(3, 1), 16, 1, Moment::ZERO).expect("fits");
    model.advance(Moment::ZERO);
    assert_eq!((model.running(), model.waiting()), (1, 2));
    let events = run_out(&mut model);
    // First in, first out: the small one does not overtake.
    assert!(when(&events, 2, EventKind::FirstToken) <= when(&events, 3, EventKind::FirstToken));
    assert_eq!(model.counters().preemptions, 0);
}

#[test]
fn no_more_than_max_running_requests_run() {
    let mut model = engine(EngineConfig { max_running: 2, ..config() });
    for id in 0..5 {
        model.submit(id, document(id, 1), 16, 3, Moment::ZERO).expect("fits");
    }
    model.advance(Moment::ZERO);
    assert_eq!((model.running(), model.waiting()), (2, 3));
    run_out(&mut model);
    assert_eq!(model.counters().finished_requests, 5);
}

#[test]
fn cancelling_frees_blocks_at_once_and_keeps_them_cached() {
    let mut model = engine(config());
    model.submit(1, document(1, 10), 168, 5, Moment::ZERO).expect("fits");
    model.advance(Moment::ZERO);
    assert!(model.kv_usage() > 0.0);
    model.cancel(1, at_ms(1));
    assert_eq!((model.running(), model.waiting(), model.kv_usage()), (0, 0, 0.0));
    assert_eq!(model.counters().cancelled_requests, 1);
    // The step in flight still runs out; the same id may come again and is another request.
    model.submit(1, document(1, 10), 168, 1, at_ms(2)).expect("fits");
    let events = run_out(&mut model);
    assert_eq!(when(&events, 1, EventKind::Scheduled { cached_tokens: 160 }), Some(168));
    assert_eq!(when(&events, 1, EventKind::FirstToken), Some(176));
}

#[test]
fn output_blocks_with_known_hashes_serve_the_next_turn() {
    let mut model = engine(config());
    model.submit(1, document(1, 4), 32, 33, Moment::ZERO).expect("fits");
    run_out(&mut model);
    model.submit(2, document(1, 6), 96, 1, at_ms(5000)).expect("fits");
    let events = run_out(&mut model);
    assert!(when(&events, 2, EventKind::Scheduled { cached_tokens: 64 }).is_some());
}

#[test]
fn a_late_caller_sees_the_same_timeline() {
    let mut prompt = engine(config());
    let mut late = engine(config());
    for model in [&mut prompt, &mut late] {
        model.submit(1, document(1, 4), 64, 30, Moment::ZERO).expect("fits");
    }
    let early = prompt.advance(at_ms(100));
    for (model, earlier) in [(&mut prompt, early), (&mut late, Vec::new())] {
        model.submit(2, document(2, 4), 64, 3, at_ms(105)).expect("fits");
        let mut events = earlier;
        events.extend(model.advance(at_ms(10_000)));
        assert_eq!(when(&events, 1, EventKind::Token { index: 4 }), Some(104));
        assert_eq!(when(&events, 2, EventKind::FirstToken), Some(114 + 64 + 10));
    }
}

#[test]
fn what_could_never_run_is_refused() {
    let mut model = engine(config());
    let submit = |model: &mut EngineModel, prompt, output| {
        model.submit(1, Vec::new(), prompt, output, Moment::ZERO)
    };
    assert_eq!(submit(&mut model, 0, 1), Err(Error::EmptyRequest));
    assert_eq!(submit(&mut model, 1, 0), Err(Error::EmptyRequest));
    let too_long = Error::TooLong { needed_blocks: 65, usable_blocks: 64 };
    assert_eq!(submit(&mut model, 1000, 26), Err(too_long));
    assert_eq!(submit(&mut model, 1000, 25), Ok(()));
    assert_eq!(submit(&mut model, 10, 1), Err(Error::DuplicateRequest(1)));
}

#[test]
fn a_configuration_that_makes_no_sense_names_its_field() {
    let broken = [
        (EngineConfig { blocks: 1, ..config() }, "blocks"),
        (EngineConfig { block_size: 0, ..config() }, "block_size"),
        (
            EngineConfig { prefill_tokens_per_second: f64::NAN, ..config() },
            "prefill_tokens_per_second",
        ),
        (EngineConfig { prefill_floor_seconds: -1.0, ..config() }, "prefill_floor_seconds"),
        (EngineConfig { token_budget: 0, ..config() }, "token_budget"),
        (EngineConfig { itl_base_seconds: f64::INFINITY, ..config() }, "itl_base_seconds"),
        (EngineConfig { max_running: 0, ..config() }, "max_running"),
    ];
    for (config, name) in broken {
        match EngineModel::new(config) {
            Err(Error::Config { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

impl EngineModel {
    /// What must hold between any two calls.
    fn check(&self) {
        let holders: Vec<&super::Sequence> = self.sequences.values().collect();
        let mut held: HashMap<u32, u32> = HashMap::new();
        for block in holders.iter().flat_map(|s| &s.blocks) {
            *held.entry(*block).or_default() += 1;
        }
        assert_eq!(self.pool.free() as usize + held.len(), self.pool.usable() as usize);
        assert_eq!(self.pool.count_free(&held.keys().copied().collect::<Vec<_>>()), 0);
        assert_eq!(self.running.len() + self.waiting.len(), self.sequences.len());
        for sequence in holders {
            let full = sequence.hashed_blocks as usize;
            assert!(sequence.computed <= sequence.tokens() && full <= sequence.blocks.len());
            // A hash that a live request holds is in the cache, all the way from the first block.
            let cached = self.pool.find_prefix(&sequence.hashes[..full]);
            assert_eq!(cached.len(), full);
        }
        let counters = self.counters;
        assert!(counters.hit_tokens <= counters.queried_tokens);
        assert!(counters.hit_blocks <= counters.queried_blocks);
        assert!(counters.prompt_tokens <= counters.queried_tokens);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Submit { document: u64, prompt: u32, output: u32 },
    Cancel { which: u64 },
    Wait { ms: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..4u64, 1..200u32, 1..60u32)
            .prop_map(|(document, prompt, output)| Op::Submit { document, prompt, output }),
        1 => (0..40u64).prop_map(|which| Op::Cancel { which }),
        4 => (0..300u64).prop_map(|ms| Op::Wait { ms }),
    ];
    vec(op, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn blocks_are_conserved_and_every_request_comes_to_its_end(
        ops in ops(),
        budget in 1..200u32,
        max_running in 1..8u32,
    ) {
        let config =
            EngineConfig { blocks: 24, token_budget: budget, max_running, ..config() };
        let mut model = engine(config);
        let (mut now, mut next_id) = (Moment::ZERO, 0);
        let mut outcomes: HashMap<u64, u32> = HashMap::new();
        let mut expected: HashMap<u64, u32> = HashMap::new();
        let mut last = Moment::ZERO;
        let mut events = Vec::new();
        for op in ops {
            match op {
                Op::Submit { document, prompt, output } => {
                    let hashes = self::document(document, u64::from(prompt / 16));
                    if model.submit(next_id, hashes, prompt, output, now).is_ok() {
                        expected.insert(next_id, output);
                    }
                    next_id += 1;
                }
                Op::Cancel { which } => {
                    model.cancel(which, now);
                    events.extend(model.advance(now));
                    if !events.iter().any(
                        |e: &EngineEvent| e.id == which && matches!(e.kind, EventKind::Finished { .. })
                    ) && which < next_id {
                        expected.remove(&which);
                    }
                }
                Op::Wait { ms } => {
                    now = Moment::from_nanos(now.as_nanos() + ms * 1_000_000);
                    events.extend(model.advance(now));
                }
            }
            model.check();
        }
        events.extend(run_out(&mut model));
        model.check();
        for event in &events {
            prop_assert!(event.at >= last, "time runs forward");
            last = event.at;
            if let EventKind::Finished { output_tokens } = event.kind {
                prop_assert_eq!(outcomes.insert(event.id, output_tokens), None);
            }
        }
        prop_assert_eq!(outcomes, expected);
        prop_assert_eq!(model.kv_usage(), 0.0);
        prop_assert_eq!((model.running(), model.waiting()), (0, 0));
    }
}

#[test]
fn without_decode_the_output_is_cached_with_the_first_token() {
    let mut model = engine(EngineConfig { decode: false, ..config() });
    model.submit(1, (0..8).collect(), 40, 60, Moment::ZERO).expect("fits");
    let events = model.advance(Moment::from_secs_f64(100.0));
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    let expected = [
        EventKind::Scheduled { cached_tokens: 0 },
        EventKind::FirstToken,
        EventKind::Finished { output_tokens: 60 },
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[1].at, events[2].at);
    assert_eq!(model.counters().generated_tokens, 60);
    // The last token has no KV: 99 tokens.
    assert_eq!(model.cached_blocks(), 6);
    assert_eq!(model.cached_prefix_blocks([0, 1, 2, 99]), 3);
}

#[test]
fn token_events_can_be_left_out() {
    let mut model = engine(config());
    model.omit_token_events();
    model.submit(1, Vec::new(), 10, 5, Moment::ZERO).expect("fits");
    let mut seen = 0;
    while let Some(next) = model.next_event_at() {
        seen += model.advance(next).len();
        seen += model.output_tokens().filter(|(id, n)| *id != 1 || *n > 5).count();
    }
    assert_eq!(seen, 3);
}
