use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::linear::COUNT;
use super::*;

/// An engine ten times slower than the prior, in none of the coefficients by the same factor.
const SLOW: Coefficients = Coefficients {
    fixed_seconds: 20e-3,
    per_token_seconds: 4e-4,
    per_pair_seconds: 2e-8,
    ..Coefficients::ZERO
};
/// One faster than the prior, without any cost of attention.
const FAST: Coefficients =
    Coefficients { fixed_seconds: 2e-3, per_token_seconds: 1.5e-5, ..Coefficients::ZERO };
/// The engine double's shape: a floor and a rate.
const LINEAR: Coefficients =
    Coefficients { fixed_seconds: 1e-3, per_token_seconds: 5e-5, ..Coefficients::ZERO };

/// Which prompts an engine sees.
#[derive(Clone, Copy, Debug)]
enum Mix {
    /// 10 to 300 tokens, nothing cached.
    Short,
    /// 10 to 30,000 tokens, evenly over the orders of magnitude; half of them with up to 60,000
    /// tokens cached.
    Wide,
}

impl Mix {
    fn prompt(self, rng: &mut SmallRng) -> (u32, u32) {
        match self {
            Mix::Short => (rng.random_range(10..300), 0),
            Mix::Wide => {
                let uncached = 10.0 * 3_000_f64.powf(rng.random::<f64>());
                let cached = if rng.random() { rng.random_range(0..60_000) } else { 0 };
                (uncached as u32, cached)
            }
        }
    }
}

/// A factor whose logarithm has a standard deviation of `spread`: the sum of twelve uniform
/// numbers is near enough to a bell.
fn noise(rng: &mut SmallRng, spread: f64) -> f64 {
    let bell = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
    (spread * bell).exp()
}

struct Trial {
    rng: SmallRng,
    fit: PrefillFit,
}

impl Trial {
    fn new(seed: u64) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed), fit: PrefillFit::default() }
    }

    fn feed(&mut self, truth: Coefficients, mix: Mix, samples: usize, spread: f64) {
        for _ in 0..samples {
            let (uncached, cached) = mix.prompt(&mut self.rng);
            let seconds = truth.predict_seconds(uncached, cached) * noise(&mut self.rng, spread);
            self.fit.observe(&Shape::prefill(uncached, cached), seconds);
        }
    }

    /// Relative errors against the truth, sorted.
    fn errors(&mut self, truth: Coefficients, mix: Mix) -> Vec<f64> {
        let mut errors: Vec<f64> = (0..400)
            .map(|_| {
                let (uncached, cached) = mix.prompt(&mut self.rng);
                let real = truth.predict_seconds(uncached, cached);
                (self.fit.predict_seconds(uncached, cached) - real).abs() / real
            })
            .collect();
        errors.sort_by(f64::total_cmp);
        errors
    }

    fn median_error(&mut self, truth: Coefficients, mix: Mix) -> f64 {
        self.errors(truth, mix)[200]
    }
}

#[test]
fn five_hundred_noisy_samples_are_learned_to_fifteen_percent() {
    for truth in [SLOW, FAST, LINEAR, Coefficients::DEFAULT] {
        for mix in [Mix::Wide, Mix::Short] {
            for seed in 0..20 {
                let mut trial = Trial::new(seed);
                trial.feed(truth, mix, 500, 0.3);
                let errors = trial.errors(truth, mix);
                assert!(errors[200] <= 0.15, "{truth:?} {mix:?} {seed}: {}", errors[200]);
                assert!(errors[380] <= 0.35, "{truth:?} {mix:?} {seed}: p95 {}", errors[380]);
            }
        }
    }
}

#[test]
fn ten_samples_already_give_the_speed() {
    for truth in [SLOW, FAST] {
        for seed in 0..20 {
            let mut trial = Trial::new(seed);
            trial.feed(truth, Mix::Wide, 10, 0.1);
            let error = trial.median_error(truth, Mix::Wide);
            assert!(error <= 0.35, "{truth:?} {seed}: {error}");
        }
    }
}

#[test]
fn one_sample_scales_the_whole_curve() {
    let mut fit = PrefillFit::default();
    let before = fit.predict_seconds(10_000, 0);
    fit.observe(&Shape::prefill(1_000, 0), 3.0 * fit.predict_seconds(1_000, 0));
    let factor = fit.predict_seconds(10_000, 0) / before;
    assert!((2.0..4.0).contains(&factor), "{factor}");
}

