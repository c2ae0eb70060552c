//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{bench, demo, double, key, serve, sim_cli};

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
    /// Make API keys
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Measure Warmpath on this machine
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Print a new key, and the config lines that let it in
    New(key::NewArgs),
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Latency and CPU that the gateway adds, beside a bare proxy
    Overhead(bench::overhead::Args),
    /// Speed, memory and worst cases of the KV index, and the time of a decision
    Index(bench::index::Args),
    /// The time of a routing decision over a session between edge and router
    Session(bench::session::Args),
    /// The bare proxy of that comparison
    #[command(hide = true)]
    BareProxy(bench::bare_proxy::Args),
}

impl Cli {
    /// Runs the command to its end.
    pub fn run(self) -> ExitCode {
        let outcome = match self.command {
            Command::Serve(args) => return launch::run::<serve::Serve>(&args),
            Command::Demo(args) => block_on(demo::run(args)),
            Command::Engine(args) => double::run(*args),
            Command::Sim(args) => sim_cli::run(*args),
            Command::Key { command: KeyCommand::New(args) } => key::new(&args),
            Command::Bench { command: BenchCommand::Overhead(args) } => {
                block_on(bench::overhead::run(args))
            }
            Command::Bench { command: BenchCommand::Index(args) } => bench::index::run(&args),
            Command::Bench { command: BenchCommand::Session(args) } => bench::session::run(&args),
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
