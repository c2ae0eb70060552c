//! The parameters of workloads. Every flag takes a list, bears the name of the parameter in rows,
//! and goes with the workloads that have such a parameter.

use serde::Serialize;
use serde_json::{Map, Value};
use sim::workload::{Ladder, Span};

use super::values::{EvictArg, ModeArg, SliceArg, number};

/// All of them.
#[derive(Debug, clap::Args, Serialize)]
pub(in crate::sim_cli) struct WorkloadArgs {
    #[command(flatten)]
    #[serde(flatten)]
    prompts: PromptArgs,
    #[command(flatten)]
    #[serde(flatten)]
    plain: PlainArgs,
    #[command(flatten)]
    #[serde(flatten)]
    callers: CallerArgs,
    #[command(flatten)]
    #[serde(flatten)]
    customers: CustomerArgs,
    #[command(flatten)]
    #[serde(flatten)]
    agents: AgentArgs,
    #[command(flatten)]
    #[serde(flatten)]
    outage: OutageArgs,
    #[command(flatten)]
    #[serde(flatten)]
    traces: TraceArgs,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Prompts and answers, of the workloads in brackets")]
struct PromptArgs {
    /// Different documents (seed-uniform, seed-skewed: 15; seed-a40: 30; outage: 12)
    #[arg(long, value_delimiter = ',', value_name = "N")]
    documents: Vec<usize>,
    /// Blocks of each document (seed-uniform, seed-skewed: 96; seed-a40: 424; outage: 110)
    #[arg(long, value_delimiter = ',', value_name = "N")]
    document_blocks: Vec<u32>,
    /// Blocks that all prompts begin with (seed-uniform, seed-skewed, seed-a40, agent-loops: 2)
    #[arg(long, value_delimiter = ',', value_name = "N")]
    shared_blocks: Vec<u32>,
    /// Tokens of the question that ends a prompt (seed-uniform, seed-skewed: 8; seed-a40: 15;
    /// outage: 12; b2b-saas, hot-prefix: 1200)
    #[arg(long, value_delimiter = ',', value_name = "N")]
    question_tokens: Vec<u32>,
    /// Tokens of an answer (b2b-saas, hot-prefix: 1000; agent-loops: 32; outage: 16)
    #[arg(long, value_delimiter = ',', value_name = "N")]
    output_tokens: Vec<u32>,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "seed-uniform, seed-skewed")]
struct PlainArgs {
    /// Requests in flight at once [default: 48]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    window: Vec<usize>,
    /// Which end of a prompt a plain cache loses first [default: head]
    #[arg(long, value_delimiter = ',')]
    evict: Vec<EvictArg>,
    /// What each request takes beside its uncached tokens [default: 1]
    #[arg(long, value_delimiter = ',', value_name = "MS", value_parser = number)]
    service_ms: Vec<f64>,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "seed-a40")]
struct CallerArgs {
    /// Callers that each wait for their answer [default: 1]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    concurrency: Vec<usize>,
    /// What an answer takes after its first token on an idle engine; fixes its tokens [default:
    /// 0.25]
    #[arg(long, value_delimiter = ',', value_name = "SECONDS", value_parser = number)]
    decode_seconds: Vec<f64>,
    /// Blocks of 64 characters in a document, as the policy `reference` counts them [default: 187]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = number)]
    text_blocks: Vec<f64>,
    /// Such blocks that `reference` believes an engine to have room for [default: 12000]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = number)]
    reference_blocks: Vec<f64>,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "b2b-saas, hot-prefix")]
struct CustomerArgs {
    /// Customers [default: 150]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    groups: Vec<usize>,
    /// Users of each customer; a user always asks the same [default: 5]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    users: Vec<usize>,
    /// Tokens of a customer's system prompt [default: 6000]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    system_tokens: Vec<u32>,
    /// The first customer's share of all requests (hot-prefix alone) [default: 0.6]
    #[arg(long, value_delimiter = ',', value_name = "SHARE", value_parser = number)]
    hot_share: Vec<f64>,
    /// Requests a second, and for how many seconds, step after step [default: 3 to 60 a second, as
    /// published]
    #[arg(long, value_delimiter = ',', value_name = "RATExSECONDS+…")]
    ladder: Vec<Ladder>,
    /// Factor on all rates of the ladder [default: 1]
    #[arg(long, value_delimiter = ',', value_name = "FACTOR", value_parser = number)]
    rate_factor: Vec<f64>,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "agent-loops")]
struct AgentArgs {
    /// Sessions, all at once [default: 24]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    sessions: Vec<usize>,
    /// Turns of each session [default: 14]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    turns: Vec<usize>,
    /// Blocks that a turn adds [default: 8]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    turn_blocks: Vec<u32>,
    /// Shortest and longest pause between two turns [default: 0.05..0.5]
    #[arg(long, value_delimiter = ',', value_name = "FROM..TO")]
    pause_seconds: Vec<Span>,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "outage")]
struct OutageArgs {
    /// Requests a second [default: 200]
    #[arg(long, value_delimiter = ',', value_parser = number)]
    rate: Vec<f64>,
    /// For how long they come [default: 120]
    #[arg(long, value_delimiter = ',', value_parser = number)]
    seconds: Vec<f64>,
    /// When the first engine dies, and when it is back [default: 40..50]
    #[arg(long, value_delimiter = ',', value_name = "FROM..TO")]
    away_seconds: Vec<Span>,
    /// From how long after its return requests count [default: 10]
    #[arg(long, value_delimiter = ',', value_name = "SECONDS", value_parser = number)]
    recovery_seconds: Vec<f64>,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "--trace, mixed-gpus")]
struct TraceArgs {
    /// Prompt tokens offered over what all engines could prefill if nothing were cached; fixes the
    /// prefill rate [default: 0.8]
    #[arg(long, value_delimiter = ',', value_parser = number)]
    rho: Vec<f64>,
    /// Which part of the trace [default: all]
    #[arg(long, value_delimiter = ',')]
    slice: Vec<SliceArg>,
    /// What fixes the time of a later turn: the recorded time, or the end of the turn before
    /// [default: trace]
    #[arg(long, value_delimiter = ',')]
    mode: Vec<ModeArg>,
    /// What a token of a recorded answer took, where no pause after it was recorded (think mode)
    /// [default: 0.02]
    #[arg(long, value_delimiter = ',', value_name = "SECONDS", value_parser = number)]
    recorded_itl_seconds: Vec<f64>,
}

impl WorkloadArgs {
    /// The names of the parameters that flags are given for, with their values.
    ///
    /// # Errors
    /// Never, as all values are plain.
    pub(in crate::sim_cli) fn given(&self) -> serde_json::Result<Vec<(String, Vec<Value>)>> {
        let flags: Map<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        let lists = flags.into_iter().filter_map(|(name, values)| match values {
            Value::Array(values) if !values.is_empty() => Some((name, values)),
            _ => None,
        });
        Ok(lists.collect())
    }
}
