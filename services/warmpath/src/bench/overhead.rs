//! What the gateway adds: latency at a fixed open-loop rate, and CPU per request, beside going
//! to the engine directly and beside a proxy that parses nothing, interleaved in one run.
//!
//! The engine is the double in static mode, so that nothing but the path is measured. Engine,
//! bare proxy and gateway are processes of their own; the load client is this one.

use std::collections::BTreeMap;

use serde::Serialize;

use super::child::{ChildProcess, Used};
use super::drive::{self, Sample};
use super::prompts::{self, Workload};
use crate::cli::Output;
use crate::load::LoadClient;
use crate::stats;

/// Options of `warmpath bench overhead`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Requests per second in the open-loop part
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Seconds of each open-loop measurement
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// How many times everything is measured; the middle one is reported
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Connections in the closed-loop part
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Requests of each closed-loop measurement
    #[arg(long, default_value_t = 20_000)]
    requests: usize,
    /// Where the result goes as JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<Output>,
}

/// One measurement of one target.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    target: &'static str,
    round: usize,
    offered_per_second: Option<f64>,
    achieved_per_second: f64,
    completed: usize,
    failed: usize,
    ttft_p50_ms: f64,
    ttft_p99_ms: f64,
    total_p50_ms: f64,
    total_p99_ms: f64,
    /// Of the target's process; the engine's for `direct`.
    cpu_micros_per_request: f64,
    rss_mib: f64,
}

/// The middle of the rounds, as what the gateway adds.
#[derive(Debug, Serialize)]
struct Summary {
    added_ttft_p50_ms: f64,
    added_ttft_p99_ms: f64,
    bare_added_ttft_p50_ms: f64,
    bare_added_ttft_p99_ms: f64,
    gateway_cpu_micros_per_request: f64,
    bare_cpu_micros_per_request: f64,
    gateway_over_bare_cpu: f64,
    gateway_rss_mib: f64,
    failed: usize,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    workloads: BTreeMap<&'static str, WorkloadReport>,
    cold_32k_highest_rate_held: f64,
    cold_32k_ramp: Vec<Measured>,
}

#[derive(Debug, Serialize)]
struct WorkloadReport {
    summary: Summary,
    rounds: Vec<Measured>,
}

/// The processes under test.
struct Bed {
    engine: ChildProcess,
    bare: ChildProcess,
    gateway: ChildProcess,
    targets: [(&'static str, String); 3],
    client: LoadClient,
    _folder: tempfile::TempDir,
}

/// Runs the bench.
///
/// # Errors
/// When a process does not start or a result cannot be written.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let bed = Bed::start().await?;
    let mut report = Report::default();
    for workload in Workload::OPEN_LOOP {
        let mut rounds = Vec::new();
        for round in 0..args.rounds {
            for target in 0..bed.targets.len() {
                rounds.push(bed.open_loop(workload, target, round, args.rate, args.seconds).await?);
            }
        }
        report.add(workload.name(), rounds);
    }
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        for target in 0..bed.targets.len() {
            rounds.push(bed.closed_loop(target, round, args.concurrency, args.requests).await?);
        }
    }
    report.add("fixed-390-bytes-closed-loop", rounds);
    bed.ramp(&mut report, args.seconds).await?;

    if let Some(output) = &args.json {
        output.write_json(&report)?;
    }
    Ok(())
}

impl Report {
    fn add(&mut self, name: &'static str, rounds: Vec<Measured>) {
        let summary = Summary::of(&rounds);
        eprintln!(
            "{name:<30} adds p50 {:.3} ms, p99 {:.3} ms (bare proxy {:.3}, {:.3}); CPU per request \
             {:.0} µs, bare {:.0} µs: {:.2} ×",
            summary.added_ttft_p50_ms,
            summary.added_ttft_p99_ms,
            summary.bare_added_ttft_p50_ms,
            summary.bare_added_ttft_p99_ms,
            summary.gateway_cpu_micros_per_request,
            summary.bare_cpu_micros_per_request,
            summary.gateway_over_bare_cpu,
        );
        self.workloads.insert(name, WorkloadReport { summary, rounds });
    }
}

impl Summary {
    fn of(rounds: &[Measured]) -> Self {
        let column = |target: &str, f: &dyn Fn(&Measured) -> f64| -> Vec<f64> {
            rounds.iter().filter(|m| m.target == target).map(f).collect()
        };
        let median = |values: Vec<f64>| stats::quantile(&stats::sorted(values), 0.5).unwrap_or(0.0);
        let added = |target: &str, f: &dyn Fn(&Measured) -> f64| {
            let differences =
                column(target, f).iter().zip(column("direct", f)).map(|(t, d)| t - d).collect();
            median(differences)
        };
        let cpu = |target: &str| column(target, &|m| m.cpu_micros_per_request);
        let ratios =
            cpu("gateway").iter().zip(cpu("bare")).map(|(g, b)| g / b.max(f64::EPSILON)).collect();
        Self {
            added_ttft_p50_ms: added("gateway", &|m| m.ttft_p50_ms),
            added_ttft_p99_ms: added("gateway", &|m| m.ttft_p99_ms),
            bare_added_ttft_p50_ms: added("bare", &|m| m.ttft_p50_ms),
            bare_added_ttft_p99_ms: added("bare", &|m| m.ttft_p99_ms),
            gateway_cpu_micros_per_request: median(cpu("gateway")),
            bare_cpu_micros_per_request: median(cpu("bare")),
            gateway_over_bare_cpu: median(ratios),
            gateway_rss_mib: median(column("gateway", &|m| m.rss_mib)),
            failed: rounds.iter().map(|m| m.failed).sum(),
        }
    }
}

