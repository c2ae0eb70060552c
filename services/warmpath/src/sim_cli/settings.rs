//! One point of a sweep: the flags, with the workload's defaults where they say nothing.

mod check;
mod cluster;
mod defaults;
mod params;
mod shape;

use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use sim::request::{Request, RequestSet, Start};
use sim::windowed::Windowed;
use sim::workload::{Draw, reference_draws};

use super::args::{Args, Switch, Workload};
use super::row::Scope;
use super::trace_file::NamedTrace;
use check::check;
use defaults::{Defaults, MAX_RUNNING, SLO_MS, TOKEN_BUDGET};
use shape::combinations;
pub(super) use shape::{PlainDocuments, Shape};

/// Requests that warm the caches up before seed-a40 is measured, by the same callers.
const A40_WARM_UP: usize = 150;

/// A point.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// The built-in workload; a trace alone has none.
    kind: Option<Workload>,
    /// As rows name it.
    pub(super) workload: String,
    pub(super) shape: Shape,
    nodes: usize,
    /// Of an engine whose cache has the mean size.
    blocks: u32,
    /// The size of each engine's cache, 1 in the mean.
    sizes: Vec<f64>,
    /// The speed of each engine, 1 in the mean.
    speeds: Vec<f64>,
    prefill_rate: Option<f64>,
    token_budget: u32,
    max_running: u32,
    front: Duration,
    itl_base_seconds: f64,
    itl_per_running_seconds: f64,
    selection: scheduling::Config,
    hot_prefixes: bool,
    /// The limits of a good request: time to first token, time for each further one.
    slo_ms: (f64, f64),
}

/// Every combination of the lists among the flags.
pub(super) fn points(args: &Args, trace: Option<&NamedTrace>) -> anyhow::Result<Vec<Point>> {
    check(args)?;
    let base = base(args, trace)?;
    let own = base.shape.params();
    let mut lists = args.parameters.given()?;
    // These two go with all workloads: as parameters of theirs, or with what is sent.
    for (name, value) in
        [("requests", json!(args.requests)), ("block_tokens", json!(args.block_tokens))]
    {
        if own.contains_key(name) && !value.is_null() {
            lists.push((name.to_owned(), vec![value]));
        }
    }
    let has_load = lists.iter().any(|(name, _)| name == "rho");
    if has_load && args.engines.prefill_rate.is_some() {
        bail!("--rho does not go with --prefill-rate");
    }
    let shapes = combinations(&lists).into_iter().map(|given| base.shape.with(&given));
    let shapes: Vec<Shape> = shapes.collect::<anyhow::Result<_>>()?;
    let sizes = &args.engines.blocks;
    let blocks = if sizes.is_empty() { vec![base.blocks] } else { sizes.clone() };
    let switches = &args.gateway.hot_prefixes;
    let switches = if switches.is_empty() { vec![Switch::On] } else { switches.clone() };
    let mut points = Vec::new();
    for blocks in blocks {
        for shape in &shapes {
            for switch in &switches {
                let hot_prefixes = *switch == Switch::On;
                points.push(Point { blocks, shape: shape.clone(), hot_prefixes, ..base.clone() });
            }
        }
    }
    Ok(points)
}

/// The point without its lists.
fn base(args: &Args, trace: Option<&NamedTrace>) -> anyhow::Result<Point> {
    let defaults = Defaults::of(args.workload);
    let engines = &args.engines;
    let workload = match (args.workload, trace) {
        (Some(workload), _) => workload.name(),
        (None, Some(trace)) => trace.name.clone(),
        (None, None) => bail!("either a workload or a trace is needed"),
    };
    let seconds = |ms: f64| ms / 1e3;
    let nodes = engines.nodes.map_or(defaults.nodes, usize::from);
    let or = |list: &[f64], default: &[f64]| if list.is_empty() { default } else { list }.to_vec();
    let selection = scheduling::Config::default();
    let eviction_weight = args.gateway.eviction_weight.unwrap_or(selection.eviction_weight);
    Ok(Point {
        kind: args.workload,
        workload,
        shape: Shape::of(args.workload),
        nodes,
        blocks: defaults.blocks,
        sizes: of_mean_one(&or(&engines.sizes, &[1.0]), nodes),
        speeds: of_mean_one(&or(&engines.speeds, defaults.speeds), nodes),
        prefill_rate: engines.prefill_rate.or(defaults.prefill_rate),
        token_budget: engines.token_budget.unwrap_or(TOKEN_BUDGET),
        max_running: engines.max_running.unwrap_or(MAX_RUNNING),
        front: Duration::from_secs_f64(seconds(engines.front_ms.unwrap_or(defaults.front_ms))),
        itl_base_seconds: seconds(engines.itl_base_ms.unwrap_or(defaults.itl_base_ms)),
        itl_per_running_seconds: seconds(
            engines.itl_per_running_ms.unwrap_or(defaults.itl_per_running_ms),
        ),
        selection: scheduling::Config { eviction_weight, ..selection },
        hot_prefixes: true,
        slo_ms: (
            args.figures.slo_ttft_ms.unwrap_or(SLO_MS.0),
            args.figures.slo_tpot_ms.unwrap_or(SLO_MS.1),
        ),
    })
}

