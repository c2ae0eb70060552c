//! Clients that go away, in every phase of a request, many times over.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use serde::Serialize;
use tokio::time::Instant;

use super::chat;
use crate::client::Client;
use crate::cluster::{Cluster, OpenCounts};

/// Clients at a time.
const CONCURRENCY: usize = 64;
/// Requests that the tenant may have open. After the run as many are opened at once.
const PERMITS: usize = 256;

/// Where a request was when its client went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Only part of its body had been sent.
    HalfSent,
    /// All of it had been sent a moment ago.
    JustSent,
    /// The engine had it, and let it wait or computed its prompt.
    Waiting,
    /// It was streaming.
    MidStream,
    /// It does not stream, and the engine was generating.
    NotStreaming,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 5] =
        [Phase::HalfSent, Phase::JustSent, Phase::Waiting, Phase::MidStream, Phase::NotStreaming];
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Clients that went away, by phase.
    pub hangups: BTreeMap<Phase, usize>,
    /// How long they took, in seconds.
    pub seconds: f64,
    /// Until nothing was held any more after the last one, in milliseconds.
    pub settle_ms: f64,
    /// What was held then.
    pub held: OpenCounts,
    /// How the gateway counted the requests.
    pub outcomes: BTreeMap<String, u64>,
    /// Requests answered in full of as many as a tenant may have open, sent at once afterwards.
    pub answered_afterwards: usize,
    /// How many that is.
    pub permits: usize,
}

/// Sends `count` requests whose clients go away.
///
/// # Panics
/// The cluster does not come up, or something is held for ever.
pub async fn run(count: usize) -> Report {
    let cluster = Cluster::builder()
        .engines(2)
        .double(|_, double| double.max_running(16).itl(Duration::from_millis(5)))
        .config(&format!(
            "[[tenants]]\nid = \"anonymous\"\nmax_concurrency = {PERMITS}\ndebug_headers = true"
        ))
        .build()
        .await;
    let client = cluster.client();
    let started = Instant::now();
    let mut hangups = BTreeMap::new();
    let mut running =
        stream::iter(0..count).map(|number| hang_up(&client, number)).buffer_unordered(CONCURRENCY);
    while let Some(phase) = running.next().await {
        *hangups.entry(phase).or_default() += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    let settled = cluster.assert_idle().await;
    let held = cluster.held().await;
    let metrics = cluster.metrics().await;
    let outcomes = ["ok", "cancelled", "rejected", "upstream_error", "timeout", "internal_error"];
    let count_of = |outcome: &&str| {
        let labels = [("outcome", *outcome)];
        ((*outcome).to_owned(), metrics.sum("warmpath_edge_requests_total", &labels) as u64)
    };
    let outcomes = outcomes.iter().map(count_of).collect();
    let answered_afterwards = answered(&client, PERMITS).await;
    cluster.assert_idle().await;
    cluster.stop().await;
    Report {
        hangups,
        seconds,
        settle_ms: settled.as_secs_f64() * 1e3,
        held,
        outcomes,
        answered_afterwards,
        permits: PERMITS,
    }
}

async fn hang_up(client: &Client, number: usize) -> Phase {
    let phase = Phase::ALL[number % Phase::ALL.len()];
    // Some share a prefix, so that pins of one are pins of another.
    let content = format!("Question {} of document {}.", number, number % 7);
    let body = chat(&content, 200, phase != Phase::NotStreaming);
    let path = "/v1/chat/completions";
    let open = match phase {
        Phase::HalfSent => client.open_half(path, &body).await,
        _ => client.open(path, &body).await,
    };
    let mut open = open;
    match phase {
        Phase::HalfSent | Phase::JustSent => {}
        // Long enough for the request to reach the engine, too short for the whole answer.
        Phase::Waiting | Phase::NotStreaming => open.linger(Duration::from_millis(3)).await,
        Phase::MidStream => {
            open.read_until(b"\"content\":", 3).await;
        }
    }
    open.hang_up(number.is_multiple_of(2));
    phase
}

async fn answered(client: &Client, count: usize) -> usize {
    let answers = (0..count).map(|n| client.chat(chat(&format!("Afterwards {n}"), 1, true)));
    let replies = futures_util::future::join_all(answers).await;
    replies.iter().filter(|reply| reply.status == 200 && reply.events().is_complete()).count()
}
