//! One point of a sweep: the flags, with the workload's defaults where they say nothing.

use std::time::Duration;

use anyhow::{bail, ensure};
use scheduling::Coefficients;
use serde_json::{Map, Value, json};
use sim::EngineConfig;
use sim::cluster::ClusterConfig;
use sim::gateway::policy::{ReferenceRule, RoutePolicy};
use sim::gateway::{GatewayConfig, MirrorKind};
use sim::request::{RequestSet, Start};
use sim::trace::{Mode, Replay};
use sim::windowed::Windowed;
use sim::workload::{
    AgentSessions, CustomerGroups, DocumentCallers, Draw, LADDER_WARM_UP_SECONDS, reference_draws,
};

use super::args::{Args, Switch, Workload};
use super::trace_file::NamedTrace;

/// Requests that warm the caches up before seed-a40 is measured, by the same callers.
const A40_WARM_UP: usize = 150;
/// Blocks of 64 characters in a document of seed-a40, which engines hold in 424 blocks.
const A40_TEXT_BLOCKS: f64 = 187.0;
/// The reference's belief in that run, in its own blocks.
const A40_REFERENCE_BELIEF: f64 = 12_000.0;

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

/// What a workload has unless flags say otherwise.
struct Defaults {
    nodes: usize,
    blocks: u32,
    documents: usize,
    prefill_rate: Option<f64>,
    front_ms: f64,
    itl_base_ms: f64,
    itl_per_running_ms: f64,
}

