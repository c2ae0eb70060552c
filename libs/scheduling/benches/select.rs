//! Time of one choice, by number of candidates.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use scheduling::{CandidateView, Config, PrefillFit, select};
use std::hint::black_box;
use std::time::Duration;

fn candidates<'a>(fits: &'a [PrefillFit], rng: &mut SmallRng) -> Vec<CandidateView<'a>> {
    let prompt = 8_192;
    fits.iter()
        .enumerate()
        .map(|(turn, fit)| {
            // One in ten holds part of the prompt, as in a fleet with many prefixes.
            let blocks = if rng.random_bool(0.1) { rng.random_range(1..512) } else { 0 };
            CandidateView {
                matched_blocks: blocks,
                cached_tokens: blocks * 16,
                uncached_tokens: prompt - blocks * 16,
                hot_tokens: 0,
                queue_delay_seconds: rng.random_range(0.0..0.5),
                network_seconds: 0.000_5,
                evicted_ask_tokens: rng.random_range(0.0..8_192.0),
                booked_seconds: rng.random_range(0.0..0.5),
                arrivals_per_second: 0.0,
                in_flight: rng.random_range(0..64),
                running: rng.random_range(0..64),
                last_chosen: turn as u64,
                saturated: false,
                fit: fit.as_ref(),
            }
        })
        .collect()
}

fn choice(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("select");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let config = Config::default();
    for count in [10, 100, 1_000] {
        let fits = vec![PrefillFit::default(); count];
        let mut rng = SmallRng::seed_from_u64(1);
        let scattered = candidates(&fits, &mut rng);
        let mut idle = scattered.clone();
        for view in &mut idle {
            *view = CandidateView {
                matched_blocks: 0,
                cached_tokens: 0,
                uncached_tokens: 8_192,
                queue_delay_seconds: 0.0,
                evicted_ask_tokens: 0.0,
                booked_seconds: 0.0,
                ..*view
            };
        }
        group.bench_with_input(BenchmarkId::new("scattered", count), &scattered, |b, views| {
            b.iter(|| select(&config, black_box(views)));
        });
        group.bench_with_input(BenchmarkId::new("all_equal", count), &idle, |b, views| {
            b.iter(|| select(&config, black_box(views)));
        });
    }
    group.finish();
}

criterion_group!(benches, choice);
criterion_main!(benches);
