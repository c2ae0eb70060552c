//! The flags of `warmpath sim`.

mod values;
mod workloads;

use std::num::NonZero;
use std::path::PathBuf;

use values::number;
pub(super) use values::{Policies, STATIC_PARTITION, Switch, Workload};
pub(super) use workloads::WorkloadArgs;

/// The arguments. Flags that take a list run every combination.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A built-in workload
    #[arg(long, value_enum, required_unless_present = "trace")]
    pub(super) workload: Option<Workload>,
    /// Recorded traffic in the Mooncake or Bailian schema, plain or gzip; with `--workload
    /// mixed-gpus`, the traffic of that workload
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Ways to route, or `all`
    #[arg(long, value_delimiter = ',', value_name = "NAME", default_value = "prefix,round-robin")]
    pub(super) policy: Vec<Policies>,
    /// Runs of each combination, with seeds one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: u64,
    /// The first seed [default: 1; 2 for seed-skewed, as published]
    #[arg(long)]
    pub(super) first_seed: Option<u64>,
    /// Requests, or at most so many of the workload's own [default: 3000 for seed-uniform and
    /// seed-skewed, 750 for seed-a40, else all]
    #[arg(long, value_name = "N")]
    pub(super) requests: Option<usize>,
    /// Tokens of a block [default: 16; 512 for a Mooncake trace]
    #[arg(long, value_name = "N")]
    pub(super) block_tokens: Option<NonZero<u32>>,

    #[command(flatten)]
    pub(super) engines: EngineArgs,
    #[command(flatten)]
    pub(super) gateway: GatewayArgs,
    #[command(flatten)]
    pub(super) parameters: WorkloadArgs,
    #[command(flatten)]
    pub(super) figures: FigureArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// What engines are like.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Engines")]
pub(super) struct EngineArgs {
    /// Engines
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) nodes: Option<u16>,
    /// KV blocks of each engine
    #[arg(long, value_delimiter = ',')]
    pub(super) blocks: Vec<u32>,
    /// Relative sizes of the engines' caches, in turn; `--blocks` is their mean
    #[arg(long, value_delimiter = ',', value_parser = number)]
    pub(super) sizes: Vec<f64>,
    /// Relative speeds of the engines, in turn; rates and times are those of the mean
    #[arg(long, value_delimiter = ',', value_parser = number)]
    pub(super) speeds: Vec<f64>,
    /// Prefill of an engine, in tokens a second [default: by the workload; by `--rho` for traces]
    #[arg(long, value_name = "RATE", value_parser = number)]
    pub(super) prefill_rate: Option<f64>,
    /// Tokens that one step of an engine may compute [default: 8192]
    #[arg(long, value_name = "N")]
    pub(super) token_budget: Option<u32>,
    /// Requests that an engine runs at once [default: 256]
    #[arg(long, value_name = "N")]
    pub(super) max_running: Option<u32>,
    /// Whether answers take time [default: on]
    #[arg(long, value_name = "on|off")]
    pub(super) decode: Option<Switch>,
    /// Inter-token latency of a lone request [default: by the workload]
    #[arg(long, value_name = "MS", value_parser = number)]
    pub(super) itl_base_ms: Option<f64>,
    /// What each running request adds to it [default: by the workload]
    #[arg(long, value_name = "MS", value_parser = number)]
    pub(super) itl_per_running_ms: Option<f64>,
    /// Time to first token beside queue and prefill [default: 60 for seed-a40, else 0]
    #[arg(long, value_name = "MS", value_parser = number)]
    pub(super) front_ms: Option<f64>,
}

/// What the gateway believes and weighs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Gateway")]
pub(super) struct GatewayArgs {
    /// Capacity the gateway starts to believe in, over the true one
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = number)]
    pub(super) believed_capacity: f64,
    /// Show the gateway what the caches really hold
    #[arg(long)]
    pub(super) shown_content: bool,
    /// Tell the gateway how fast each engine prefills
    #[arg(long)]
    pub(super) told_speeds: bool,
    /// Weight of the eviction cost in the choice of `prefix`
    #[arg(long, value_name = "WEIGHT", value_parser = number)]
    pub(super) eviction_weight: Option<f64>,
    /// Whether `prefix` gives a hot prefix further holders [default: on]
    #[arg(long, value_delimiter = ',', value_name = "on|off")]
    pub(super) hot_prefixes: Vec<Switch>,
}

/// What the figures are of.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Figures")]
pub(super) struct FigureArgs {
    /// Leave the first requests out of the figures [default: 150 for seed-a40, those before the
    /// recovery for outage, else none]
    #[arg(long, value_name = "N")]
    pub(super) skip_requests: Option<usize>,
    /// Leave what is sent before out of latencies [default: the ladder's first step for b2b-saas
    /// and hot-prefix, else 0]
    #[arg(long, value_name = "SECONDS", value_parser = number)]
    pub(super) latency_from_seconds: Option<f64>,
    /// A good request's first token comes within this … [default: 2000]
    #[arg(long, value_name = "MS", value_parser = number)]
    pub(super) slo_ttft_ms: Option<f64>,
    /// … and the others follow at this pace [default: 100]
    #[arg(long, value_name = "MS", value_parser = number)]
    pub(super) slo_tpot_ms: Option<f64>,
}

/// What comes out.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Write the rows as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<String>,
    /// Draw the time to first token against the load, a line for each policy; needs several values of
    /// one, such as --rho 0.5,0.8
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Runs at the same time [default: one per core]
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<usize>,
    /// No progress on standard error
    #[arg(long)]
    pub(super) quiet: bool,
}
