//! What watching a thousand engines costs, and how fast a change reaches edges and routers.
//!
//! Three processes: engines that answer every probe with recorded pages, a telemetry that watches
//! them, and this one with a client for each edge and router. The telemetry's CPU time is the
//! kernel's count. Changes carry the moment of their commit, and every client tells when it has
//! them; all processes read one clock.

mod engines;
mod telemetry;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use config_feed::{Client, ClientDeps, Feed, GrpcFeed, Metrics};
use domain::BackendState;
use lifecycle::Lifecycle;
use serde::Serialize;

use super::child::ChildProcess;
use crate::cli::Output;

pub use engines::Args as EnginesArgs;
pub use engines::run as run_engines;
pub use telemetry::Args as TelemetryArgs;
pub use telemetry::run as run_telemetry;

/// How long everything may take to be seen at first.
const START_WITHIN: Duration = Duration::from_secs(60);

/// Options of `warmpath bench scrape`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Engines that are watched
    #[arg(long, default_value_t = 1000)]
    backends: usize,
    /// Edges and routers that watch telemetry
    #[arg(long, default_value_t = 12)]
    watchers: usize,
    /// Seconds that the CPU time is measured over
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Changes whose way is timed, of documents and of backends each
    #[arg(long, default_value_t = 20)]
    changes: usize,
    /// A NATS server that telemetry tells of loads, such as nats://127.0.0.1:4222 [default: none]
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// Where the result goes as JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<Output>,
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    backends: usize,
    watchers: usize,
    /// Whether loads were told over NATS too.
    over_nats: bool,
    page_bytes: usize,
    scrapes_per_second: f64,
    telemetry_cpu_share_of_a_core: f64,
    telemetry_cpu_micros_per_scrape: f64,
    telemetry_rss_mib: f64,
    /// Age of the oldest load that any client had when the measurement ended.
    oldest_load_seconds: f64,
    /// From the commit to the last of the watchers.
    document_ms: Latencies,
    /// From the commit of a wish to the last watcher's fleet.
    backend_ms: Latencies,
}

#[derive(Debug, Serialize)]
struct Latencies {
    changes: usize,
    p50: f64,
    max: f64,
}

/// Runs the bench.
///
/// # Errors
/// When a process does not start or a result cannot be written.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let ports = folder.path().join("ports");
    let words = |text: &[&str]| text.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let (count, ports_text) = (args.backends.to_string(), ports.display().to_string());
    let engines = words(&["bench", "scrape-engines", "--count", &count, "--ports", &ports_text]);
    let _engines =
        ChildProcess::start("the engines", &engines, &folder.path().join("engines.log"))?;
    wait_for(&ports).await?;
    let address = folder.path().join("address");
    let address_text = address.display().to_string();
    let mut telemetry =
        words(&["bench", "scrape-telemetry", "--ports", &ports_text, "--address", &address_text]);
    telemetry.extend(args.nats.iter().flat_map(|url| ["--nats".to_owned(), url.clone()]));
    let log = folder.path().join("telemetry.log");
    let telemetry = ChildProcess::start("telemetry", &telemetry, &log)?;
    let address = wait_for(&address).await?;

    let lifecycle = Lifecycle::new();
    let feeds: Vec<Feed> =
        (0..args.watchers).map(|_| follow(&address, &lifecycle)).collect::<anyhow::Result<_>>()?;
    for feed in &feeds {
        all_ready(feed, args.backends).await?;
    }
    let report = measure(&args, &telemetry, &feeds).await?;
    print_summary(&report);
    if let Some(output) = &args.json {
        output.write_json(&report)?;
    }
    lifecycle.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// The content of a file that another process is about to write in one step.
