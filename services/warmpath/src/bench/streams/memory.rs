//! More bodies at once than there is memory for: some are held, the others are refused early.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Outcome;
use super::bed::{BODY_LIMIT, BODY_MEMORY, Bed, SOURCE};
use super::reader::{Answer, Target};

/// Bodies that are sent and never ended; together they are four times the memory for bodies.
const BODY_BYTES: usize = BODY_LIMIT / 2;
const BODIES: usize = 4 * BODY_MEMORY / BODY_BYTES;
/// How long a refusal is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// What memory may rise by beside the bodies: connections, and what their allocator keeps.
const SPARE_BYTES: u64 = 24 << 20;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    bodies: usize,
    body_mib: usize,
    limit_mib: usize,
    held: usize,
    refused_with_503: usize,
    others: usize,
    rss_before_mib: f64,
    rss_highest_mib: f64,
    /// A request after all of them is answered.
    served_after: bool,
}

pub(super) async fn measure(bed: &Bed) -> anyhow::Result<Outcome<Figures>> {
    let rss = || bed.gateway.used().map(|used| used.rss_bytes);
    let before = rss()?;
    let mut sending = JoinSet::new();
    for _ in 0..BODIES {
        sending.spawn(send(bed.edge()));
    }
    let mut highest = before;
    let (mut open, mut statuses) = (Vec::new(), Vec::new());
    loop {
        tokio::select! {
            Some(sent) = sending.join_next() => match sent? {
                Sent::Held(stream) => open.push(stream),
                Sent::Answered(status) => statuses.push(status),
            },
            () = tokio::time::sleep(Duration::from_millis(50)), if !sending.is_empty() => {}
            else => break,
        }
        highest = highest.max(rss()?);
    }
    let held = open.len();
    drop(open);
    let body = json!({"model": SOURCE, "stream": true,
        "messages": [{"role": "user", "content": "Hello."}]});
    let served_after = served(&bed.edge(), &body.to_string()).await;
    let refused = statuses.iter().filter(|status| **status == 503).count();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let figures = Figures {
        bodies: BODIES,
        body_mib: BODY_BYTES >> 20,
        limit_mib: BODY_MEMORY >> 20,
        held,
        refused_with_503: refused,
        others: statuses.len() - refused,
        rss_before_mib: mib(before),
        rss_highest_mib: mib(highest),
        served_after,
    };
    let holds = figures.others == 0
        && held * BODY_BYTES <= BODY_MEMORY
        && held > 0
        && served_after
        && highest - before <= BODY_MEMORY as u64 + SPARE_BYTES;
    Ok(Outcome { holds, figures })
}

enum Sent {
    /// All but its last byte is there, and there is no answer.
    Held(TcpStream),
    Answered(u16),
}

async fn send(target: Target) -> Sent {
    match try_send(&target).await {
        Ok(sent) => sent,
        // The refusal was lost with the connection.
        Err(_) => Sent::Answered(0),
    }
}

async fn try_send(target: &Target) -> std::io::Result<Sent> {
    let mut stream = target.connect().await?;
    stream.write_all(target.head("POST", "/v1/chat/completions", BODY_BYTES).as_bytes()).await?;
    let piece = vec![b' '; 64 << 10];
    let mut left = BODY_BYTES - 1;
    while left > 0 {
        let now = left.min(piece.len());
        // A server that refuses closes: its answer is read all the same.
        if stream.write_all(&piece[..now]).await.is_err() {
            break;
        }
        left -= now;
    }
    let mut first = [0];
    match timeout(PATIENCE, stream.peek(&mut first)).await {
        Err(_) => Ok(Sent::Held(stream)),
        Ok(_) => Ok(Sent::Answered(Answer::read(stream).await?.status)),
    }
}

/// Whether a request is answered whole, soon.
async fn served(target: &Target, body: &str) -> bool {
    for _ in 0..50 {
        if let Ok(answer) = target.chat(body).await
            && answer.status == 200
            && let Ok(came) = answer.events(|_, _| ()).await
        {
            return came.whole;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}
