//! Prompts that take long to tokenise, beside streams and health checks that must not notice.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use sim::workload::document_text;
use tokenization::ModelFolder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bed::{Bed, SOURCE};
use super::reader::Target;
use super::{Args, Outcome};
use crate::stats::{quantile, sorted};

/// No stream's longest gap may grow by more, and a health check must be answered within that.
const ALLOWED: Duration = Duration::from_millis(20);
/// Between two events, between two health checks, and between two prompts.
const EVENT_MS: u64 = 20;
const CHECK: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_millis(500);
/// How long streams run without long prompts before they run with them.
const QUIET: Duration = Duration::from_secs(5);
/// For all prompts together: streams are made long enough for it.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    prompt_tokens: usize,
    prompt_megabytes: f64,
    prompts: usize,
    streams: usize,
    /// From sending a prompt to its answer.
    prompt_ms: Vec<f64>,
    quiet: Window,
    busy: Window,
    /// Of the stream whose longest gap grew most.
    longest_gap_grew_ms: f64,
}

/// What was seen in a stretch of time.
#[derive(Debug, Serialize)]
struct Window {
    seconds: f64,
    gap_p50_ms: f64,
    gap_p99_ms: f64,
    gap_max_ms: f64,
    healthz_p50_ms: f64,
    healthz_p99_ms: f64,
    healthz_max_ms: f64,
}

/// A wait that ended at a moment, in seconds.
type Waits = Vec<(Instant, f64)>;

pub(super) async fn measure(bed: &Bed, args: &Args) -> anyhow::Result<Outcome<Figures>> {
    let prompts = prompts(args)?;
    let bytes = prompts.first().map_or(0, String::len);
    let checks = Arc::new(Mutex::new(Waits::new()));
    let mut tasks = JoinSet::new();
    let checking = check_health(bed.admin(), Arc::clone(&checks));
    tasks.spawn(async move {
        // A check that fails is seen as none after it.
        let _ = checking.await;
    });
    let streams: Vec<_> =
        (0..args.prompt_streams).map(|_| Arc::new(Mutex::new(Waits::new()))).collect();
    for (n, waits) in streams.iter().enumerate() {
        tasks.spawn(follow(bed.edge(), n, Arc::clone(waits)));
    }
    // Streams begin one after the other within this.
    tokio::time::sleep(PAUSE * 2).await;
    let quiet = Instant::now();
    tokio::time::sleep(QUIET).await;
    let busy = Instant::now();
    let mut prompt_ms = Vec::new();
    for prompt in &prompts {
        let began = Instant::now();
        let answer = bed.edge().chat(prompt).await?;
        let status = answer.status;
        let came = answer.events(|_, _| ()).await?;
        anyhow::ensure!(status == 200 && came.whole, "a long prompt was answered with {status}");
        prompt_ms.push(began.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(PAUSE).await;
    }
    let end = Instant::now();
    tasks.abort_all();
    let streams: Vec<Waits> =
        streams.iter().map(|waits| std::mem::take(&mut *waits.lock())).collect();
    let checks = std::mem::take(&mut *checks.lock());
    let longest =
        |waits: &Waits, from: Instant, to: Instant| within(waits, from, to).fold(0.0, f64::max);
    let grew = streams.iter().map(|w| longest(w, busy, end) - longest(w, quiet, busy));
    let longest_gap_grew_ms = 1e3 * grew.fold(0.0, f64::max);
    let figures = Figures {
        prompt_tokens: args.prompt_tokens,
        prompt_megabytes: bytes as f64 / 1e6,
        prompts: prompts.len(),
        streams: streams.len(),
        prompt_ms,
        quiet: window(&streams, &checks, quiet, busy),
        busy: window(&streams, &checks, busy, end),
        longest_gap_grew_ms,
    };
    let allowed = ALLOWED.as_secs_f64() * 1e3;
    let holds = longest_gap_grew_ms <= allowed && figures.busy.healthz_max_ms < allowed;
    Ok(Outcome { holds, figures })
}

/// Bodies with prompts of at least so many tokens, of which none begins like another.
fn prompts(args: &Args) -> anyhow::Result<Vec<String>> {
    let folder = match &args.model_folder {
        Some(path) => ModelFolder::load(path)?,
        None => ModelFolder::builtin(),
    };
    let sample = 10_000;
    let tokens = folder.tokenize_text(&document_text(0, 0, sample), false)?.len().max(1);
    let words = args.prompt_tokens * sample / tokens + sample / 100;
    let body = |n: usize| {
        json!({"model": SOURCE, "stream": true, "max_tokens": 1,
            "messages": [{"role": "user", "content": document_text(7, n, words)}]})
        .to_string()
    };
    Ok((0..args.prompts).map(body).collect())
}

/// One paced stream, its waits between events.
async fn follow(target: Target, n: usize, waits: Arc<Mutex<Waits>>) {
    let events = (QUIET + LONGEST).as_millis() as u64 / EVENT_MS;
    let body = json!({"model": SOURCE, "stream": true, "events": events, "interval_ms": EVENT_MS,
        "messages": [{"role": "user", "content": format!("Stream {n}")}]});
    let Ok(answer) = target.chat(&body.to_string()).await else { return };
    let mut last = None::<Instant>;
    let reading = answer.events(|now, _| {
        let gap = last.replace(now).map(|last| (now, (now - last).as_secs_f64()));
        waits.lock().extend(gap);
    });
    // A stream that breaks is seen in its last wait.
    let _ = reading.await;
}

async fn check_health(target: Target, waits: Arc<Mutex<Waits>>) -> std::io::Result<()> {
    let mut stream = target.connect().await?;
    let ask = target.head("GET", "/healthz", 0);
    let mut buffer = [0; 1024];
    loop {
        let began = Instant::now();
        stream.write_all(ask.as_bytes()).await?;
        if stream.read(&mut buffer).await? == 0 {
            return Ok(());
        }
        let now = Instant::now();
        waits.lock().push((now, (now - began).as_secs_f64()));
        tokio::time::sleep(CHECK).await;
    }
}

fn within(waits: &Waits, from: Instant, to: Instant) -> impl Iterator<Item = f64> {
    waits.iter().filter(move |(at, _)| *at > from && *at <= to).map(|(_, wait)| *wait)
}

fn window(streams: &[Waits], checks: &Waits, from: Instant, to: Instant) -> Window {
    let gaps = sorted(streams.iter().flat_map(|waits| within(waits, from, to)).collect());
    let checks = sorted(within(checks, from, to).collect());
    let ms = |series: &[f64], q: f64| 1e3 * quantile(series, q).unwrap_or(f64::INFINITY);
    Window {
        seconds: (to - from).as_secs_f64(),
        gap_p50_ms: ms(&gaps, 0.5),
        gap_p99_ms: ms(&gaps, 0.99),
        gap_max_ms: ms(&gaps, 1.0),
        healthz_p50_ms: ms(&checks, 0.5),
        healthz_p99_ms: ms(&checks, 0.99),
        healthz_max_ms: ms(&checks, 1.0),
    }
}
