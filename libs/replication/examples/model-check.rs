//! The simulation of `tests/simulation.rs`, for as many seeds as one likes.
//!
//! - `--long`: the seeds 0 to 999
//! - `--seeds FROM TO`: these
//! - `--seed N`: one, with what happens in it

#[path = "../tests/simulation/checks.rs"]
mod checks;
#[path = "../tests/simulation/edge.rs"]
mod edge;
#[path = "../tests/simulation/messages.rs"]
mod messages;
#[path = "../tests/simulation/router.rs"]
mod router;
#[path = "../tests/simulation/runner.rs"]
mod runner;
#[path = "../tests/simulation/state.rs"]
mod state;
#[path = "../tests/simulation/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let seeds = match (arguments.first().map(String::as_str), number(1), number(2)) {
        (Some("--long"), None, None) => 0..1000,
        (Some("--seeds"), Some(from), Some(to)) => from..to,
        (Some("--seed"), Some(seed), None) => seed..seed + 1,
        _ => {
            eprintln!("usage: model-check --long | --seeds FROM TO | --seed N");
            return ExitCode::from(64);
        }
    };
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut failed = Vec::new();
    for seed in seeds.clone() {
        match runner::run(seed) {
            Ok(checks) => {
                for (what, count) in checks.counts {
                    *counts.entry(what).or_default() += count;
                }
            }
            Err(trace) => {
                eprintln!("{trace}");
                failed.push(seed);
            }
        }
    }
    for (what, count) in counts {
        println!("{count:>10}  {what}");
    }
    println!("{} seeds, failed: {failed:?}", seeds.count());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
