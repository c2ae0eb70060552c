//! The runs of a sweep, a few at a time. Each is a function of its arguments alone, so the rows do
//! not depend on how many run at once.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::ensure;
use serde_json::json;
use sim::gateway::policy::RoutePolicy;
use sim::partition::best_partition;

use super::args::{Args, Policies, STATIC_PARTITION};
use super::row::{Label, Row};
use super::settings::{PlainDocuments, Point, Shape};
use super::trace_file::NamedTrace;

/// Steps of the search for the best fixed places.
const PARTITION_STEPS: u32 = 2_000;

/// Requests between two lines of progress within one run.
const PROGRESS_REQUESTS: usize = 5_000;

/// All policies of one point under one seed.
struct Unit<'a> {
    point: &'a Point,
    seed: u64,
}

/// Runs every point under every seed with every policy. Rows come point by point, policy by
/// policy, seed by seed.
pub(super) fn run_all(
    args: &Args,
    points: &[Point],
    trace: Option<&NamedTrace>,
) -> anyhow::Result<Vec<Row>> {
    let policies = policies(args, points)?;
    let seeds = |point: &Point| {
        let first = point.first_seed(args);
        first..first + args.seeds
    };
    let units: Vec<Unit<'_>> = points
        .iter()
        .flat_map(|point| seeds(point).map(move |seed| Unit { point, seed }))
        .collect();
    let progress =
        Progress { quiet: args.output.quiet, runs: units.len() * policies.len(), done: 0.into() };
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, anyhow::Result<Vec<Row>>)>> = Mutex::new(Vec::new());
    let work = || {
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            let number = units.iter().position(|other| std::ptr::eq(other, unit));
            let rows = run_unit(args, unit, &policies, trace, &progress);
            let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
            results.push((number.unwrap_or(usize::MAX), rows));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..args.output.jobs.unwrap_or(cores).clamp(1, units.len().max(1)) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_by_key(|(number, _)| *number);
    let mut rows = Vec::new();
    for point_results in results.chunks_mut(args.seeds as usize) {
        let mut of_point = Vec::new();
        for (_, result) in point_results {
            of_point.push(std::mem::replace(result, Ok(Vec::new()))?);
        }
        for policy in 0..policies.len() {
            rows.extend(of_point.iter_mut().map(|rows| rows[policy].clone()));
        }
    }
    Ok(rows)
}

fn policies(args: &Args, points: &[Point]) -> anyhow::Result<Vec<Policies>> {
    let mut policies = Vec::new();
    for policy in &args.policy {
        match policy {
            Policies::All => policies.extend(RoutePolicy::ALL.map(Policies::One)),
            other => policies.push(*other),
        }
    }
    let windowed = points.iter().all(Point::is_windowed);
    let partition = policies.contains(&Policies::StaticPartition);
    ensure!(windowed || !partition, "{STATIC_PARTITION} is for seed-uniform and seed-skewed");
    Ok(policies)
}

fn run_unit(
    args: &Args,
    unit: &Unit<'_>,
    policies: &[Policies],
    trace: Option<&NamedTrace>,
    progress: &Progress,
) -> anyhow::Result<Vec<Row>> {
    if let Shape::Plain(plain) = &unit.point.shape {
        let draws = unit.point.draws(plain, unit.seed);
        let run = |policy: &Policies| windowed_row(args, unit, *policy, (plain, &draws), progress);
        return Ok(policies.iter().map(run).collect());
    }
    let set = unit.point.requests(args, trace, unit.seed)?;
    let mut params = unit.point.params(args, Some(&set));
    let scope = unit.point.scope(args, Some(&set));
    params.insert("ceiling_hit_rate".to_owned(), json!(set.ceiling(scope.from_request)));
    let mut rows = Vec::new();
    for policy in policies {
        let Policies::One(policy) = *policy else { continue };
        let config = unit.point.cluster(args, &set, policy, unit.seed);
        let mut told = 0;
        let outcome = sim::cluster::run(&config, &set, &mut |ended| {
            if ended >= told + PROGRESS_REQUESTS {
                told = ended;
                progress.within(unit, policy.as_str(), ended, set.requests.len());
            }
        })?;
        let label = Label {
            workload: unit.point.workload.clone(),
            policy: policy.to_string(),
            seed: unit.seed,
            params: params.clone(),
        };
        rows.push(Row::new(label, &outcome, &scope));
        progress.finished(unit, policy.as_str());
    }
    Ok(rows)
}

fn windowed_row(
    args: &Args,
    unit: &Unit<'_>,
    policy: Policies,
    (plain, draws): (&PlainDocuments, &[usize]),
    progress: &Progress,
) -> Row {
    let run = unit.point.windowed(args, plain, unit.seed);
    let mut params = unit.point.params(args, None);
    let (name, outcome) = match policy {
        Policies::One(policy) => (policy.as_str(), run.run(policy, draws)),
        Policies::All | Policies::StaticPartition => {
            let best = best_partition(&run, draws, PARTITION_STEPS, unit.seed);
            params.insert("steps".to_owned(), json!(PARTITION_STEPS));
            params.insert("places".to_owned(), json!(best.nodes));
            (STATIC_PARTITION, run.run_placed(&best.nodes, draws))
        }
    };
    let label = Label {
        workload: unit.point.workload.clone(),
        policy: name.to_owned(),
        seed: unit.seed,
        params,
    };
    progress.finished(unit, name);
    Row::new(label, &outcome, &unit.point.scope(args, None))
}

/// Lines on standard error while a sweep runs.
struct Progress {
    quiet: bool,
    runs: usize,
    done: AtomicUsize,
}

impl Progress {
    fn within(&self, unit: &Unit<'_>, policy: &str, ended: usize, all: usize) {
        if !self.quiet {
            let (workload, seed) = (&unit.point.workload, unit.seed);
            eprintln!("        {workload} {policy} seed {seed}: {ended} of {all} requests");
        }
    }

    fn finished(&self, unit: &Unit<'_>, policy: &str) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.quiet {
            let (runs, workload, seed) = (self.runs, &unit.point.workload, unit.seed);
            eprintln!("[{done}/{runs}] {workload} {policy} seed {seed}");
        }
    }
}
