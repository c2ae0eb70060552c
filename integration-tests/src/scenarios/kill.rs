//! Two engines under load, one of them killed, and started again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use domain::BackendState;
use futures_util::future::join_all;
use serde::Serialize;

use super::{chat, document};
use crate::client::{Client, Reply};
use crate::cluster::Cluster;
use crate::wait::{PATIENCE, eventually};

/// Clients, each with one request open at a time.
const CLIENTS: usize = 32;
/// Documents that the requests are about.
const DOCUMENTS: u64 = 8;
/// Output tokens: a request streams for most of its time, so that some do when the engine dies.
const TOKENS: u32 = 64;
/// Sequences that the engine runs when it is killed, at least.
const STREAMS: u32 = 6;
/// Words of a document.
const WORDS: usize = 300;

/// What a run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Requests sent.
    pub requests: usize,
    /// Whole answers.
    pub complete: usize,
    /// Answers that began, broke off, and said so by an error event and the end marker.
    pub interrupted: usize,
    /// Anything else: an error status, or a broken answer without a word.
    pub failed: usize,
    /// What those got.
    pub failures: Vec<String>,
    /// Attempts that were followed by another.
    pub retries: u64,
    /// Whether the restarted engine was sent requests again.
    pub came_back: bool,
    /// Blocks of a document it had held that it was believed to hold at its first request after
    /// the restart.
    pub matched_blocks_after_restart: u64,
    /// Blocks it was believed to hold before it was killed.
    pub matched_blocks_before: u64,
    /// From the start of the new process until it was shown as ready, in milliseconds.
    pub ready_again_ms: f64,
}

/// Runs it; the engine is killed after `before` requests, and `after` more are sent.
///
/// # Panics
/// The cluster does not come up, or does not come to rest.
pub async fn run(before: usize, after: usize) -> Report {
    let mut cluster = Cluster::builder()
        .engines(2)
        .double(|_, double| double.itl(Duration::from_millis(4)))
        .build()
        .await;
    let client = cluster.client();
    let mut report = Report::default();
    let victim = warm_up(&client).await;
    let before_kill = ask_about(&cluster, 0).await;
    report.matched_blocks_before = matched(&before_kill, &victim);

    let load = Load { client: &client, sent: AtomicUsize::new(0), stop: AtomicBool::new(false) };
    let kill = async {
        eventually(PATIENCE, "requests are sent", || async {
            load.sent.load(Ordering::Relaxed) >= before
        })
        .await;
        let streams = || async { cluster.double(&victim).stats().running >= STREAMS };
        eventually(PATIENCE, "the engine streams", streams).await;
        cluster.kill(&victim).await;
        let at = load.sent.load(Ordering::Relaxed);
        eventually(PATIENCE, "requests are sent after the kill", || async {
            load.sent.load(Ordering::Relaxed) >= at + after
        })
        .await;
        load.stop.store(true, Ordering::Relaxed);
    };
    let (replies, ()) = tokio::join!(load.run(), kill);
    for reply in replies {
        report.count(&reply);
    }
    report.retries = cluster.metrics().await.sum("warmpath_edge_retries_total", &[]) as u64;

    let restarted = tokio::time::Instant::now();
    await_state(&cluster, &victim, BackendState::Down).await;
    let (_, old_life) = cluster.published(&victim).expect("it is configured");
    cluster.restart(&victim).await;
    await_state(&cluster, &victim, BackendState::Ready).await;
    report.ready_again_ms = restarted.elapsed().as_secs_f64() * 1e3;
    let (_, new_life) = cluster.published(&victim).expect("it is configured");
    assert!(new_life > old_life, "another process is another incarnation");
    report.matched_blocks_after_restart = matched(&ask_about(&cluster, 0).await, &victim);
    report.came_back = comes_back(&cluster, &client, &victim).await;
    cluster.assert_idle().await;
    cluster.stop().await;
    report
}

/// Asks about every document; the backend that has the first one.
async fn warm_up(client: &Client) -> String {
    let mut first = String::new();
    for number in 0..DOCUMENTS {
        let reply = client.chat(question(number, 0, 2)).await;
        assert!(reply.events().is_complete(), "{}", reply.text());
        if number == 0 {
            first = reply.backend().to_owned();
        }
    }
    first
}

fn question(document_number: u64, number: usize, max_tokens: u32) -> String {
    let text = document(document_number, WORDS);
    chat(&format!("{text}\n\nQuestion {number}?"), max_tokens, true)
}

/// How the router explains where a question about a document went.
async fn ask_about(cluster: &Cluster, document_number: u64) -> serde_json::Value {
    let id = minted_id(cluster, document_number).await;
    cluster.explain(&id).await
}

/// Asks a question; the id that the gateway gave it.
async fn minted_id(cluster: &Cluster, document_number: u64) -> String {
    let reply = cluster.client().chat(question(document_number, 1, 1)).await;
    assert!(reply.events().is_complete(), "{}", reply.text());
    reply.header("x-request-id").to_owned()
}

/// Blocks that a backend was believed to hold of the request explained.
fn matched(explained: &serde_json::Value, backend: &str) -> u64 {
    let candidates = explained["attempts"][0]["candidates"].as_array();
    let of_backend =
        candidates.into_iter().flatten().find(|candidate| candidate["backend"] == backend);
    let matched = of_backend.and_then(|candidate| candidate["matched_blocks"].as_u64());
    matched.unwrap_or_else(|| panic!("{backend} is no candidate in {explained}"))
}

async fn await_state(cluster: &Cluster, backend: &str, state: BackendState) {
    let reached = || async { cluster.published(backend).is_some_and(|(now, _)| now == state) };
    eventually(PATIENCE, "the backend's state", reached).await;
}

/// Sends new documents until the backend is sent one.
async fn comes_back(cluster: &Cluster, client: &Client, backend: &str) -> bool {
    for number in 0..200 {
        let reply = client.chat(question(1000 + number, 0, 1)).await;
        if reply.backend() == backend {
            return cluster.double(backend).stats().requests > 0;
        }
    }
    false
}

struct Load<'a> {
    client: &'a Client,
    sent: AtomicUsize,
    stop: AtomicBool,
}

impl Load<'_> {
    async fn run(&self) -> Vec<Reply> {
        let clients = (0..CLIENTS).map(|_| async {
            let mut replies = Vec::new();
            while !self.stop.load(Ordering::Relaxed) {
                let number = self.sent.fetch_add(1, Ordering::Relaxed);
                // Every other one is about a document that the engine to be killed has.
                let document_number =
                    if number.is_multiple_of(2) { 0 } else { number as u64 % DOCUMENTS };
                replies.push(self.client.chat(question(document_number, number, TOKENS)).await);
            }
            replies
        });
        join_all(clients).await.into_iter().flatten().collect()
    }
}

impl Report {
    fn count(&mut self, reply: &Reply) {
        self.requests += 1;
        let events = reply.events();
        if reply.status == 200 && events.is_complete() && reply.whole {
            self.complete += 1;
        } else if reply.status == 200 && events.is_interrupted() && events.contents > 0 {
            self.interrupted += 1;
        } else {
            self.failed += 1;
            self.failures.push(format!("{}: {}", reply.status, reply.text()));
        }
    }
}
