use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::get;
use instrumentation::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

use super::*;
use crate::{Lifecycle, Readiness, ShutdownOutcome, admin, bind};

const LONG: Duration = Duration::from_secs(20);

async fn start(lifecycle: &Lifecycle, router: Router, limits: ServeLimits) -> SocketAddr {
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    lifecycle.spawn("http", serve(listener, router, limits, lifecycle.spawner()));
    address
}

/// Sends the text and reads until the server closes.
async fn exchange(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn fetch(address: SocketAddr, path: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await
}

#[tokio::test]
async fn the_admin_port_tells_health_readiness_and_metrics() {
    let lifecycle = Lifecycle::new();
    let (registry, readiness) = (Registry::new(), Readiness::new(lifecycle.drain()));
    lifecycle.register(&registry).unwrap();
    readiness.require("fleet");
    let router = admin::router(registry, readiness.clone());
    let address = start(&lifecycle, router, ServeLimits::ADMIN).await;

    assert!(fetch(address, "/healthz").await.starts_with("HTTP/1.1 200 OK"));
    let waiting = fetch(address, "/readyz").await;
    assert!(waiting.starts_with("HTTP/1.1 503"), "{waiting}");
    assert!(waiting.contains(r#""missing":["fleet"]"#), "{waiting}");
    readiness.set("fleet", true);
    assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    let metrics = fetch(address, "/metrics").await;
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains(r#"warmpath_tasks_running{task="http"} 1"#), "{metrics}");
    assert!(fetch(address, "/else").await.starts_with("HTTP/1.1 404"));
    assert_eq!(lifecycle.shutdown(LONG).await, ShutdownOutcome::Clean);
}

#[tokio::test]
async fn readiness_is_refused_while_draining_with_the_admin_port_still_up() {
    let lifecycle = Lifecycle::new();
    let readiness = Readiness::new(lifecycle.drain());
    let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    let background = lifecycle.background();
    let router = admin::router(Registry::new(), readiness);
    background.spawn("admin", serve(listener, router, ServeLimits::ADMIN, background.clone()));
    lifecycle.begin_drain();
    let answer = fetch(address, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains(r#""draining":true"#), "{answer}");
    assert_eq!(lifecycle.shutdown(LONG).await, ShutdownOutcome::Clean);
}

#[tokio::test]
async fn a_drain_lets_the_request_in_flight_finish_and_takes_no_new_connection() {
    let lifecycle = Lifecycle::new();
    let release = Arc::new(Notify::new());
    let (entered, mut arrived) = mpsc::channel::<()>(1);
    let gate = release.clone();
    let router = Router::new().route(
        "/",
        get(async move || {
            let _ = entered.send(()).await;
            gate.notified().await;
            "served"
        }),
    );
    let address = start(&lifecycle, router, ServeLimits::ADMIN).await;
    let request = async { exchange(address, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await };
    let drain = async {
        arrived.recv().await.unwrap();
        lifecycle.begin_drain();
        // The listener is gone once the accept loop has ended.
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        release.notify_one();
        lifecycle.shutdown(LONG).await
    };
    let (answer, outcome) = tokio::join!(request, drain);
    assert!(answer.ends_with("served"), "{answer}");
    assert_eq!(outcome, ShutdownOutcome::Clean);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_bound_wait_and_are_all_served() {
    let lifecycle = Lifecycle::new();
    let (current, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let highest = peak.clone();
    let router = Router::new().route(
        "/",
        get(async move || {
            highest.fetch_max(current.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            current.fetch_sub(1, Ordering::SeqCst);
            "served"
        }),
    );
    let limits = ServeLimits { max_connections: 2, ..ServeLimits::ADMIN };
    let address = start(&lifecycle, router, limits).await;
    let answers = futures_util::future::join_all((0..16).map(|_| fetch(address, "/"))).await;
    assert!(answers.iter().all(|answer| answer.ends_with("served")));
    assert!((1..=2).contains(&peak.load(Ordering::SeqCst)));
    assert_eq!(lifecycle.shutdown(LONG).await, ShutdownOutcome::Clean);
}

#[tokio::test]
async fn a_head_that_does_not_arrive_in_time_is_cut_off() {
    let lifecycle = Lifecycle::new();
    let limits = ServeLimits { header_timeout: Duration::from_millis(50), ..ServeLimits::ADMIN };
    let address = start(&lifecycle, Router::new(), limits).await;
    let answer = tokio::time::timeout(LONG, exchange(address, "GET / HTTP/1.1\r\nhos")).await;
    assert!(!answer.unwrap().contains("200 OK"));
    assert_eq!(lifecycle.shutdown(LONG).await, ShutdownOutcome::Clean);
}

#[tokio::test]
async fn clients_that_ask_nothing_or_read_nothing_do_not_keep_the_port() {
    let lifecycle = Lifecycle::new();
    let limits = ServeLimits { header_timeout: Duration::from_millis(50), max_connections: 2 };
    let router = Router::new().route("/", get(async || "x".repeat(64 << 10)));
    let address = start(&lifecycle, router, limits).await;
    let unread = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(400);
    for said in ["", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", unread.as_str()] {
        let mut held = Vec::new();
        for _ in 0..limits.max_connections {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said.as_bytes()).await.unwrap();
            held.push(stream);
        }
        let answer = tokio::time::timeout(LONG, fetch(address, "/")).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(lifecycle.shutdown(LONG).await, ShutdownOutcome::Clean);
}