impl Defaults {
    fn of(kind: Option<Workload>) -> Self {
        // Engines of a trace: a step of 6 ms and 0.35 ms for each running request, as a large
        // dense model on two current GPUs.
        let trace = Self {
            nodes: 8,
            blocks: 5_000,
            documents: 0,
            prefill_rate: None,
            front_ms: 0.0,
            itl_base_ms: 6.0,
            itl_per_running_ms: 0.35,
        };
        let fixed = |nodes, blocks, documents, rate| Self {
            nodes,
            blocks,
            documents,
            prefill_rate: Some(rate),
            itl_base_ms: 10.0,
            itl_per_running_ms: 0.0,
            ..trace
        };
        match kind {
            None | Some(Workload::MixedGpus) => trace,
            Some(Workload::SeedUniform | Workload::SeedSkewed) => fixed(3, 600, 15, 20_000.0),
            Some(Workload::SeedA40) => Self { front_ms: 60.0, ..fixed(2, 8_000, 30, 28_000.0) },
            Some(Workload::B2bSaas | Workload::HotPrefix) => fixed(8, 19_208, 0, 20_480.0),
            // Room for all sessions on each engine, as published: only where turns go matters.
            Some(Workload::AgentLoops) => fixed(3, 3_000, 0, 20_000.0),
        }
    }
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

/// Flags that mean nothing for a workload are a mistake.
fn check(args: &Args) -> anyhow::Result<()> {
    use Workload::{MixedGpus, SeedA40};
    let kind = args.workload;
    let windowed = kind.is_some_and(Workload::is_windowed);
    let replays = matches!(kind, None | Some(MixedGpus));
    let rules = [
        ("--window", !args.window.is_empty(), windowed),
        ("--evict", args.evict.is_some(), windowed),
        ("--concurrency", !args.concurrency.is_empty(), kind == Some(SeedA40)),
        ("--documents", !args.documents.is_empty(), windowed || kind == Some(SeedA40)),
        ("--rho", !args.rho.is_empty(), replays && args.prefill_rate.is_none()),
        ("--slice", args.slice.is_some(), replays),
        ("--mode", args.mode.is_some(), replays),
        ("--trace", args.trace.is_some(), replays),
        ("--decode", args.decode.is_some(), !windowed),
        ("--shown-content", args.shown_content, !windowed),
        ("--told-speeds", args.told_speeds, !windowed),
        ("--speeds", !args.speeds.is_empty(), !windowed),
        ("--prefill-rate", args.prefill_rate.is_some(), !windowed),
        ("--front-ms", args.front_ms.is_some(), !windowed),
        ("--itl-base-ms", args.itl_base_ms.is_some(), !windowed),
        ("--itl-per-running-ms", args.itl_per_running_ms.is_some(), !windowed),
    ];
    for (flag, given, fits) in rules {
        ensure!(!given || fits, "{flag} does not go with this workload");
    }
    ensure!(!replays || args.trace.is_some(), "this workload needs --trace");
    let positive = |value: f64| value.is_finite() && value > 0.0;
    ensure!(positive(args.believed_capacity), "--believed-capacity must be above 0");
    ensure!(args.rho.iter().chain(&args.speeds).all(|v| positive(*v)), "values must be above 0");
    ensure!(args.prefill_rate.is_none_or(positive), "--prefill-rate must be above 0");
    for ms in [args.front_ms, args.itl_base_ms, args.itl_per_running_ms].into_iter().flatten() {
        ensure!(ms.is_finite() && (0.0..1e6).contains(&ms), "a time must be 0 to 1,000,000 ms");
    }
    ensure!(!args.blocks.contains(&0) && !args.blocks.contains(&1), "--blocks must be at least 2");
    ensure!(args.documents.iter().all(|d| (1..=100_000).contains(d)), "--documents: 1 to 100,000");
    ensure!(!args.concurrency.contains(&0), "--concurrency must be at least 1");
    Ok(())
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
    pub(super) fn warm_up_requests(&self) -> usize {
        if self.kind == Some(Workload::SeedA40) { A40_WARM_UP } else { 0 }
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
                    ..DocumentCallers::default()
                };
                callers.generate(seed)
            }
            (Some(Workload::HotPrefix), _) => {
                CustomerGroups { hot_share: Some(0.6), ..Default::default() }.generate(seed)
            }
            (Some(Workload::AgentLoops), _) => AgentSessions::default().generate(seed),
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
                fixed_seconds: self.front.as_secs_f64(),
                per_token_seconds: 1.0 / engine.prefill_tokens_per_second,
                per_pair_seconds: 0.0,
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
            seed,
        }
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

    /// Everything that makes up the point, for its rows.
    pub(super) fn params(&self, args: &Args, set: Option<&RequestSet>) -> Map<String, Value> {
        let mut params = Map::new();
        let mut put = |name: &str, value: Value| params.insert(name.to_owned(), value);
        put("blocks", json!(self.blocks));
        put("believed_capacity", json!(args.believed_capacity));
        put("eviction_weight", json!(selection(args).eviction_weight));
        if self.is_windowed() {
            let run = self.windowed(args, 0);
            put("documents", json!(self.documents));
            put("window", json!(self.window));
            put("evict", json!(run.evict));
        }
        if self.kind == Some(Workload::SeedA40) {
            put("documents", json!(self.documents));
            put("concurrency", json!(self.concurrency));
            put("warm_up_requests", json!(A40_WARM_UP));
        }
        let Some(set) = set else { return params };
        if matches!(self.kind, None | Some(Workload::MixedGpus)) {
            let replay = replay(args);
            put("rho", json!(self.rho));
            put("slice", json!(replay.slice));
            put("mode", json!(replay.mode));
            if replay.mode == Mode::Think {
                put("recorded_itl_seconds", json!(replay.recorded_itl_seconds));
            }
        }
        put("decode", json!(args.decode != Some(Switch::Off)));
        put("shown_content", json!(args.shown_content));
        put("told_speeds", json!(args.told_speeds));
        put("speeds", json!(self.speeds(args)));
        put("block_tokens", json!(set.block_tokens));
        put("token_budget", json!(args.token_budget));
        put("max_running", json!(args.max_running));
        put("prefill_tokens_per_second", json!(self.prefill_rate(set).round()));
        put("front_ms", json!(self.front.as_secs_f64() * 1e3));
        put("itl_base_ms", json!(self.itl_base_seconds * 1e3));
        put("itl_per_running_ms", json!(self.itl_per_running_seconds * 1e3));
        put("latency_from_seconds", json!(self.latency_from_seconds()));
        put("slo_ttft_ms", json!(args.slo_ttft_ms));
        put("slo_tpot_ms", json!(args.slo_tpot_ms));
        params
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
