//! The KV index on a recorded trace: requests per second, memory, worst cases, and the time that
//! the router takes for a whole decision.
//!
//! Time is the CPU time of the thread, so that what else runs on the machine counts little.

mod clock;
mod control;
mod decision;
mod loads;
mod worst;

use std::path::PathBuf;

use anyhow::Context as _;
use serde::Serialize;
use sim::index_load::IndexLoad;

use crate::cli::Output;
use crate::sim_cli::open_lines;

/// What is wanted where it is not there.
const WANTED: &str = "the bench replays a trace, such as mooncake_conversation_trace.jsonl of Mooncake's FAST'25 \
                      release (Apache-2.0)";

/// Options of `warmpath bench index`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace: one JSON object with `hash_ids` a line, plain or gzip. The published figures are of
    /// the conversation trace of Mooncake's FAST'25 release (Apache-2.0), which is public and not
    /// part of Warmpath
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// How often everything is measured; the middle one is reported, of worst cases the best, of
    /// decisions all of them and the middle of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Where the result goes as JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<Output>,
}

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Match, book and release on the trace, and memory
    Loads,
    /// The longest single call where an index could take long
    Worst,
    /// Whole decisions of the router with 1,000 ranks and 10 million blocks
    Decision,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    loads: Vec<loads::Figures>,
    worst: Vec<worst::Figures>,
    decision: Option<decision::Figures>,
}

/// Runs the bench.
///
/// # Errors
/// When the trace cannot be read or the result cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let load = open_lines(&args.trace).and_then(|lines| Ok(IndexLoad::read(lines)?));
    let load = load.context(WANTED)?;
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut report = Report::default();
    clock::touch_memory();
    if wanted(Part::Loads) {
        report.loads = loads::run(&load, args.rounds);
    }
    if wanted(Part::Worst) {
        report.worst = worst::run(args.rounds);
    }
    if wanted(Part::Decision) {
        report.decision = Some(decision::run(&load, args.rounds)?);
    }
    if let Some(output) = &args.json {
        output.write_json(&report)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_trace_it_says_which_one_is_meant() {
        let trace = PathBuf::from("/nowhere/trace.jsonl");
        let args = Args { trace, rounds: 1, only: Vec::new(), json: None };
        let error = format!("{:#}", run(&args).unwrap_err());
        assert!(error.contains("Mooncake") && error.contains("/nowhere/trace.jsonl"), "{error}");
    }
}