/// The pattern over and over, one value for each node, scaled to a mean of 1.
fn of_mean_one(pattern: &[f64], nodes: usize) -> Vec<f64> {
    let values: Vec<f64> = pattern.iter().copied().cycle().take(nodes).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.into_iter().map(|value| value / mean).collect()
}

impl Point {
    /// Whether it runs on plain caches without a clock.
    pub(super) fn is_windowed(&self) -> bool {
        matches!(self.shape, Shape::Plain(_))
    }

    /// The first seed unless a flag says otherwise: the published one.
    pub(super) fn first_seed(&self, args: &Args) -> u64 {
        let published = if self.kind == Some(Workload::SeedSkewed) { 2 } else { 1 };
        args.first_seed.unwrap_or(published)
    }

    /// What the figures are of.
    pub(super) fn scope(&self, args: &Args, set: Option<&RequestSet>) -> Scope {
        Scope {
            from_request: self.skipped_requests(args, set),
            latency_from_seconds: self.latency_from_seconds(args),
            has_clock: !self.is_windowed(),
            slo_ttft_ms: self.slo_ms.0,
            slo_tpot_ms: self.slo_ms.1,
        }
    }

    /// Requests at the beginning that are not measured.
    fn skipped_requests(&self, args: &Args, set: Option<&RequestSet>) -> usize {
        let warm_up = match (&self.shape, set) {
            (Shape::Callers(_), _) => A40_WARM_UP,
            (Shape::Outage(outage), Some(set)) => {
                let is_early = |request: &Request| match request.start {
                    Start::At(at) => at.as_secs_f64() < outage.over_seconds(),
                    Start::After { .. } | Start::WhenFree => false,
                };
                set.requests.partition_point(is_early)
            }
            _ => 0,
        };
        args.figures.skip_requests.unwrap_or(warm_up)
    }

    /// Requests sent before this say nothing about latency.
    fn latency_from_seconds(&self, args: &Args) -> f64 {
        let default = match &self.shape {
            Shape::Customers(customers) => customers.ladder.warm_up_seconds(),
            _ => 0.0,
        };
        args.figures.latency_from_seconds.unwrap_or(default)
    }

    /// The documents that a run without a clock asks about.
    pub(super) fn draws(&self, plain: &PlainDocuments, seed: u64) -> Vec<usize> {
        let draw = match self.kind {
            Some(Workload::SeedSkewed) => Draw::Skewed,
            _ => Draw::Uniform,
        };
        reference_draws(draw, plain.documents, plain.requests, seed)
    }

    /// A run without a clock.
    pub(super) fn windowed(&self, args: &Args, plain: &PlainDocuments, seed: u64) -> Windowed {
        let believed = f64::from(self.blocks) * args.gateway.believed_capacity;
        let run = plain.run.clone();
        Windowed {
            nodes: self.nodes,
            blocks: self.blocks,
            believed_blocks: believed.round() as u32,
            prefill_tokens_per_second: self.prefill_rate.unwrap_or(run.prefill_tokens_per_second),
            selection: self.selection,
            hot_prefixes: self.hot_prefixes,
            seed,
            ..run
        }
    }

    /// The requests of one seed, where there is a clock.
    ///
    /// # Errors
    /// When there is none, or no trace to replay.
    pub(super) fn requests(
        &self,
        args: &Args,
        trace: Option<&NamedTrace>,
        seed: u64,
    ) -> anyhow::Result<RequestSet> {
        let limit = args.requests.unwrap_or(usize::MAX);
        let trace = trace.map(|named| &named.trace);
        self.shape.requests(trace, self.itl_base_seconds, limit, seed)
    }
}