impl Bed {
    async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let log = |name: &str| folder.path().join(name);
        let [engine_port, bare_port, edge_port, admin_port] = drive::free_ports()?;
        let args = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();

        let engine_args = args(&["engine", "--static", "--model", prompts::MODEL, "--port"]);
        let engine_args = [engine_args, vec![engine_port.to_string()]].concat();
        let mut engine =
            ChildProcess::start("the engine double", &engine_args, &log("engine.log"))?;
        let engine_url = format!("http://127.0.0.1:{engine_port}");
        engine.ready(&format!("{engine_url}/health")).await?;

        let upstream = format!("127.0.0.1:{engine_port}");
        let bare_args = args(&[
            "bench",
            "bare-proxy",
            "--port",
            &bare_port.to_string(),
            "--upstream",
            &upstream,
        ]);
        let mut bare = ChildProcess::start("the bare proxy", &bare_args, &log("bare.log"))?;
        bare.ready(&format!("http://127.0.0.1:{bare_port}/health")).await?;

        let key = credentials::GeneratedKey::generate("bench")?;
        let config =
            prompts::gateway_config(edge_port, admin_port, &engine_url, &key.config_lines());
        let path = log("gateway.toml");
        std::fs::write(&path, config)?;
        let gateway_args = args(&["serve", "--config", &path.to_string_lossy()]);
        let mut gateway = ChildProcess::start("the gateway", &gateway_args, &log("gateway.log"))?;
        gateway.ready(&format!("http://127.0.0.1:{admin_port}/readyz")).await?;

        let url = |port: u16| format!("http://127.0.0.1:{port}/v1/chat/completions");
        Ok(Self {
            engine,
            bare,
            gateway,
            targets: [
                ("direct", url(engine_port)),
                ("bare", url(bare_port)),
                ("gateway", url(edge_port)),
            ],
            client: LoadClient::new(Some(key.secret_text())),
            _folder: folder,
        })
    }

    fn used(&self, target: usize) -> anyhow::Result<Used> {
        [&self.engine, &self.bare, &self.gateway][target].used()
    }

    async fn open_loop(
        &self,
        workload: Workload,
        target: usize,
        round: usize,
        rate: f64,
        seconds: f64,
    ) -> anyhow::Result<Measured> {
        let (name, url) = &self.targets[target];
        let count = (rate * seconds) as usize;
        let bodies = workload.bodies(count, (round * 10 + target) as u64);
        if workload.is_warm() {
            // The known part becomes known; everybody gets the same extra requests.
            drive::closed_loop(&self.client, url, &bodies[..count.min(8)], 1, 8).await;
        }
        let before = self.used(target)?;
        let (samples, elapsed) = drive::open_loop(&self.client, url, bodies, rate).await;
        Ok(measured(name, round, Some(rate), &samples, elapsed, before, self.used(target)?))
    }

    async fn closed_loop(
        &self,
        target: usize,
        round: usize,
        concurrency: usize,
        requests: usize,
    ) -> anyhow::Result<Measured> {
        let (name, url) = &self.targets[target];
        let body = [prompts::fixed_body()];
        drive::closed_loop(&self.client, url, &body, concurrency, requests / 20).await;
        let before = self.used(target)?;
        let (samples, elapsed) =
            drive::closed_loop(&self.client, url, &body, concurrency, requests).await;
        Ok(measured(name, round, None, &samples, elapsed, before, self.used(target)?))
    }

    /// Raises the rate of cold 32 KB prompts until it is no longer held: 95 % of the offered
    /// rate answered, p99 below 250 ms, none failed.
    async fn ramp(&self, report: &mut Report, seconds: f64) -> anyhow::Result<()> {
        let mut rate = 25.0;
        while rate <= 3200.0 {
            let m =
                self.open_loop(Workload::Cold32K, 2, 100 + rate as usize, rate, seconds).await?;
            let held =
                m.failed == 0 && m.ttft_p99_ms < 250.0 && m.achieved_per_second >= 0.95 * rate;
            eprintln!(
                "cold 32 KB at {rate:.0}/s: p50 {:.1} ms, p99 {:.1} ms{}",
                m.ttft_p50_ms,
                m.ttft_p99_ms,
                if held { "" } else { ", not held" }
            );
            report.cold_32k_ramp.push(m);
            if !held {
                break;
            }
            report.cold_32k_highest_rate_held = rate;
            rate *= 1.41;
        }
        Ok(())
    }
}

fn measured(
    target: &'static str,
    round: usize,
    offered: Option<f64>,
    samples: &[Sample],
    elapsed: std::time::Duration,
    before: Used,
    after: Used,
) -> Measured {
    let good: Vec<_> = samples.iter().flatten().collect();
    let series =
        |f: &dyn Fn(&drive::Timing) -> f64| stats::sorted(good.iter().map(|t| f(t)).collect());
    let ttft = series(&|t| t.ttft.as_secs_f64() * 1e3);
    let total = series(&|t| t.total.as_secs_f64() * 1e3);
    let q = |s: &[f64], q: f64| stats::quantile(s, q).unwrap_or(0.0);
    Measured {
        target,
        round,
        offered_per_second: offered,
        achieved_per_second: good.len() as f64 / elapsed.as_secs_f64().max(1e-9),
        completed: good.len(),
        failed: samples.len() - good.len(),
        ttft_p50_ms: q(&ttft, 0.5),
        ttft_p99_ms: q(&ttft, 0.99),
        total_p50_ms: q(&total, 0.5),
        total_p99_ms: q(&total, 0.99),
        cpu_micros_per_request: 1e6 * (after.cpu_seconds - before.cpu_seconds)
            / samples.len().max(1) as f64,
        rss_mib: after.rss_bytes as f64 / (1024.0 * 1024.0),
    }
}
