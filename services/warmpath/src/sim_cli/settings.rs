//! One point of a sweep: the flags, with the workload's defaults where they say nothing.

mod check;
mod defaults;
mod params;

use std::time::Duration;

use anyhow::bail;
use domain::Moment;
use scheduling::Coefficients;
use sim::EngineConfig;
use sim::cluster::{ClusterConfig, Outage};
use sim::gateway::policy::{ReferenceRule, RoutePolicy};
use sim::gateway::{GatewayConfig, MirrorKind};
use sim::request::{Request, RequestSet, Start};
use sim::trace::Replay;
use sim::windowed::Windowed;
use sim::workload::{
    AgentSessions, CustomerGroups, DocumentCallers, Draw, LADDER_WARM_UP_SECONDS, SteadyDocuments,
    reference_draws,
};

use super::args::{Args, Switch, Workload};
use super::trace_file::NamedTrace;
use check::check;
use defaults::Defaults;

/// Requests that warm the caches up before seed-a40 is measured, by the same callers.
const A40_WARM_UP: usize = 150;
/// What an answer of it takes after its first token, on an engine that does nothing else.
const A40_DECODE_SECONDS: f64 = 0.25;
/// Blocks of 64 characters in a document of seed-a40, which engines hold in 424 blocks.
const A40_TEXT_BLOCKS: f64 = 187.0;
/// The reference's belief in that run, in its own blocks.
const A40_REFERENCE_BELIEF: f64 = 12_000.0;

/// When the first engine of `outage` dies, and when it is back.
const OUTAGE_SECONDS: [f64; 2] = [40.0, 50.0];
/// When hits and latencies of it are back where they were.
const OUTAGE_OVER_SECONDS: f64 = OUTAGE_SECONDS[1] + 10.0;

/// A point.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// The built-in workload; a trace alone has none.
    pub(super) kind: Option<Workload>,
    /// As rows name it.
    pub(super) workload: String,
    pub(super) nodes: usize,
    pub(super) blocks: u32,
    pub(super) window: usize,
    pub(super) concurrency: usize,
    pub(super) documents: usize,
    pub(super) rho: f64,
    prefill_rate: Option<f64>,
    front: Duration,
    itl_base_seconds: f64,
    itl_per_running_seconds: f64,
}

/// Every combination of the lists among the flags.
pub(super) fn points(args: &Args, trace: Option<&NamedTrace>) -> anyhow::Result<Vec<Point>> {
    check(args)?;
    let defaults = Defaults::of(args.workload);
    let or =
        |list: &[usize], value: usize| if list.is_empty() { vec![value] } else { list.to_vec() };
    let name = match (args.workload, trace) {
        (Some(workload), _) => workload.name(),
        (None, Some(trace)) => trace.name.clone(),
        (None, None) => bail!("either a workload or a trace is needed"),
    };
    let ms = |seconds: f64| seconds / 1e3;
    let base = Point {
        kind: args.workload,
        workload: name,
        nodes: args.nodes.map_or(defaults.nodes, usize::from),
        blocks: defaults.blocks,
        window: 0,
        concurrency: 0,
        documents: 0,
        rho: 0.0,
        prefill_rate: args.prefill_rate.or(defaults.prefill_rate),
        front: Duration::from_secs_f64(ms(args.front_ms.unwrap_or(defaults.front_ms))),
        itl_base_seconds: ms(args.itl_base_ms.unwrap_or(defaults.itl_base_ms)),
        itl_per_running_seconds: ms(args.itl_per_running_ms.unwrap_or(defaults.itl_per_running_ms)),
    };
    let blocks = if args.blocks.is_empty() { vec![defaults.blocks] } else { args.blocks.clone() };
    let rhos = if args.rho.is_empty() { vec![0.8] } else { args.rho.clone() };
    let mut points = Vec::new();
    for blocks in blocks {
        for documents in or(&args.documents, defaults.documents) {
            for window in or(&args.window, 48) {
                for concurrency in or(&args.concurrency, 1) {
                    for rho in &rhos {
                        let rho = *rho;
                        let base = base.clone();
                        points.push(Point { blocks, documents, window, concurrency, rho, ..base });
                    }
                }
            }
        }
    }
    Ok(points)
}