#[test]
fn outliers_on_either_side_move_little() {
    for truth in [SLOW, FAST, LINEAR] {
        for seed in 0..20 {
            let mut trial = Trial::new(seed);
            for sample in 0..500 {
                let (uncached, cached) = Mix::Wide.prompt(&mut trial.rng);
                let factor = match sample % 20 {
                    7 => 20.0,
                    13 => 0.02,
                    _ => noise(&mut trial.rng, 0.15),
                };
                let seconds = truth.predict_seconds(uncached, cached) * factor;
                trial.fit.observe(&Shape::prefill(uncached, cached), seconds);
            }
            let error = trial.median_error(truth, Mix::Wide);
            assert!(error <= 0.15, "{truth:?} {seed}: {error}");
        }
    }
}

#[test]
fn a_first_sample_that_stalled_is_soon_forgotten() {
    for seed in 0..20 {
        let mut trial = Trial::new(seed);
        trial.fit.observe(&Shape::prefill(500, 0), 30.0);
        trial.feed(LINEAR, Mix::Wide, 12, 0.1);
        let error = trial.median_error(LINEAR, Mix::Wide);
        assert!(error <= 0.3, "{seed}: {error}");
    }
}

#[test]
fn a_change_of_speed_is_followed_both_ways() {
    let scaled = |factor: f64| Coefficients {
        fixed_seconds: SLOW.fixed_seconds * factor,
        per_token_seconds: SLOW.per_token_seconds * factor,
        per_pair_seconds: SLOW.per_pair_seconds * factor,
        ..Coefficients::ZERO
    };
    for factor in [0.25, 0.6, 1.8, 5.0] {
        for seed in 0..20 {
            let mut trial = Trial::new(seed);
            trial.feed(SLOW, Mix::Wide, 1_000, 0.15);
            trial.feed(scaled(factor), Mix::Wide, 40, 0.15);
            let error = trial.median_error(scaled(factor), Mix::Wide);
            assert!(error <= 0.2, "{factor} {seed}: {error}");
        }
    }
}

#[test]
fn hours_of_short_prompts_do_not_wash_out_the_long_ones() {
    for seed in 0..4 {
        let mut trial = Trial::new(seed);
        trial.feed(SLOW, Mix::Wide, 300, 0.15);
        trial.feed(SLOW, Mix::Short, 20_000, 0.15);
        let real = SLOW.predict_seconds(20_000, 20_000);
        let error = (trial.fit.predict_seconds(20_000, 20_000) - real).abs() / real;
        assert!(error <= 0.25, "{seed}: {error}");
    }
}

#[test]
fn one_prompt_repeated_does_not_blow_up_the_covariance() {
    let mut fit = PrefillFit::default();
    for _ in 0..20_000 {
        fit.observe(&Shape::prefill(700, 300), 0.050);
    }
    let metric = fit.information.plus(INFORMATION_FLOOR, &prior_information());
    let bound = (OWN_VARIANCE + COUNT as f64 * COMMON_VARIANCE) / INFORMATION_FLOOR;
    for coefficient in 0..COUNT {
        let axis = std::array::from_fn(|i| if i == coefficient { 1.0 } else { 0.0 });
        let column = metric.solve([true; COUNT], &axis).expect("positive definite");
        let variance = dot(&column, &axis);
        assert!(variance > 0.0 && variance <= bound, "{variance}");
    }
    assert!((fit.predict_seconds(700, 300) - 0.050).abs() < 0.001);
    // What was never seen stays near what the prior makes of it, in shape.
    let factor = fit.predict_seconds(20_000, 0) / fit.predict_seconds(700, 300);
    assert!((10.0..50.0).contains(&factor), "{factor}");
}

#[test]
fn a_new_rank_starts_from_its_peer() {
    let mut trial = Trial::new(1);
    trial.feed(SLOW, Mix::Wide, 300, 0.1);
    let fresh = PrefillFit::new(trial.fit.coefficients());
    assert_eq!(fresh.samples(), 0);
    assert_eq!(fresh.coefficients(), trial.fit.coefficients());
}

#[test]
fn a_coefficient_that_was_zero_can_grow_again() {
    for seed in 0..20 {
        let none = Coefficients { per_pair_seconds: 0.0, ..SLOW };
        let mut trial = Trial { fit: PrefillFit::new(none), ..Trial::new(seed) };
        trial.feed(SLOW, Mix::Wide, 300, 0.1);
        let error = trial.median_error(SLOW, Mix::Wide);
        assert!(error <= 0.15, "{seed}: {error}");
        assert!(trial.fit.coefficients().per_pair_seconds > 0.0);
    }
}

#[test]
fn a_prior_that_makes_no_sense_is_the_default() {
    let odd = Coefficients {
        fixed_seconds: f64::NAN,
        per_token_seconds: -1.0,
        per_pair_seconds: f64::INFINITY,
        latency_seconds: f64::NAN,
        decode_step_seconds: -1.0,
        decode_running_seconds: 1e9,
    };
    assert_eq!(PrefillFit::new(odd).coefficients(), Coefficients::DEFAULT);
    let mut fit = PrefillFit::new(Coefficients::ZERO);
    assert_eq!(fit.predict_seconds(1_000, 0), 0.0);
    for _ in 0..50 {
        fit.observe(&Shape::prefill(1_000, 0), 0.1);
    }
    assert!((fit.predict_seconds(1_000, 0) - 0.1).abs() < 0.02);
}

