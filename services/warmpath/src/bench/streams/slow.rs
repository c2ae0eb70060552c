//! A long stream to a reader that takes little: what of it stands in the gateway's memory.

use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::bed::{Bed, SOURCE};
use super::{Args, Outcome};

/// Resident memory may rise by so much.
const ALLOWED_BYTES: u64 = 2 << 20;
const MEGABYTE: u64 = 1_000_000;
const EVENT_BYTES: u64 = 4096;
/// Streams read before, so that what is allocated once is there.
const WARM_STREAMS: usize = 4;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    megabytes: f64,
    seconds: f64,
    whole: bool,
    rss_before_mib: f64,
    rss_highest_mib: f64,
    rss_rise_mib: f64,
}

pub(super) async fn measure(bed: &Bed, args: &Args) -> anyhow::Result<Outcome<Figures>> {
    let rss = || bed.gateway.used().map(|used| used.rss_bytes);
    for _ in 0..WARM_STREAMS {
        bed.edge().chat(&body(8 * MEGABYTE)).await?.events(|_, _| ()).await?;
    }
    let (before, began) = (rss()?, Instant::now());
    let answer = bed.edge().chat(&body(args.megabytes * MEGABYTE)).await?;
    anyhow::ensure!(answer.status == 200, "the stream was answered with {}", answer.status);
    let mut highest = before;
    let came = answer.slowly(args.megabytes_per_second * MEGABYTE as f64, || {
        highest = highest.max(rss()?);
        Ok(())
    });
    let came = came.await?;
    let rise = highest - before;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let whole = came.whole && came.bytes >= args.megabytes * MEGABYTE;
    let figures = Figures {
        megabytes: came.bytes as f64 / MEGABYTE as f64,
        seconds: began.elapsed().as_secs_f64(),
        whole,
        rss_before_mib: mib(before),
        rss_highest_mib: mib(highest),
        rss_rise_mib: mib(rise),
    };
    Ok(Outcome { holds: whole && rise < ALLOWED_BYTES, figures })
}

fn body(bytes: u64) -> String {
    json!({"model": SOURCE, "stream": true, "messages": [{"role": "user", "content": "Go on."}],
        "events": bytes / EVENT_BYTES + 1, "event_bytes": EVENT_BYTES})
    .to_string()
}
