//! A fixed piece of work, as long as what is measured: what of a tail is the machine's.
//!
//! The timer's ticks, another guest on the same core and a cache that was lost to either make any
//! work slower now and then. A work that is always the same shows how much that is on the same core,
//! a second later.

use std::hint::black_box;

use super::clock::timed;
use crate::stats::{quantile, sorted};

/// Words that are read again and again: a quarter of a mebibyte, about what a decision among
/// 1,000 ranks goes over.
const HOT_WORDS: usize = 32 << 10;

/// Words that one pass reads of them.
const PASS_WORDS: usize = 2 << 10;

/// Words of which each pass reads one somewhere: 64 MiB, more than any cache of a core.
const WIDE_WORDS: usize = 8 << 20;

/// Works that the length is set by.
const TRIALS: usize = 200;

/// The work.
pub(super) struct Control {
    hot: Vec<u64>,
    wide: Vec<u64>,
    state: u64,
    passes: usize,
}

impl Control {
    /// A work whose median time is about so many microseconds.
    pub(super) fn of(micros: f64) -> Self {
        let passes = HOT_WORDS / PASS_WORDS;
        let mut control =
            Self { hot: vec![1; HOT_WORDS], wide: vec![2; WIDE_WORDS], state: 1, passes };
        // The first ones find nothing in the caches.
        (0..TRIALS).for_each(|_| control.work());
        let trials = sorted((0..TRIALS).map(|_| control.micros()).collect());
        let median = quantile(&trials, 0.5).unwrap_or_default().max(1.0);
        control.passes = ((passes as f64 * micros / median).round() as usize).max(1);
        control
    }

    /// Does it once; returns its CPU time.
    pub(super) fn micros(&mut self) -> f64 {
        let ((), spent) = timed(|| self.work());
        spent.as_secs_f64() * 1e6
    }

    fn work(&mut self) {
        let mut sum = 0_u64;
        for pass in 0..self.passes {
            let from = pass * PASS_WORDS % HOT_WORDS;
            // Each step needs the one before: nothing for the compiler to do several of at once.
            for word in &self.hot[from..from + PASS_WORDS] {
                sum = sum.wrapping_mul(3).wrapping_add(*word);
            }
            // The multiplier is Knuth's for MMIX.
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sum = sum.wrapping_add(self.wide[(self.state >> 33) as usize % WIDE_WORDS]);
        }
        black_box(sum);
    }
}
