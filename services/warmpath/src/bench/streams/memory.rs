//! More bodies at once than there is memory for: some are held, the others are refused early. And
//! one long body of token ids that is edited: little more than itself is held for it.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Outcome;
use super::bed::{ALIAS, BODY_LIMIT, BODY_MEMORY, Bed, SOURCE};
use super::reader::{Answer, Target};

/// Bodies that are sent and never ended; together they are four times the memory for bodies.
const BODY_BYTES: usize = 8 << 20;
const BODIES: usize = 4 * BODY_MEMORY / BODY_BYTES;
/// A body of token ids.
const IDS_BYTES: usize = BODY_LIMIT - (4 << 20);
/// How often what is resident is read meanwhile.
const GLANCE: Duration = Duration::from_millis(5);
/// When it is read after the answer.
const AFTER: Duration = Duration::from_secs(1);
/// What is sent of one at a time.
const PIECE_BYTES: usize = 64 << 10;
/// How long a refusal is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// What memory may rise by beside the bodies: connections, and what their allocator keeps.
const SPARE_BYTES: u64 = 24 << 20;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    bodies: usize,
    body_mib: usize,
    limit_mib: usize,
    rss_before_mib: f64,
    with_length: Wave,
    in_chunks: Wave,
    token_ids: Ids,
}

/// A long prompt of token ids to an alias.
#[derive(Debug, Serialize)]
struct Ids {
    body_mib: usize,
    status: u16,
    rss_grew_mib: f64,
    rss_grew_after_mib: f64,
    #[serde(skip)]
    grew: [u64; 2],
}

/// All of the bodies at once.
#[derive(Debug, Serialize)]
struct Wave {
    held: usize,
    refused_with_503: usize,
    others: usize,
    rss_highest_mib: f64,
    /// A request after all of them is answered.
    served_after: bool,
    #[serde(skip)]
    rss_highest: u64,
}

/// How the gateway is told where a body ends.
#[derive(Clone, Copy)]
enum Framing {
    Length,
    Chunks,
}

pub(super) async fn measure(bed: &Bed) -> anyhow::Result<Outcome<Figures>> {
    let token_ids = token_ids(bed).await?;
    let before = bed.gateway.used()?.rss_bytes;
    let with_length = wave(bed, Framing::Length).await?;
    let in_chunks = wave(bed, Framing::Chunks).await?;
    let most = before + BODY_MEMORY as u64 + SPARE_BYTES;
    let [grew, after] = token_ids.grew;
    let ids_hold =
        token_ids.status == 200 && grew <= IDS_BYTES as u64 + SPARE_BYTES && after <= SPARE_BYTES;
    let waves_hold = [&with_length, &in_chunks].into_iter().all(|wave| {
        wave.others == 0
            && wave.held * BODY_BYTES <= BODY_MEMORY
            && wave.held > 0
            && wave.served_after
            && wave.rss_highest <= most
    });
    let figures = Figures {
        bodies: BODIES,
        body_mib: BODY_BYTES >> 20,
        limit_mib: BODY_MEMORY >> 20,
        rss_before_mib: mib(before),
        with_length,
        in_chunks,
        token_ids,
    };
    Ok(Outcome { holds: waves_hold && ids_hold, figures })
}

/// As many ids as fit: one digit each.
async fn token_ids(bed: &Bed) -> anyhow::Result<Ids> {
    let head = format!(r#"{{"model":"{ALIAS}","prompt":["#);
    let ids = "7,".repeat((IDS_BYTES - head.len()) / 2 - 1);
    let body = [&head, &ids, "7]}"].concat();
    let before = bed.gateway.used()?.rss_bytes;
    let target = bed.edge();
    let sent = async {
        let answer = target.post("/v1/completions", &body).await?;
        let status = answer.status;
        answer.events(|_, _| ()).await?;
        std::io::Result::Ok(status)
    };
    let mut sent = std::pin::pin!(sent);
    let mut highest = before;
    let status = loop {
        tokio::select! {
            status = &mut sent => break status?,
            () = tokio::time::sleep(GLANCE) => {}
        }
        highest = highest.max(bed.gateway.used()?.rss_bytes);
    };
    tokio::time::sleep(AFTER).await;
    let after = bed.gateway.used()?.rss_bytes;
    let grew = [highest, after].map(|bytes| bytes.saturating_sub(before));
    let [rss_grew_mib, rss_grew_after_mib] = grew.map(mib);
    Ok(Ids { body_mib: body.len() >> 20, status, rss_grew_mib, rss_grew_after_mib, grew })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

async fn wave(bed: &Bed, framing: Framing) -> anyhow::Result<Wave> {
    let mut sending = JoinSet::new();
    for _ in 0..BODIES {
        sending.spawn(send(bed.edge(), framing));
    }
    let mut highest = 0;
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
        highest = highest.max(bed.gateway.used()?.rss_bytes);
    }
    let held = open.len();
    drop(open);
    let body = json!({"model": SOURCE, "stream": true,
        "messages": [{"role": "user", "content": "Hello."}]});
    let served_after = served(&bed.edge(), &body.to_string()).await;
    let refused = statuses.iter().filter(|status| **status == 503).count();
    Ok(Wave {
        held,
        refused_with_503: refused,
        others: statuses.len() - refused,
        rss_highest_mib: mib(highest),
        served_after,
        rss_highest: highest,
    })
}

enum Sent {
    /// All but its last byte is there, and there is no answer.
    Held(TcpStream),
    Answered(u16),
}

async fn send(target: Target, framing: Framing) -> Sent {
    match try_send(&target, framing).await {
        Ok(sent) => sent,
        // The refusal was lost with the connection.
        Err(_) => Sent::Answered(0),
    }
}

async fn try_send(target: &Target, framing: Framing) -> std::io::Result<Sent> {
    let mut stream = target.connect().await?;
    let head = target.head("POST", "/v1/chat/completions", BODY_BYTES);
    let head = match framing {
        Framing::Length => head,
        Framing::Chunks => {
            head.replace(&format!("content-length: {BODY_BYTES}"), "transfer-encoding: chunked")
        }
    };
    stream.write_all(head.as_bytes()).await?;
    let mut left = BODY_BYTES - 1;
    while left > 0 {
        let now = left.min(PIECE_BYTES);
        let piece = match framing {
            Framing::Length => vec![b' '; now],
            Framing::Chunks => {
                [format!("{now:x}\r\n").as_bytes(), &vec![b' '; now], b"\r\n"].concat()
            }
        };
        // A server that refuses closes: its answer is read all the same.
        if stream.write_all(&piece).await.is_err() {
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