impl Point {
    /// Whether it runs on plain caches without a clock.
    pub(super) fn is_windowed(&self) -> bool {
        self.kind.is_some_and(Workload::is_windowed)
    }

    /// The first seed unless a flag says otherwise: the published one.
    pub(super) fn first_seed(&self, args: &Args) -> u64 {
        let published = if self.kind == Some(Workload::SeedSkewed) { 2 } else { 1 };
        args.first_seed.unwrap_or(published)
    }

    /// Requests at the beginning that are not measured.
    pub(super) fn skipped_requests(&self, args: &Args, set: Option<&RequestSet>) -> usize {
        let is_early = |request: &Request| match request.start {
            Start::At(at) => at.as_secs_f64() < OUTAGE_OVER_SECONDS,
            Start::After { .. } | Start::WhenFree => false,
        };
        let warm_up = match (self.kind, set) {
            (Some(Workload::SeedA40), _) => A40_WARM_UP,
            (Some(Workload::Outage), Some(set)) => set.requests.partition_point(is_early),
            _ => 0,
        };
        args.skip_requests.unwrap_or(warm_up)
    }

    /// Requests sent before this say nothing about latency.
    pub(super) fn latency_from_seconds(&self) -> f64 {
        match self.kind {
            Some(Workload::B2bSaas | Workload::HotPrefix) => LADDER_WARM_UP_SECONDS,
            _ => 0.0,
        }
    }

    /// The documents that a run without a clock asks about.
    pub(super) fn draws(&self, args: &Args, seed: u64) -> Vec<usize> {
        let draw = match self.kind {
            Some(Workload::SeedSkewed) => Draw::Skewed,
            _ => Draw::Uniform,
        };
        reference_draws(draw, self.documents, args.requests.unwrap_or(3_000), seed)
    }

    pub(super) fn windowed(&self, args: &Args, seed: u64) -> Windowed {
        let believed = f64::from(self.blocks) * args.believed_capacity;
        Windowed {
            nodes: self.nodes,
            blocks: self.blocks,
            believed_blocks: believed.round() as u32,
            evict: args.evict.map_or_else(Default::default, Into::into),
            window: self.window,
            selection: selection(args),
            seed,
            ..Windowed::default()
        }
    }

    /// The requests of one seed, where there is a clock.
    pub(super) fn requests(
        &self,
        args: &Args,
        trace: Option<&NamedTrace>,
        seed: u64,
    ) -> RequestSet {
        let limit = args.requests.unwrap_or(usize::MAX);
        let mut set = match (self.kind, trace) {
            (None | Some(Workload::MixedGpus), Some(named)) => {
                named.trace.replay(&replay(args), seed)
            }
            (Some(Workload::SeedA40), _) => {
                let callers = DocumentCallers {
                    documents: self.documents,
                    callers: self.concurrency,
                    output_tokens: self.a40_output_tokens(),
                    ..DocumentCallers::default()
                };
                callers.generate(seed)
            }
            (Some(Workload::HotPrefix), _) => {
                CustomerGroups { hot_share: Some(0.6), ..Default::default() }.generate(seed)
            }
            (Some(Workload::AgentLoops), _) => AgentSessions::default().generate(seed),
            (Some(Workload::Outage), _) => {
                let documents = self.documents;
                SteadyDocuments { documents, ..SteadyDocuments::default() }.generate(seed)
            }
            _ => CustomerGroups::default().generate(seed),
        };
        set.requests.truncate(limit);
        set
    }

    /// Tokens that an engine of speed 1 prefills in a second.
    pub(super) fn prefill_rate(&self, set: &RequestSet) -> f64 {
        if let Some(rate) = self.prefill_rate {
            return rate;
        }
        let times = set.requests.iter().filter_map(|request| match request.start {
            Start::At(at) => Some(at.as_secs_f64()),
            Start::After { .. } | Start::WhenFree => None,
        });
        let seconds = times.fold(0.0, f64::max).max(1.0);
        set.prompt_tokens() as f64 / seconds / self.nodes as f64 / self.rho
    }

