use super::*;
use crate::workload::{Draw, reference_draws};

const UNIFORM: (Draw, u64) = (Draw::Uniform, 1);
const SKEWED: (Draw, u64) = (Draw::Skewed, 2);

/// The hit rate in percent, of the published 3,000 requests.
fn hits(run: &Windowed, policy: RoutePolicy, (draw, seed): (Draw, u64)) -> f64 {
    let draws = reference_draws(draw, 15, 3_000, seed);
    100.0 * run.run(policy, &draws).block_hit_rate(0..3_000)
}

fn assert_near(measured: f64, published: f64, what: &str) {
    println!("{what}: {measured:.2} % (published {published} %)");
    assert!((measured - published).abs() <= 0.1, "{what}: {measured} is not about {published}");
}

#[test]
fn round_robin_is_the_published_one() {
    let head = Windowed::default();
    let tail = Windowed { evict: Evict::Tail, ..Windowed::default() };
    assert_near(hits(&head, RoutePolicy::RoundRobin, UNIFORM), 40.50, "uniform, head first");
    assert_near(hits(&head, RoutePolicy::RoundRobin, SKEWED), 61.96, "skewed, head first");
    assert_near(hits(&tail, RoutePolicy::RoundRobin, UNIFORM), 42.0, "uniform, tail first");
    assert_near(hits(&tail, RoutePolicy::RoundRobin, SKEWED), 63.3, "skewed, tail first");
}

#[test]
fn the_reference_rule_is_the_published_one() {
    assert_near(hits(&Windowed::default(), RoutePolicy::Reference, UNIFORM), 99.31, "uniform");
    for (window, published) in [(48, 99.31), (72, 81.6), (96, 61.9), (192, 62.2)] {
        let run = Windowed { window, ..Windowed::default() };
        let measured = hits(&run, RoutePolicy::Reference, SKEWED);
        assert_near(measured, published, &format!("skewed, window {window}"));
    }
}

#[test]
fn the_longest_prefix_alone_pins_everything_to_one_node() {
    let draws = reference_draws(Draw::Uniform, 15, 3_000, 1);
    let outcome = Windowed::default().run(RoutePolicy::LongestPrefix, &draws);
    let most = outcome.requests_per_rank(0..3_000).into_iter().max();
    assert!(outcome.block_hit_rate(0..3_000) < 0.45 && most > Some(2_500), "{most:?}");
}

#[test]
fn a_told_mirror_believes_what_the_plain_cache_holds() {
    let draws = reference_draws(Draw::Skewed, 30, 1_000, 7);
    for evict in [Evict::Head, Evict::Tail] {
        let run = Windowed { evict, ..Windowed::default() };
        for policy in RoutePolicy::ALL {
            let outcome = run.run(policy, &draws);
            for record in &outcome.records {
                assert_eq!(record.believed_blocks, record.hit_blocks, "{policy}");
            }
        }
    }
}

#[test]
fn a_run_is_the_same_every_time() {
    let draws = reference_draws(Draw::Uniform, 15, 400, 1);
    for policy in RoutePolicy::ALL {
        let run = || Windowed::default().run(policy, &draws).records;
        assert_eq!(run(), run(), "{policy}");
    }
}

#[test]
fn service_is_a_fixed_part_and_the_uncached_tokens() {
    let run = Windowed { nodes: 2, window: 0, ..Windowed::default() };
    let ends = |run: &Windowed| {
        let records = run.run(RoutePolicy::LongestPrefix, &[0, 0]).records;
        [0, 1].map(|i| records[i].finished.map_or(0.0, |at| at.as_secs_f64()))
    };
    let near = |a: [f64; 2], b: [f64; 2]| {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-8), "{a:?} {b:?}");
    };
    // 98 blocks of 16 tokens at 20,000 a second, and then nothing but the fixed millisecond.
    near(ends(&run), [0.0397, 0.0402]);
    let slow = Windowed { service_ms: 3.0, prefill_tokens_per_second: 10_000.0, ..run };
    near(ends(&slow), [0.0799, 0.0814]);
}

#[test]
fn a_shape_that_makes_no_sense_is_refused() {
    let run = Windowed::default();
    assert_eq!(run.check(15), Ok(()));
    let field = |run: Windowed, documents| match run.check(documents) {
        Err(crate::Error::Config { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(run.clone(), 0), "documents");
    assert_eq!(field(Windowed { question_tokens: 16, ..run.clone() }, 15), "question_tokens");
    assert_eq!(field(Windowed { service_ms: -1.0, ..run.clone() }, 15), "service_ms");
    assert_eq!(field(Windowed { document_blocks: 0, ..run }, 15), "document_blocks");
}
