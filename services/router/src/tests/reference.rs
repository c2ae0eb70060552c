//! The router before modelled engines, in virtual time, on the reference's set of documents:
//! hits are counted where they happen, in the engines.

use std::collections::HashMap;

use domain::{BlockKey, BlockUnit, KeyList, LeaseId, Moment, Prompt, Report, Usage};
use scheduling::Policy;
use sim::engine::{EngineConfig, EngineModel, EventKind};
use sim::workload::{Draw, ReferenceDocuments, draws};

use super::kit::{BLOCK, Bench, fleet_of, with_load};
use crate::{Config, RawConfig};

const OUTPUT_TOKENS: u32 = 4;

/// What a run came to.
#[derive(Debug)]
struct Outcome {
    /// Block hits over the ceiling.
    of_ceiling: f64,
    /// Block hits over all blocks.
    hit_rate: f64,
    /// Share of requests whose cached tokens were foretold to within one block.
    foretold: f64,
    /// Requests of the busiest backend over the mean.
    busiest: f64,
}

struct Open {
    lease: LeaseId,
    predicted: u32,
    cached: u32,
}

/// A closed loop of `concurrency` clients.
fn run(policy: Policy, set: ReferenceDocuments, draw: Draw, backends: usize, seed: u64) -> Outcome {
    let raw = RawConfig { policy: Some(policy), ..RawConfig::default() };
    let mut bench = Bench::with(Config::new(raw).expect("valid"), described(backends, None));
    bench.now = Moment::ZERO;
    let config = EngineConfig { blocks: 600, ..EngineConfig::default() };
    let mut engines: Vec<EngineModel> =
        (0..backends).map(|_| EngineModel::new(config.clone()).expect("valid")).collect();
    let drawn = draws(draw, set.documents, set.requests, seed);
    let mut waiting = drawn.iter().copied().enumerate();
    let mut open: HashMap<u64, Open> = HashMap::new();
    let (mut shares, mut foretold, mut next_scrape) = (vec![0_u32; backends], 0, 1.0);
    loop {
        while open.len() < set.concurrency
            && let Some((id, document)) = waiting.next()
        {
            let prompt = prompt(&set, document as u64);
            let hashes = prompt.keys[0].keys.iter().map(|k| k.0).collect();
            let tokens = prompt.tokens;
            let decision = bench.route(prompt);
            let at: usize =
                decision.chosen.rank.backend.as_str()[1..].parse().expect("named b0, b1, …");
            shares[at] += 1;
            engines[at]
                .submit(id as u64, hashes, tokens, OUTPUT_TOKENS, bench.now)
                .expect("it fits an empty cache");
            let predicted = decision.evidence.predicted_cached_tokens;
            open.insert(id as u64, Open { lease: decision.lease, predicted, cached: 0 });
        }
        let Some(next) = engines.iter().filter_map(EngineModel::next_event_at).min() else { break };
        bench.now = next;
        for engine in &mut engines {
            for event in engine.advance(next) {
                foretold += u32::from(deliver(&bench, &mut open, event.id, event.kind));
            }
        }
        if next.as_secs_f64() >= next_scrape {
            next_scrape += 1.0;
            bench.reconcile(described(backends, Some((&engines, next))));
            bench.router.tick(next);
        }
    }
    assert!(waiting.next().is_none() && open.is_empty(), "every request is answered");
    let mean = set.requests as f64 / backends as f64;
    let (hits, all) = engines.iter().fold((0, 0), |(hits, all), engine| {
        let counters = engine.counters();
        (hits + counters.hit_blocks, all + counters.queried_blocks)
    });
    let hit_rate = hits as f64 / all as f64;
    Outcome {
        of_ceiling: hit_rate / set.ceiling_block_hit_rate(&drawn),
        hit_rate,
        foretold: f64::from(foretold) / set.requests as f64,
        busiest: f64::from(shares.into_iter().max().unwrap_or(0)) / mean,
    }
}

/// Passes an event of an engine on; whether it shows that a prediction came true.
fn deliver(bench: &Bench, open: &mut HashMap<u64, Open>, id: u64, kind: EventKind) -> bool {
    let request = open.get_mut(&id).expect("it is open until it finishes");
    let lease = request.lease;
    let report = match kind {
        EventKind::Scheduled { cached_tokens } => {
            request.cached = cached_tokens;
            return cached_tokens.abs_diff(request.predicted) <= BLOCK;
        }
        EventKind::FirstToken => Report::FirstToken { lease },
        EventKind::Token { .. } | EventKind::Resumed { .. } | EventKind::Preempted => return false,
        EventKind::Finished { output_tokens } => {
            let usage = Usage {
                prompt_tokens: 98 * u64::from(BLOCK) + 5,
                completion_tokens: u64::from(output_tokens),
                cached_tokens: Some(u64::from(request.cached)),
            };
            open.remove(&id);
            Report::Finished { lease, usage: Some(usage), output_keys: Vec::new() }
        }
    };
    bench.router.report_at(&report, bench.now);
    false
}

fn described(n: usize, engines: Option<(&[EngineModel], Moment)>) -> Vec<domain::Backend> {
    let mut backends = fleet_of(n);
    for (i, backend) in backends.iter_mut().enumerate() {
        if let Some(cache) = &mut backend.ranks[0].cache {
            cache.usable_blocks = 599;
        }
        if let Some((engines, now)) = engines {
            let engine = &engines[i];
            *backend = with_load(backend.clone(), now, engine.running(), engine.waiting());
        }
    }
    backends
}

/// The shared blocks, the document's, and a question shorter than a block.
fn prompt(set: &ReferenceDocuments, document: u64) -> Prompt {
    let shared = (0..u64::from(set.shared_blocks)).map(|i| BlockKey(i + 1));
    let own = (0..u64::from(set.document_blocks)).map(|i| BlockKey(((document + 1) << 32) + i));
    let keys: Vec<BlockKey> = shared.chain(own).collect();
    let tokens = keys.len() as u32 * BLOCK + 5;
    Prompt {
        tokens,
        text_bytes: tokens * 4,
        keys: vec![KeyList { unit: BlockUnit::Tokens(BLOCK), keys: keys.into() }],
    }
}

#[test]
fn the_reference_documents_reach_their_ceiling_of_hits() {
    for (draw, seed) in [(Draw::Uniform, 1), (Draw::Uniform, 7), (Draw::Skewed, 2)] {
        let set = ReferenceDocuments::default();
        let outcome = run(Policy::Prefix, set, draw, 3, seed);
        assert!(outcome.of_ceiling >= 0.97, "{draw:?} {seed}: {outcome:?}");
        assert!(outcome.foretold >= 0.99, "{draw:?} {seed}: {outcome:?}");
        assert!(outcome.busiest <= 1.5, "{draw:?} {seed}: {outcome:?}");
    }
    let turns = run(Policy::RoundRobin, ReferenceDocuments::default(), Draw::Uniform, 3, 1);
    assert!(turns.hit_rate < 0.5, "{turns:?}");
}

#[test]
fn affinity_holds_at_every_concurrency() {
    for concurrency in [1, 8, 96, 192] {
        let set = ReferenceDocuments { concurrency, requests: 1500, ..Default::default() };
        let outcome = run(Policy::Prefix, set, Draw::Uniform, 3, 3);
        assert!(outcome.of_ceiling >= 0.97, "{concurrency}: {outcome:?}");
        assert!(outcome.foretold >= 0.99, "{concurrency}: {outcome:?}");
    }
}
