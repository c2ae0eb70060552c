//! One event of many megabytes: it passes, as it came.

use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::bed::{Bed, DOUBLE};
use super::{Args, Outcome};

const MEGABYTE: u64 = 1_000_000;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    event_megabytes: u64,
    targets: Vec<One>,
    rss_rise_mib: f64,
}

#[derive(Debug, Serialize)]
struct One {
    target: &'static str,
    events: u64,
    megabytes: f64,
    whole: bool,
    milliseconds: f64,
}

pub(super) async fn measure(bed: &Bed, args: &Args) -> anyhow::Result<Outcome<Figures>> {
    let bytes = args.event_megabytes * MEGABYTE;
    let fault = json!({"faults": [format!("giant={bytes},times=1")]}).to_string();
    let body = json!({"model": DOUBLE, "stream": true, "max_tokens": 3,
        "messages": [{"role": "user", "content": "Say much."}]})
    .to_string();
    let (before, mut targets) = (bed.gateway.used()?.rss_bytes, Vec::new());
    for (name, target) in [("direct", bed.direct()), ("gateway", bed.edge())] {
        let answer = bed.direct().post("/fault", &fault).await?;
        anyhow::ensure!(answer.status == 200, "the double takes no faults");
        let began = Instant::now();
        let came = target.chat(&body).await?.events(|_, _| ()).await?;
        targets.push(One {
            target: name,
            events: came.events,
            megabytes: came.bytes as f64 / MEGABYTE as f64,
            whole: came.whole && came.bytes > bytes,
            milliseconds: began.elapsed().as_secs_f64() * 1e3,
        });
    }
    let rise = bed.gateway.used()?.rss_bytes.saturating_sub(before);
    let holds = targets.iter().all(|one| one.whole) && targets[0].events == targets[1].events;
    let rss_rise_mib = rise as f64 / f64::from(1 << 20);
    Ok(Outcome {
        holds,
        figures: Figures { event_megabytes: args.event_megabytes, targets, rss_rise_mib },
    })
}
