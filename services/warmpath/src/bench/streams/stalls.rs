//! Many streams at once: how long events keep their readers waiting, with the gateway and without.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bed::{Bed, DOUBLE};
use super::reader::Target;
use super::{Args, Outcome};
use crate::stats::{quantile, sorted};

/// Between two events of a stream, so long a wait is a stall.
const STALL: Duration = Duration::from_millis(200);
/// Between two streams that begin: the system's queue of connections is not what is measured.
const BETWEEN_CONNECTS: Duration = Duration::from_millis(2);
/// How many more stalls than without the gateway are allowed in a thousand streams.
const ALLOWED_PER_THOUSAND: f64 = 1.0;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    streams: usize,
    events_per_second: f64,
    seconds: u32,
    stalls_per_1000_streams: [Named; 2],
    rounds: Vec<Round>,
}

#[derive(Debug, Serialize)]
struct Named {
    target: &'static str,
    stalls: f64,
}

#[derive(Debug, Serialize)]
struct Round {
    target: &'static str,
    round: usize,
    streams: usize,
    /// Streams that did not come whole.
    failed: usize,
    events: usize,
    stalls: usize,
    gap_p50_ms: f64,
    gap_p99_ms: f64,
    gap_p99_9_ms: f64,
    gap_max_ms: f64,
    engine_cores: f64,
    gateway_cores: f64,
}

pub(super) async fn measure(bed: &Bed, args: &Args) -> anyhow::Result<Outcome<Figures>> {
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let mut targets = [("direct", bed.direct()), ("gateway", bed.edge())];
        if round % 2 == 1 {
            targets.reverse();
        }
        for (name, target) in targets {
            rounds.push(one_round(bed, args, (name, target), round).await?);
            eprintln!("{}", serde_json::to_string(&rounds[rounds.len() - 1])?);
        }
    }
    let per_thousand = |target: &'static str| {
        let of = || rounds.iter().filter(|round| round.target == target);
        let (stalls, streams) = of().fold((0, 0), |(a, b), r| (a + r.stalls, b + r.streams));
        Named { target, stalls: 1e3 * stalls as f64 / streams.max(1) as f64 }
    };
    let found = [per_thousand("direct"), per_thousand("gateway")];
    let failed: usize = rounds.iter().map(|round| round.failed).sum();
    let holds = failed == 0 && found[1].stalls <= found[0].stalls + ALLOWED_PER_THOUSAND;
    let figures = Figures {
        streams: args.streams,
        events_per_second: f64::from(args.rate),
        seconds: args.seconds,
        stalls_per_1000_streams: found,
        rounds,
    };
    Ok(Outcome { holds, figures })
}

async fn one_round(
    bed: &Bed,
    args: &Args,
    (name, target): (&'static str, Target),
    round: usize,
) -> anyhow::Result<Round> {
    let tokens = u64::from(args.rate * args.seconds);
    let (cpu, began) = (bed.cpu()?, Instant::now());
    let mut reading = JoinSet::new();
    for n in 0..args.streams {
        let body = body(&format!("{name} {round} {n}"), tokens);
        reading.spawn(gaps(target.clone(), body, tokens));
        tokio::time::sleep(BETWEEN_CONNECTS).await;
    }
    let streams = reading.join_all().await;
    let (seconds, after) = (began.elapsed().as_secs_f64(), bed.cpu()?);
    let failed = streams.iter().filter(|stream| stream.is_none()).count();
    let gaps = sorted(streams.into_iter().flatten().flatten().collect());
    let ms = |q: f64| 1e3 * quantile(&gaps, q).unwrap_or(0.0);
    Ok(Round {
        target: name,
        round,
        streams: args.streams,
        failed,
        events: gaps.len(),
        stalls: gaps.iter().filter(|gap| **gap > STALL.as_secs_f64()).count(),
        gap_p50_ms: ms(0.5),
        gap_p99_ms: ms(0.99),
        gap_p99_9_ms: ms(0.999),
        gap_max_ms: ms(1.0),
        engine_cores: (after.0 - cpu.0) / seconds,
        gateway_cores: (after.1 - cpu.1) / seconds,
    })
}

fn body(text: &str, tokens: u64) -> String {
    json!({"model": DOUBLE, "stream": true, "max_tokens": tokens,
        "messages": [{"role": "user", "content": text}]})
    .to_string()
}

/// Seconds between the events of one stream; `None` if it did not come whole.
async fn gaps(target: Target, body: String, tokens: u64) -> Option<Vec<f64>> {
    let answer = target.chat(&body).await.ok()?;
    let (mut last, mut gaps) = (None::<Instant>, Vec::with_capacity(tokens as usize));
    let came = answer.events(|now, _| {
        gaps.extend(last.replace(now).map(|last| (now - last).as_secs_f64()));
    });
    let came = came.await.ok()?;
    (came.whole && came.events >= tokens).then_some(gaps)
}
