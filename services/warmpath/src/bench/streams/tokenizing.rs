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
    /// Streams and checks that ended before they were told to, and why.
    failures: Vec<String>,
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

/// What a stream, or the checks, have seen.
#[derive(Default)]
struct Seen {
    waits: Waits,
    /// Since when there is a wait that has not ended.
    since: Option<Instant>,
    /// Why there will be no more.
    failed: Option<String>,
}

impl Seen {
    /// Something is waited for.
    fn asked(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// It has come.
    fn came(&mut self, now: Instant) {
        let since = self.since.take();
        self.waits.extend(since.map(|since| (now, (now - since).as_secs_f64())));
    }

    /// Everything up to a moment. What had not come by then was waited for until then.
    fn until(mut self, end: Instant) -> Self {
        if self.failed.is_none() {
            self.came(end);
        }
        self
    }
}

/// Shared with the task that sees it.
type Watch = Arc<Mutex<Seen>>;

pub(super) async fn measure(bed: &Bed, args: &Args) -> anyhow::Result<Outcome<Figures>> {
    let prompts = prompts(args)?;
    let bytes = prompts.first().map_or(0, String::len);
    let checks = Watch::default();
    let mut tasks = JoinSet::new();
    tasks.spawn(watched(Arc::clone(&checks), check_health(bed.admin(), Arc::clone(&checks))));
    let streams: Vec<Watch> = (0..args.prompt_streams).map(|_| Watch::default()).collect();
    for (n, seen) in streams.iter().enumerate() {
        tasks.spawn(watched(Arc::clone(seen), follow(bed.edge(), n, Arc::clone(seen))));
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
    let taken = |seen: &Watch| std::mem::take(&mut *seen.lock()).until(end);
    let judged = judge(streams.iter().map(taken).collect(), taken(&checks), [quiet, busy, end]);
    let figures = Figures {
        prompt_tokens: args.prompt_tokens,
        prompt_megabytes: bytes as f64 / 1e6,
        prompts: prompts.len(),
        prompt_ms,
        ..judged.figures
    };
    Ok(Outcome { holds: judged.holds, figures })
}

/// Whether streams and checks noticed nothing: every one of them went on to the end, and no wait
/// was longer than it may be, whether it ended or not.
fn judge(streams: Vec<Seen>, checks: Seen, [quiet, busy, end]: [Instant; 3]) -> Outcome<Figures> {
    let all = streams.iter().chain([&checks]);
    let failures: Vec<String> = all.filter_map(|seen| seen.failed.clone()).collect();
    let streams: Vec<Waits> = streams.into_iter().map(|seen| seen.waits).collect();
    let longest =
        |waits: &Waits, from: Instant, to: Instant| within(waits, from, to).fold(0.0, f64::max);
    let grew = streams.iter().map(|w| longest(w, busy, end) - longest(w, quiet, busy));
    let longest_gap_grew_ms = 1e3 * grew.fold(0.0, f64::max);
    let figures = Figures {
        prompt_tokens: 0,
        prompt_megabytes: 0.0,
        prompts: 0,
        streams: streams.len(),
        prompt_ms: Vec::new(),
        quiet: window(&streams, &checks.waits, quiet, busy),
        busy: window(&streams, &checks.waits, busy, end),
        longest_gap_grew_ms,
        failures,
    };
    let allowed = ALLOWED.as_secs_f64() * 1e3;
    let went_on = |waits: &Waits| within(waits, busy, end).next().is_some();
    let holds = figures.failures.is_empty()
        && streams.iter().all(went_on)
        && longest_gap_grew_ms <= allowed
        && figures.busy.healthz_max_ms < allowed;
    Outcome { holds, figures }
}

/// Notes why a task has ended that should not have.
async fn watched(seen: Watch, task: impl Future<Output = anyhow::Result<()>>) {
    let why = match task.await {
        Ok(()) => "it ended before it was told to".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    seen.lock().failed = Some(why);
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
async fn follow(target: Target, n: usize, seen: Watch) -> anyhow::Result<()> {
    let events = (QUIET + LONGEST).as_millis() as u64 / EVENT_MS;
    let body = json!({"model": SOURCE, "stream": true, "events": events, "interval_ms": EVENT_MS,
        "messages": [{"role": "user", "content": format!("Stream {n}")}]});
    seen.lock().asked(Instant::now());
    let answer = target.chat(&body.to_string()).await?;
    anyhow::ensure!(answer.status == 200, "a stream was answered with {}", answer.status);
    let reading = answer.events(|now, _| {
        let mut seen = seen.lock();
        seen.came(now);
        seen.asked(now);
    });
    anyhow::ensure!(reading.await?.whole, "a stream broke off");
    Ok(())
}

async fn check_health(target: Target, seen: Watch) -> anyhow::Result<()> {
    seen.lock().asked(Instant::now());
    let mut stream = target.connect().await?;
    let ask = target.head("GET", "/healthz", 0);
    let mut buffer = [0; 1024];
    loop {
        seen.lock().asked(Instant::now());
        stream.write_all(ask.as_bytes()).await?;
        let read = stream.read(&mut buffer).await?;
        anyhow::ensure!(buffer[..read].starts_with(b"HTTP/1.1 200"), "a health check failed");
        seen.lock().came(Instant::now());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges two streams and the checks, which wait so often and so long in either window; then
    /// `then` happens to one of the streams, or to the checks.
    fn judged(then: impl Fn(&mut Seen, Instant), on_checks: bool) -> bool {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let seen = |step: u64, cut: bool| {
            let mut seen = Seen::default();
            seen.asked(start);
            for ms in (step..2000).step_by(step as usize) {
                if cut && ms >= 1500 {
                    then(&mut seen, at(ms));
                    break;
                }
                seen.came(at(ms));
                seen.asked(at(ms));
            }
            seen.until(at(2000))
        };
        let streams = vec![seen(20, false), seen(20, !on_checks)];
        judge(streams, seen(5, on_checks), [at(100), at(1000), at(2000)]).holds
    }

    #[test]
    fn streams_and_checks_that_go_on_hold() {
        assert!(judged(|seen, now| seen.until_now(now), false));
        assert!(judged(|seen, now| seen.until_now(now), true));
    }

    #[test]
    fn what_fails_falls_silent_or_never_comes_does_not_hold() {
        for on_checks in [false, true] {
            assert!(!judged(|_, _| (), on_checks), "it hangs");
            assert!(!judged(|seen, _| seen.failed = Some("it broke".to_owned()), on_checks));
            let failed = || Seen { failed: Some("refused".to_owned()), ..Seen::default() };
            assert!(!judged(|seen, _| *seen = failed(), on_checks), "it never began");
            assert!(!judged(|seen, _| *seen = Seen::default(), on_checks), "nothing was seen");
        }
    }

    impl Seen {
        /// All has come that was waited for, up to half a second later.
        fn until_now(&mut self, now: Instant) {
            for ms in (0..500).step_by(5) {
                self.came(now + Duration::from_millis(ms));
                self.asked(now + Duration::from_millis(ms));
            }
        }
    }
}
