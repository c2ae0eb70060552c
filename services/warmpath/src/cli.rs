//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{announce, bench, demo, double, operator, serve, sim_cli};

/// KV-cache-aware, OpenAI-compatible gateway for clusters of LLM engines.
///
/// Warmpath sends every request to the engine that already holds its prefix in KV cache, unless
/// waiting there costs more than computing it elsewhere.
#[derive(Debug, Parser)]
#[command(name = "warmpath", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway: edge, router and telemetry in one process
    Serve(launch::Args),
    /// Compare round robin with prefix routing on three engine doubles, without a GPU
    Demo(demo::Args),
    /// Run an engine double: an OpenAI-compatible server with vLLM's cache and no model
    Engine(Box<double::Args>),
    /// Compare policies on workloads and traces under virtual time
    Sim(Box<sim_cli::Args>),
    /// Engines: list, add, drain, maintenance, ready, remove
    Backend {
        #[command(subcommand)]
        command: operator::backend::Command,
    },
    /// Tenants and their limits
    Tenant {
        #[command(subcommand)]
        command: operator::tenant::Command,
    },
    /// API keys of tenants
    Key {
        #[command(subcommand)]
        command: operator::key::Command,
    },
    /// Tokens with which engines announce themselves
    JoinToken {
        #[command(subcommand)]
        command: operator::join_token::Command,
    },
    /// Announce an engine over the bus, beside it, with a join token
    Announce(Box<announce::Args>),
    /// Show why a request went where it went
    Explain(operator::explain::Args),
    /// Show the control plane at a glance
    Status(operator::status::Args),
    /// Show who changed what, and when
    Events(operator::events::Args),
    /// Measure Warmpath on this machine
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Latency and CPU that the gateway adds, beside a bare proxy
    Overhead(bench::overhead::Args),
    /// Speed, memory and worst cases of the KV index, and the time of a decision
    Index(bench::index::Args),
    /// The time of a routing decision over a session between edge and router
    Session(bench::session::Args),
    /// Many, long and large streams, beside idle connections and long prompts
    Streams(Box<bench::streams::Args>),
    /// CPU that telemetry takes for a thousand engines, and the time of a change to reach everybody
    Scrape(bench::scrape::Args),
    /// The engines of that bench
    #[command(hide = true)]
    ScrapeEngines(bench::scrape::EnginesArgs),
    /// The telemetry of that bench
    #[command(hide = true)]
    ScrapeTelemetry(bench::scrape::TelemetryArgs),
    /// The bare proxy of the comparison of overheads
    #[command(hide = true)]
    BareProxy(bench::bare_proxy::Args),
}

impl Cli {
    /// Runs the command to its end.
    pub fn run(self) -> ExitCode {
        let outcome = match self.command {
            Command::Serve(args) => return launch::run::<serve::Serve>(&args),
            Command::Backend { command } => return operator::backend::run(command),
            Command::Tenant { command } => return operator::tenant::run(command),
            Command::Key { command } => return operator::key::run(command),
            Command::JoinToken { command } => return operator::join_token::run(command),
            Command::Announce(args) => return announce::run(*args),
            Command::Explain(args) => return operator::explain::run(args),
            Command::Status(args) => return operator::status::run(args),
            Command::Events(args) => return operator::events::run(args),
            Command::Demo(args) => block_on(demo::run(args)),
            Command::Engine(args) => double::run(*args),
            Command::Sim(args) => sim_cli::run(*args),
            Command::Bench { command: BenchCommand::Overhead(args) } => {
                block_on(bench::overhead::run(args))
            }
            Command::Bench { command: BenchCommand::Index(args) } => bench::index::run(&args),
            Command::Bench { command: BenchCommand::Session(args) } => bench::session::run(&args),
            Command::Bench { command: BenchCommand::Streams(args) } => {
                block_on(bench::streams::run(*args))
            }
            Command::Bench { command: BenchCommand::Scrape(args) } => {
                block_on(bench::scrape::run(args))
            }
            Command::Bench { command: BenchCommand::ScrapeEngines(args) } => {
                block_on(bench::scrape::run_engines(args))
            }
            Command::Bench { command: BenchCommand::ScrapeTelemetry(args) } => {
                block_on(bench::scrape::run_telemetry(args))
            }
            Command::Bench { command: BenchCommand::BareProxy(args) } => {
                block_on(bench::bare_proxy::run(args))
            }
        };
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("warmpath: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

fn block_on(future: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(future)
}

/// Where a result goes: a file, or standard output for `-`.
#[derive(Clone, Debug)]
pub struct Output(PathBuf);

impl std::str::FromStr for Output {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}

impl Output {
    /// Writes `value` as indented JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_json(&self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        use anyhow::Context as _;
        let text = serde_json::to_string_pretty(value)? + "\n";
        if self.0.as_os_str() == "-" {
            print!("{text}");
            return Ok(());
        }
        std::fs::write(&self.0, text).with_context(|| format!("cannot write {}", self.0.display()))
    }
}
