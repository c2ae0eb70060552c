//! Connections on which nothing happens: what they cost, and whether others notice.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::bed::{Bed, SOURCE};
use super::{Args, Outcome};
use crate::stats::{quantile, sorted};

/// Requests whose time is taken, without idle connections and beside them.
const REQUESTS: usize = 200;
/// Descriptors come and go beside those that are looked at: connections to engines.
const SPARE: usize = 8;
/// Descriptors that this process needs for other things.
const OWN: u64 = 256;
/// How long the gateway may take to notice that connections are gone.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    /// As many as asked for, or as the system's limit of descriptors allows.
    connections: usize,
    seconds_to_open: f64,
    kib_per_connection: f64,
    p50_ms: f64,
    p99_ms: f64,
    p50_beside_ms: f64,
    p99_beside_ms: f64,
    failed: usize,
    descriptors_before: usize,
    descriptors_at_most: usize,
    descriptors_after: usize,
}

pub(super) async fn measure(bed: &Bed, args: &Args) -> anyhow::Result<Outcome<Figures>> {
    let connections = allowed(args.connections)?;
    let alone = requests(bed).await;
    let (before, rss) = (bed.gateway.descriptors()?, bed.gateway.used()?.rss_bytes);
    let (began, mut open) = (Instant::now(), Vec::with_capacity(connections));
    for _ in 0..connections {
        open.push(bed.edge().connect().await?);
    }
    // Taken is more than connected: the system's queue connects, too.
    while bed.gateway.descriptors()? + SPARE < before + connections && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seconds_to_open = began.elapsed().as_secs_f64();
    let beside = requests(bed).await;
    let most = bed.gateway.descriptors()?;
    let rise = bed.gateway.used()?.rss_bytes.saturating_sub(rss);
    drop(open);
    let closed = Instant::now();
    while bed.gateway.descriptors()? > before + SPARE && closed.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let ms = |times: &[f64], q: f64| 1e3 * quantile(times, q).unwrap_or(0.0);
    let figures = Figures {
        connections,
        seconds_to_open,
        kib_per_connection: rise as f64 / 1024.0 / connections.max(1) as f64,
        p50_ms: ms(&alone, 0.5),
        p99_ms: ms(&alone, 0.99),
        p50_beside_ms: ms(&beside, 0.5),
        p99_beside_ms: ms(&beside, 0.99),
        failed: 2 * REQUESTS - alone.len() - beside.len(),
        descriptors_before: before,
        descriptors_at_most: most,
        descriptors_after: bed.gateway.descriptors()?,
    };
    let holds = figures.failed == 0
        && most + SPARE >= before + connections
        && figures.descriptors_after <= before + SPARE;
    Ok(Outcome { holds, figures })
}

/// As many connections as were asked for, where that many descriptors may be open.
fn allowed(asked: usize) -> anyhow::Result<usize> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let most = maximum.map_or(u64::MAX, |maximum| maximum.saturating_sub(OWN));
    Ok(usize::try_from(most).unwrap_or(usize::MAX).min(asked))
}

/// Seconds of requests that came whole, one after the other.
async fn requests(bed: &Bed) -> Vec<f64> {
    let body = json!({"model": SOURCE, "stream": true, "events": 4,
        "messages": [{"role": "user", "content": "Hello."}]})
    .to_string();
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let began = Instant::now();
        let Ok(answer) = bed.edge().chat(&body).await else { continue };
        if answer.events(|_, _| ()).await.is_ok_and(|came| came.whole) {
            times.push(began.elapsed().as_secs_f64());
        }
    }
    sorted(times)
}