    pub(super) fn cluster(
        &self,
        args: &Args,
        set: &RequestSet,
        policy: RoutePolicy,
        seed: u64,
    ) -> ClusterConfig {
        let rate = self.prefill_rate(set);
        let speeds = self.speeds(args);
        let engine = |speed: &f64| EngineConfig {
            blocks: self.blocks,
            block_size: set.block_tokens,
            prefill_tokens_per_second: (rate * speed).max(1.0),
            prefill_floor_seconds: 0.0,
            token_budget: args.token_budget,
            itl_base_seconds: self.itl_base_seconds / speed,
            itl_per_running_seconds: self.itl_per_running_seconds / speed,
            max_running: args.max_running,
            decode: args.decode != Some(Switch::Off),
        };
        let engines: Vec<EngineConfig> = speeds.iter().map(engine).collect();
        let told = |engine: &EngineConfig| {
            args.told_speeds.then(|| Coefficients {
                latency_seconds: self.front.as_secs_f64(),
                fixed_seconds: 0.0,
                per_token_seconds: 1.0 / engine.prefill_tokens_per_second,
                per_pair_seconds: 0.0,
                decode_step_seconds: engine.itl_base_seconds,
                decode_running_seconds: engine.itl_per_running_seconds,
            })
        };
        let believed = f64::from(self.blocks - 1) * args.believed_capacity;
        ClusterConfig {
            front: self.front,
            gateway: GatewayConfig {
                block_tokens: set.block_tokens,
                mirror: MirrorKind::FreeQueue,
                believed_blocks: vec![believed.round() as u32; self.nodes],
                priors: engines.iter().map(told).collect(),
                selection: selection(args),
            },
            engines,
            policy,
            reference: self.reference(),
            shown_content: args.shown_content,
            outages: self.outages(),
            seed,
        }
    }

    fn outages(&self) -> Vec<Outage> {
        if self.kind != Some(Workload::Outage) {
            return Vec::new();
        }
        let [from, until] = OUTAGE_SECONDS.map(Moment::from_secs_f64);
        vec![Outage { rank: 0, from, until }]
    }

    /// So many that decoding takes as long as in the published run, at any inter-token latency.
    fn a40_output_tokens(&self) -> u32 {
        let further = A40_DECODE_SECONDS / self.itl_base_seconds.max(1e-4);
        1 + further.round() as u32
    }

    fn reference(&self) -> ReferenceRule {
        if self.kind != Some(Workload::SeedA40) {
            return ReferenceRule::default();
        }
        let blocks = f64::from(DocumentCallers::default().document_blocks);
        let per_block = A40_TEXT_BLOCKS / blocks;
        ReferenceRule {
            blocks_per_engine_block: per_block,
            believed_blocks: Some((A40_REFERENCE_BELIEF / per_block) as u32),
            ..ReferenceRule::default()
        }
    }

    /// The speed of each engine, 1 in the mean.
    fn speeds(&self, args: &Args) -> Vec<f64> {
        let pattern = match (args.speeds.is_empty(), self.kind) {
            (false, _) => args.speeds.clone(),
            (true, Some(Workload::MixedGpus)) => vec![1.0, 2.0, 4.0],
            (true, _) => vec![1.0],
        };
        let speeds: Vec<f64> = pattern.iter().copied().cycle().take(self.nodes).collect();
        let mean = speeds.iter().sum::<f64>() / speeds.len() as f64;
        speeds.into_iter().map(|speed| speed / mean).collect()
    }
}

fn replay(args: &Args) -> Replay {
    Replay {
        slice: args.slice.map_or_else(Default::default, Into::into),
        mode: args.mode.map_or_else(Default::default, Into::into),
        limit: args.requests.unwrap_or(usize::MAX),
        ..Replay::default()
    }
}

fn selection(args: &Args) -> scheduling::Config {
    let default = scheduling::Config::default();
    let eviction_weight = args.eviction_weight.unwrap_or(default.eviction_weight);
    scheduling::Config { eviction_weight, ..default }
}