#[test]
fn times_that_make_no_sense_are_ignored() {
    let mut fit = PrefillFit::default();
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3_601.0] {
        fit.observe(&Shape::prefill(100, 0), seconds);
    }
    assert_eq!(fit.samples(), 0);
    assert_eq!(fit.coefficients(), Coefficients::DEFAULT);
}

fn any_seconds() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => (-14.0..9.0_f64).prop_map(f64::exp),
        1 => any::<f64>(),
        1 => Just(f64::MIN_POSITIVE),
    ]
}

fn any_tokens() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..200_000_u32, 1 => any::<u32>(), 1 => Just(0)]
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let count = || prop_oneof![4 => 0.0..40.0_f64, 1 => any::<f64>(), 2 => Just(0.0)];
    (any_tokens(), any_tokens(), count(), count(), count()).prop_map(
        |(uncached, cached, latencies, steps, decode_running)| Shape {
            latencies,
            steps,
            decode_steps: steps,
            decode_running,
            ..Shape::prefill(uncached, cached)
        },
    )
}

proptest! {
    #[test]
    fn whatever_is_observed_predictions_stay_finite_and_grow_with_the_prompt(
        prior in prop::array::uniform6(any_seconds()),
        samples in prop::collection::vec((any_shape(), any_seconds()), 0..200),
        probe in (any_tokens(), any_tokens(), any_tokens()),
        running in (0..1_000_u32, 0..1_000_u32),
    ) {
        let mut fit = PrefillFit::new(Coefficients::from_vector(prior));
        for (shape, seconds) in samples {
            fit.observe(&shape, seconds);
            for value in fit.coefficients().to_vector() {
                prop_assert!(value.is_finite() && value >= 0.0, "{:?}", fit);
            }
        }
        let (uncached, cached, more) = probe;
        let base = fit.predict_seconds(uncached, cached);
        prop_assert!(base.is_finite() && base >= 0.0);
        prop_assert!(fit.predict_seconds(uncached.saturating_add(more), cached) >= base);
        prop_assert!(fit.predict_seconds(uncached, cached.saturating_add(more)) >= base);
        let coefficients = fit.coefficients();
        let busy = |n| coefficients.prefill_seconds(uncached, cached, n);
        prop_assert!(busy(running.0).is_finite() && busy(running.0) >= base);
        prop_assert!(busy(running.0 + running.1) >= busy(running.0));
    }
}

/// Requests that come alone or behind others, to engines that decode or do not.
fn any_mixed_shape(rng: &mut SmallRng) -> Shape {
    let (uncached, cached) = Mix::Wide.prompt(rng);
    let running = if rng.random_bool(0.3) { 0 } else { rng.random_range(1..60) };
    let alone = rng.random_bool(0.5);
    let steps = if alone { 1.0 + HALF_STEP } else { 1.0 };
    Shape {
        latencies: f64::from(u8::from(alone)),
        decode_steps: if running > 0 { steps } else { 0.0 },
        decode_running: steps * f64::from(running),
        ..Shape::prefill(uncached, cached)
    }
}

#[test]
fn every_coefficient_is_recovered_when_samples_tell_them_apart() {
    let truth = Coefficients {
        latency_seconds: 60e-3,
        fixed_seconds: 4e-3,
        per_token_seconds: 3.5e-5,
        per_pair_seconds: 2e-9,
        decode_step_seconds: 8e-3,
        decode_running_seconds: 3e-4,
    };
    for seed in 0..10 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut fit = PrefillFit::default();
        for _ in 0..3_000 {
            let shape = any_mixed_shape(&mut rng);
            fit.observe(&shape, truth.seconds(&shape) * noise(&mut rng, 0.05));
        }
        let found = fit.coefficients().to_vector();
        for (found, real) in found.into_iter().zip(truth.to_vector()) {
            assert!((found / real - 1.0).abs() < 0.25, "{seed}: {:?}", fit.coefficients());
        }
    }
}

#[test]
fn the_median_of_coefficients_is_not_pulled_by_one_odd_machine() {
    let of = |scale: f64| Coefficients {
        fixed_seconds: 1e-3 * scale,
        per_token_seconds: 1e-5 * scale,
        per_pair_seconds: 1e-9 * scale,
        latency_seconds: 1e-2 * scale,
        decode_step_seconds: 1e-2 * scale,
        decode_running_seconds: 1e-4 * scale,
    };
    assert_eq!(Coefficients::median(&[of(1.0), of(1000.0), of(1.1)]), Some(of(1.1)));
    assert_eq!(Coefficients::median(&[]), None);
}
