//! The flags of `warmpath sim`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use sim::gateway::policy::RoutePolicy;
use sim::lru::Evict;
use sim::trace::{Mode, Slice};

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

    /// Engines
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) nodes: Option<u16>,
    /// KV blocks of each engine
    #[arg(long, value_delimiter = ',')]
    pub(super) blocks: Vec<u32>,
    /// Requests in flight at once (seed-uniform, seed-skewed)
    #[arg(long, value_delimiter = ',')]
    pub(super) window: Vec<usize>,
    /// Callers that each wait for their answer (seed-a40)
    #[arg(long, value_delimiter = ',')]
    pub(super) concurrency: Vec<usize>,
    /// Different documents (seed-uniform, seed-skewed, seed-a40, outage)
    #[arg(long, value_delimiter = ',')]
    pub(super) documents: Vec<usize>,
    /// Prompt tokens offered over what all engines could prefill if nothing were cached (traces)
    #[arg(long, value_delimiter = ',')]
    pub(super) rho: Vec<f64>,
    /// At most so many requests
    #[arg(long)]
    pub(super) requests: Option<usize>,
    /// Leave the first requests out of the figures [default: 150 for seed-a40, else none]
    #[arg(long)]
    pub(super) skip_requests: Option<usize>,
    /// Which end of a prompt a plain cache loses first (seed-uniform, seed-skewed)
    #[arg(long)]
    pub(super) evict: Option<EvictArg>,
    /// Which part of the trace
    #[arg(long)]
    pub(super) slice: Option<SliceArg>,
    /// What fixes the time of a later turn: the recorded time, or the end of the turn before
    #[arg(long)]
    pub(super) mode: Option<ModeArg>,

    /// Whether answers take time
    #[arg(long, value_name = "on|off")]
    pub(super) decode: Option<Switch>,
    /// Capacity the gateway starts to believe in, over the true one
    #[arg(long, default_value_t = 1.0)]
    pub(super) believed_capacity: f64,
    /// Show the gateway what the caches really hold
    #[arg(long)]
    pub(super) shown_content: bool,
    /// Tell the gateway how fast each engine prefills
    #[arg(long)]
    pub(super) told_speeds: bool,
    /// Relative speeds of the engines, in turn
    #[arg(long, value_delimiter = ',')]
    pub(super) speeds: Vec<f64>,

    /// Prefill of an engine, in tokens a second [default: by the workload; by `--rho` for traces]
    #[arg(long)]
    pub(super) prefill_rate: Option<f64>,
    /// Tokens that one step of an engine may compute
    #[arg(long, default_value_t = 8_192)]
    pub(super) token_budget: u32,
    /// Requests that an engine runs at once
    #[arg(long, default_value_t = 256)]
    pub(super) max_running: u32,
    /// Inter-token latency of a lone request
    #[arg(long)]
    pub(super) itl_base_ms: Option<f64>,
    /// What each running request adds to it
    #[arg(long)]
    pub(super) itl_per_running_ms: Option<f64>,
    /// Time to first token beside queue and prefill
    #[arg(long)]
    pub(super) front_ms: Option<f64>,
    /// Weight of the eviction cost in the choice of `prefix`
    #[arg(long)]
    pub(super) eviction_weight: Option<f64>,

    /// A good request's first token comes within this …
    #[arg(long, default_value_t = 2_000.0)]
    pub(super) slo_ttft_ms: f64,
    /// … and the others follow at this pace
    #[arg(long, default_value_t = 100.0)]
    pub(super) slo_tpot_ms: f64,

    /// Write the rows as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<String>,
    /// Draw the time to first token against the load, a line for each policy
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Runs at the same time [default: one per core]
    #[arg(long)]
    pub(super) jobs: Option<usize>,
    /// No progress on standard error
    #[arg(long)]
    pub(super) quiet: bool,
}

/// A built-in workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Workload {
    /// 15 documents drawn uniformly, plain caches, no clock
    SeedUniform,
    /// The same, the n-th document with weight 1/n
    SeedSkewed,
    /// 30 documents of 6,800 tokens on two engines
    SeedA40,
    /// 150 customers with long system prompts, 3 to 60 requests a second
    B2bSaas,
    /// 24 sessions of 14 growing turns
    AgentLoops,
    /// b2b-saas with one customer at 60 % of the requests
    HotPrefix,
    /// A trace on engines of speeds 1 : 2 : 4
    MixedGpus,
    /// 12 documents, 200 requests a second on three engines, one of which is away for 10 seconds;
    /// figures are of what is sent from 10 seconds after its return on
    Outage,
}

impl Workload {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it runs on plain caches without a clock.
    pub(super) fn is_windowed(self) -> bool {
        matches!(self, Self::SeedUniform | Self::SeedSkewed)
    }
}

/// One way to route, the best fixed places in hindsight, or all ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policies {
    All,
    One(RoutePolicy),
    /// Plain caches only.
    StaticPartition,
}

/// Its name on the command line and in rows.
pub(super) const STATIC_PARTITION: &str = "static-partition";

impl FromStr for Policies {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "all" => Ok(Self::All),
            STATIC_PARTITION => Ok(Self::StaticPartition),
            name => name.parse().map(Self::One).map_err(|error| {
                let names = RoutePolicy::ALL.map(RoutePolicy::as_str).join(", ");
                format!("{error}: one of {names}, {STATIC_PARTITION}, all")
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum EvictArg {
    Head,
    Tail,
}

impl From<EvictArg> for Evict {
    fn from(evict: EvictArg) -> Self {
        match evict {
            EvictArg::Head => Self::Head,
            EvictArg::Tail => Self::Tail,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SliceArg {
    All,
    First,
    Second,
}

impl From<SliceArg> for Slice {
    fn from(slice: SliceArg) -> Self {
        match slice {
            SliceArg::All => Self::All,
            SliceArg::First => Self::First,
            SliceArg::Second => Self::Second,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ModeArg {
    Trace,
    Think,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Trace => Self::Trace,
            ModeArg::Think => Self::Think,
        }
    }
}
