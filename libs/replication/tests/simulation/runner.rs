//! Runs a seed; one that fails tells how, and how to see it again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::checks::Checks;
use crate::world::{Trace, World};

/// Lines of the trace that a failure shows.
const SHOWN: usize = 60;

/// Runs one seed to its end.
///
/// # Errors
/// The last part of the trace, if something did not hold. What did not is on standard error.
pub(crate) fn run(seed: u64) -> Result<Checks, String> {
    let trace = Trace::default();
    let world = AssertUnwindSafe(World::new(seed, trace.clone()));
    catch_unwind(|| { world }.0.run()).map_err(|_| {
        let lines = trace.borrow();
        let last = &lines[lines.len().saturating_sub(SHOWN)..];
        format!(
            "seed {seed} fails after:\n{}\nsee it again: cargo run -p replication \
             --example model-check -- --seed {seed}",
            last.join("\n"),
        )
    })
}
