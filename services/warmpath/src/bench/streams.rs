//! What becomes of streams when there are many, long or large ones, and beside idle connections
//! and prompts that take long to tokenise.
//!
//! Engine and gateway are processes of their own. Two engines stand behind the gateway: the double,
//! which can also be asked directly, and one in this process that sends bytes or paces events
//! whatever it is asked. The load client reads bare sockets: it must not be what is slow.

mod bed;
mod giant;
mod idle;
mod memory;
mod reader;
mod slow;
mod source;
mod stalls;
mod tokenizing;

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::cli::Output;
use bed::Bed;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Many streams at once, beside the same ones without the gateway
    Stalls,
    /// A long stream to a slow reader
    Slow,
    /// One event of many megabytes
    Giant,
    /// Long prompts beside streams
    Tokenizing,
    /// Connections on which nothing happens
    Idle,
    /// More bodies than there is memory for
    Memory,
}

/// Options of `warmpath bench streams`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(long, value_delimiter = ',', default_value = "stalls,slow,giant,tokenizing,idle,memory")]
    parts: Vec<Part>,
    /// Streams at once in `stalls`
    #[arg(long, default_value_t = 512)]
    streams: usize,
    /// Events of each stream in a second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// Seconds that a round of `stalls` takes
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Rounds of `stalls`, direct and through the gateway in each
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Megabytes of the stream in `slow`
    #[arg(long, default_value_t = 60)]
    megabytes: u64,
    /// What its reader takes in a second
    #[arg(long, default_value_t = 1.0)]
    megabytes_per_second: f64,
    /// Megabytes of the event in `giant`
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=256))]
    event_megabytes: u64,
    /// Tokens of a prompt in `tokenizing`
    #[arg(long, default_value_t = 250_000)]
    prompt_tokens: usize,
    /// Prompts, one after the other
    #[arg(long, default_value_t = 5)]
    prompts: usize,
    /// Streams beside them
    #[arg(long, default_value_t = 200)]
    prompt_streams: usize,
    /// Folder with the tokenizer; without it the built-in one
    #[arg(long, value_name = "DIR")]
    model_folder: Option<PathBuf>,
    /// Connections in `idle`
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Where the result goes as JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<Output>,
}

/// What one part came to.
#[derive(Debug, Serialize)]
struct Outcome<T> {
    holds: bool,
    #[serde(flatten)]
    figures: T,
}

#[derive(Debug, Serialize)]
struct Report {
    line: &'static str,
    holds: bool,
    figures: Map<String, Value>,
}

impl Report {
    fn add<T: Serialize>(&mut self, name: &str, outcome: Outcome<T>) -> anyhow::Result<()> {
        self.holds &= outcome.holds;
        let figures = serde_json::to_value(outcome)?;
        eprintln!("{name}: {figures}");
        self.figures.insert(name.to_owned(), figures);
        Ok(())
    }
}

/// Runs the bench.
///
/// # Errors
/// When a process does not start, or what must hold does not.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let bed = Bed::start(&args).await?;
    let mut report = Report { line: "streams", holds: true, figures: Map::new() };
    for part in &args.parts {
        match part {
            Part::Stalls => report.add("stalls", stalls::measure(&bed, &args).await?)?,
            Part::Slow => report.add("slow", slow::measure(&bed, &args).await?)?,
            Part::Giant => report.add("giant", giant::measure(&bed, &args).await?)?,
            Part::Tokenizing => {
                report.add("tokenizing", tokenizing::measure(&bed, &args).await?)?
            }
            Part::Idle => report.add("idle", idle::measure(&bed, &args).await?)?,
            Part::Memory => report.add("memory", memory::measure(&bed).await?)?,
        }
    }
    if let Some(output) = &args.json {
        output.write_json(&report)?;
    }
    anyhow::ensure!(report.holds, "what must hold does not");
    Ok(())
}
