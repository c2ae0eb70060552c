//! The two ways to offer load: at a fixed rate whatever comes back (open loop), or a fixed
//! number of clients that wait for their answers (closed loop).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::load::LoadClient;

/// Times of one answered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// To the first content.
    pub(crate) ttft: Duration,
    /// To the last byte.
    pub(crate) total: Duration,
}

/// A request's times, or `None` if it failed.
pub(crate) type Sample = Option<Timing>;

/// Sends each body at its scheduled time. Times count from the *schedule*, so that a stalled
/// target is charged for the requests that it kept from being sent.
pub(crate) async fn open_loop(
    client: &LoadClient,
    url: &str,
    bodies: Vec<Bytes>,
    per_second: f64,
) -> (Vec<Sample>, Duration) {
    let url: Arc<str> = url.into();
    let started = Instant::now();
    let mut requests = JoinSet::new();
    for (n, body) in bodies.into_iter().enumerate() {
        let scheduled = started + Duration::from_secs_f64(n as f64 / per_second);
        tokio::time::sleep_until(scheduled).await;
        let (client, url) = (client.clone(), url.clone());
        requests.spawn(async move {
            let late = scheduled.elapsed();
            let answer = client.stream(&url, body).await.ok()?;
            Some(Timing { ttft: answer.ttft + late, total: answer.total + late })
        });
    }
    let mut samples = Vec::with_capacity(requests.len());
    while let Some(sample) = requests.join_next().await {
        samples.push(sample.ok().flatten());
    }
    (samples, started.elapsed())
}

/// Sends `count` requests over `concurrency` clients, the bodies in turn.
pub(crate) async fn closed_loop(
    client: &LoadClient,
    url: &str,
    bodies: &[Bytes],
    concurrency: usize,
    count: usize,
) -> (Vec<Sample>, Duration) {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let (client, url, bodies) = (client.clone(), url.to_owned(), bodies.to_vec());
        let next = next.clone();
        workers.spawn(async move {
            let mut samples = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return samples;
                }
                let answer = client.stream(&url, bodies[n % bodies.len()].clone()).await;
                samples.push(answer.ok().map(|a| Timing { ttft: a.ttft, total: a.total }));
            }
        });
    }
    let samples = workers.join_all().await.concat();
    (samples, started.elapsed())
}

/// Ports of the loopback interface that were free a moment ago.
///
/// # Errors
/// When the system has none to give.
pub(crate) fn free_ports<const N: usize>() -> std::io::Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
