//! Prints the figures of the longer runs as JSON. `integration-tests/show` builds and starts it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use integration_tests::scenarios::{admin, bytes, hangups, kill};
use serde_json::{Value, json};

/// Runs one scenario and prints what it came to.
#[derive(Debug, Parser)]
struct Args {
    /// What to show
    line: Line,
    /// Write the figures to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Clients that hang up
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// The program that asks the admin API
    #[arg(long, value_name = "FILE", default_value = "schemathesis")]
    schemathesis: PathBuf,
    /// Cases that it makes up for each operation
    #[arg(long, default_value_t = 100)]
    examples: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Line {
    /// 10,000 clients that go away in every phase
    Hangups,
    /// Two engines under load, one killed
    Kill,
    /// Recorded streams cut at every place
    Bytes,
    /// The admin API against its document
    Admin,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (holds, figures) = runtime.block_on(run(&args))?;
    let report = json!({"line": format!("{:?}", args.line).to_lowercase(), "holds": holds, "figures": figures});
    let text = serde_json::to_string_pretty(&report)? + "\n";
    print!("{text}");
    if let Some(path) = &args.json {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether what must hold does, and the figures.
async fn run(args: &Args) -> anyhow::Result<(bool, Value)> {
    Ok(match args.line {
        Line::Hangups => {
            let report = hangups::run(args.count).await;
            let holds =
                report.held == Default::default() && report.answered_afterwards == report.permits;
            (holds, serde_json::to_value(report)?)
        }
        Line::Kill => {
            let report = kill::run(400, 400).await;
            let holds = report.failed == 0
                && report.interrupted > 0
                && report.came_back
                && report.matched_blocks_after_restart == 0;
            (holds, serde_json::to_value(report)?)
        }
        Line::Admin => {
            let report = admin::run(&args.schemathesis, args.examples).await?;
            let holds = report.conforms && report.server_errors == 0 && report.successes > 0;
            (holds, serde_json::to_value(report)?)
        }
        Line::Bytes => {
            let report = bytes::run(bytes::Cuts::EveryPlace).await;
            (report.different == 0, serde_json::to_value(report)?)
        }
    })
}