async fn wait_for(path: &std::path::Path) -> anyhow::Result<String> {
    for _ in 0..300 {
        if let Ok(text) = std::fs::read_to_string(path) {
            return Ok(text);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{} was not written within 15 s", path.display())
}

/// A client with a connection of its own.
fn follow(address: &str, lifecycle: &Lifecycle) -> anyhow::Result<Feed> {
    let config = rpc::ClientConfig::new(rpc::RawClientConfig::default())?;
    let client = Client::new(ClientDeps {
        feed: Arc::new(GrpcFeed::new(config.channel(address)?, None)),
        spawner: lifecycle.spawner(),
        metrics: Metrics::default(),
        member: None,
    });
    Ok(client.start())
}

async fn all_ready(feed: &Feed, count: usize) -> anyhow::Result<()> {
    let mut fleet = feed.fleet();
    let ready = fleet.wait_for(|f| {
        f.backends.iter().filter(|b| b.state == BackendState::Ready).count() == count
    });
    tokio::time::timeout(START_WITHIN, ready).await.context("not all engines became ready")??;
    Ok(())
}

async fn measure(args: &Args, telemetry: &ChildProcess, feeds: &[Feed]) -> anyhow::Result<Report> {
    // Past the first round, in which everything is learned of every engine.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = telemetry.used()?;
    let begin = lifecycle::monotonic();
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let after = telemetry.used()?;
    let seconds = lifecycle::monotonic().seconds_since(begin);
    let cpu = after.cpu_seconds - before.cpu_seconds;
    let oldest = feeds.iter().flat_map(oldest_load).fold(0.0, f64::max);
    let (mut documents, mut backends) = (Vec::new(), Vec::new());
    for _ in 0..args.changes {
        documents.push(slowest(feeds, document_change).await?);
        backends.push(slowest(feeds, backend_change).await?);
    }
    let scrapes = args.backends as f64;
    Ok(Report {
        backends: args.backends,
        watchers: args.watchers,
        over_nats: args.nats.is_some(),
        page_bytes: engines::page_bytes(),
        scrapes_per_second: scrapes,
        telemetry_cpu_share_of_a_core: cpu / seconds,
        telemetry_cpu_micros_per_scrape: cpu / seconds / scrapes * 1e6,
        telemetry_rss_mib: after.rss_bytes as f64 / f64::from(1 << 20),
        oldest_load_seconds: oldest,
        document_ms: Latencies::of(documents),
        backend_ms: Latencies::of(backends),
    })
}

fn oldest_load(feed: &Feed) -> Vec<f64> {
    let now = lifecycle::monotonic();
    let fleet = feed.fleet().borrow().clone();
    let loads = fleet.backends.iter().flat_map(|b| &b.ranks).filter_map(|rank| rank.load);
    loads.map(|load| now.seconds_since(load.at)).collect()
}

/// The slowest of all clients, in milliseconds.
async fn slowest<F>(feeds: &[Feed], wait: impl Fn(Feed) -> F) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<f64>>,
{
    let all = futures_util::future::try_join_all(feeds.iter().cloned().map(wait));
    let found = tokio::time::timeout(START_WITHIN, all).await.context("no change came")??;
    Ok(found.into_iter().fold(0.0, f64::max))
}

/// The next change of the tenant that telemetry's process writes: the time since its commit.
async fn document_change(feed: Feed) -> anyhow::Result<f64> {
    let mut documents = feed.documents();
    let at = |d: &config_feed::Documents| written_at(&d.tenants.get(telemetry::TENANT)?.unknown);
    let before = at(&documents.borrow());
    let changed = documents.wait_for(|d| at(d) != before).await?;
    Ok(millis_since(at(&changed)))
}

/// The next change of the backend whose wish telemetry's process changes.
async fn backend_change(feed: Feed) -> anyhow::Result<f64> {
    let (mut fleet, mut documents) = (feed.fleet(), feed.documents());
    let id = telemetry::backend_id(0);
    let state = |f: &domain::Fleet| f.backend(&id.as_str().into()).map(|b| b.state);
    let at = |d: &config_feed::Documents| written_at(&d.backends.get(id.as_str())?.unknown);
    let (before, earlier) = (state(&fleet.borrow()), at(&documents.borrow()));
    fleet.wait_for(|f| state(f) != before).await?;
    let seen = wall_micros();
    // The document says when it was committed; it may come a little after what it caused.
    let changed = documents.wait_for(|d| at(d) != earlier).await?;
    Ok(seen.saturating_sub(at(&changed).unwrap_or(0)) as f64 / 1000.0)
}

fn written_at(unknown: &domain::desired::UnknownFields) -> Option<u64> {
    unknown.get(telemetry::AT)?.as_u64()
}

/// Microseconds since 1970.
fn wall_micros() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn millis_since(written: Option<u64>) -> f64 {
    wall_micros().saturating_sub(written.unwrap_or(0)) as f64 / 1000.0
}

impl Latencies {
    fn of(mut found: Vec<f64>) -> Self {
        found.sort_by(f64::total_cmp);
        Self {
            changes: found.len(),
            p50: found.get(found.len() / 2).copied().unwrap_or(f64::NAN),
            max: found.last().copied().unwrap_or(f64::NAN),
        }
    }
}

fn print_summary(report: &Report) {
    eprintln!(
        "{} engines a second: {:.1} % of a core, {:.0} µs each, {:.0} MiB; loads at most {:.2} s \
         old at {} watchers; a document reaches all in {:.0} ms (max {:.0}), a backend's state in \
         {:.0} ms (max {:.0})",
        report.backends,
        report.telemetry_cpu_share_of_a_core * 100.0,
        report.telemetry_cpu_micros_per_scrape,
        report.telemetry_rss_mib,
        report.oldest_load_seconds,
        report.watchers,
        report.document_ms.p50,
        report.document_ms.max,
        report.backend_ms.p50,
        report.backend_ms.max,
    );
}
