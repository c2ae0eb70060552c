//! Clients that go away: the engine is told at once, and nothing is held any more.

use std::time::Duration;

use integration_tests::client::Open;
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::chat;
use integration_tests::scenarios::hangups::{self, Phase};
use integration_tests::wait::{PATIENCE, eventually};
use warmpath::double::{DoubleHandle, Fault};

/// What closing the engine's connection may take.
const BOUND: Duration = Duration::from_millis(100);
/// Hang-ups of each kind; the middle one counts, as a machine may be busy.
const TIMES: usize = 5;
const CHAT: &str = "/v1/chat/completions";

async fn one_engine(config: &str) -> Cluster {
    let double =
        |_, double: warmpath::double::Double| double.itl(Duration::from_millis(10)).max_running(1);
    Cluster::builder().engines(1).double(double).config(config).build().await
}

fn load(double: &DoubleHandle) -> u32 {
    let stats = double.stats();
    stats.running + stats.waiting
}

/// Waits until so many sequences are in the engine.
async fn in_engine(double: &DoubleHandle, count: u32) {
    eventually(PATIENCE, "the engine has it", || async { load(double) == count }).await;
}

/// Hangs up, and returns how long the engine's connection was still open, and its sequence there.
async fn time_to_close(double: &DoubleHandle, open: Open, reset: bool) -> Duration {
    let (sockets, left) = (double.stats().open_sockets, load(double).saturating_sub(1));
    open.hang_up(reset);
    let closed = || async { double.stats().open_sockets < sockets && load(double) <= left };
    eventually(PATIENCE, "the engine's connection is closed", closed).await
}

#[track_caller]
fn assert_quick(phase: &str, mut times: Vec<Duration>) {
    times.sort();
    assert!(times[times.len() / 2] < BOUND, "{phase}: {times:?}");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_closes_the_engines_connection() {
    let cluster = one_engine("").await;
    let (client, double) = (cluster.client(), &cluster.doubles()[0]);
    // Another request keeps the only place, so that these wait in the engine.
    let busy = client.open(CHAT, &chat("Busy", 4000, true)).await;
    in_engine(double, 1).await;
    let mut times = Vec::new();
    for n in 0..TIMES {
        let open = client.open(CHAT, &chat(&format!("Waits {n}"), 50, n % 2 == 0)).await;
        in_engine(double, 2).await;
        times.push(time_to_close(double, open, n % 2 == 1).await);
    }
    assert_quick("waiting in the engine", times);
    busy.hang_up(false);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_engines_answer_begins_closes_its_connection() {
    let cluster = one_engine("").await;
    let (client, double) = (cluster.client(), &cluster.doubles()[0]);
    double.set_fault("delay=60000".parse::<Fault>().unwrap());
    let mut times = Vec::new();
    for n in 0..TIMES {
        let before = double.stats().requests;
        let open = client.open(CHAT, &chat("No head", 5, n % 2 == 0)).await;
        let arrived = || async { double.stats().requests > before };
        eventually(PATIENCE, "the engine has read it", arrived).await;
        times.push(time_to_close(double, open, n % 2 == 1).await);
    }
    assert_quick("before the answer", times);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_the_beginning_is_held_back_closes_the_engines_connection() {
    let cluster = one_engine("").await;
    let (client, double) = (cluster.client(), &cluster.doubles()[0]);
    // A comment and the role, and then nothing: all of it is held back.
    let faults = ["comments=1", "stall-after=0"].map(|f| f.parse::<Fault>().unwrap());
    double.set_faults(faults.to_vec());
    let mut times = Vec::new();
    for n in 0..TIMES {
        let mut open = client.open(CHAT, &chat(&format!("Held {n}"), 2000, true)).await;
        in_engine(double, 1).await;
        open.linger(Duration::from_millis(20)).await;
        assert_eq!(open.seen(), "", "nothing is handed on before the first content");
        times.push(time_to_close(double, open, n % 2 == 1).await);
    }
    assert_quick("while held back", times);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_stream_closes_the_engines_connection() {
    let cluster = one_engine("").await;
    let (client, double) = (cluster.client(), &cluster.doubles()[0]);
    let mut times = Vec::new();
    for n in 0..TIMES {
        let mut open = client.open(CHAT, &chat(&format!("Streams {n}"), 2000, true)).await;
        assert!(open.read_until(b"\"content\":", 3).await);
        times.push(time_to_close(double, open, n % 2 == 1).await);
    }
    assert_quick("in mid-stream", times);
    cluster.assert_idle().await;
    let cancelled = cluster.metrics().await.value("warmpath_edge_upstream_cancelled_total", &[]);
    assert_eq!(cancelled as usize, TIMES);
    cluster.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_its_whole_answer_is_made_closes_the_engines_connection() {
    let cluster = one_engine("").await;
    let (client, double) = (cluster.client(), &cluster.doubles()[0]);
    let mut times = Vec::new();
    for n in 0..TIMES {
        let open = client.open(CHAT, &chat(&format!("Whole {n}"), 2000, false)).await;
        in_engine(double, 1).await;
        times.push(time_to_close(double, open, n % 2 == 1).await);
    }
    assert_quick("not streaming", times);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_cancelled_request_gives_its_permit_back() {
    let limit = "[[tenants]]\nid = \"anonymous\"\nmax_concurrency = 4";
    let cluster = one_engine(limit).await;
    let (client, double) = (cluster.client(), &cluster.doubles()[0]);
    for round in 0..5 {
        let mut opened = Vec::new();
        for n in 0..4_u32 {
            opened.push(client.open(CHAT, &chat(&format!("{round} {n}"), 500, true)).await);
            in_engine(double, n + 1).await;
        }
        let refused = client.chat(chat("One too many", 1, false)).await;
        refused.assert_error(429, "concurrency_limit_exceeded");
        assert!(refused.number("retry-after") >= 1);
        opened.into_iter().for_each(|open| open.hang_up(false));
        in_engine(double, 0).await;
        cluster.assert_idle().await;
    }
    let reply = client.chat(chat("Afterwards", 1, false)).await;
    assert_eq!(reply.status, 200);
    cluster.stop().await;
}

#[tokio::test]
async fn nothing_is_held_after_thousands_of_hangups_in_every_phase() {
    let report = hangups::run(2_000).await;
    assert_eq!(report.hangups.len(), Phase::ALL.len());
    assert_eq!(report.held, Default::default());
    assert_eq!(report.answered_afterwards, report.permits);
    assert!(report.outcomes["cancelled"] > 500, "{report:?}");
    assert_eq!(report.outcomes["internal_error"], 0);
}
