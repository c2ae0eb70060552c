//! The task that keeps the connection.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::{Client, Event, ServerError};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lifecycle::Drain;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::config::NatsConfig;
use crate::Status;
use crate::metrics::Metrics;
use crate::queue::Queue;

/// What the client tells, waiting for this task. It tells little.
const EVENTS: usize = 64;
/// The first pause between two attempts. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What the bus and its connection share.
pub(super) struct Shared {
    client: watch::Sender<Option<Client>>,
    status: watch::Sender<Status>,
    queues: Mutex<Vec<Weak<Queue>>>,
    pub(super) metrics: Metrics,
}

impl Shared {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self {
            client: watch::Sender::new(None),
            status: watch::Sender::default(),
            queues: Mutex::default(),
            metrics,
        }
    }

    /// The client, if there is one; it need not be connected.
    pub(super) fn client(&self) -> Option<Client> {
        self.client.borrow().clone()
    }

    pub(super) fn clients(&self) -> watch::Receiver<Option<Client>> {
        self.client.subscribe()
    }

    pub(super) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Tells a subscriber of cuts from now on.
    pub(super) fn remember(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    fn connected(&self) {
        self.metrics.connected.set(1);
        self.metrics.connects.inc();
        self.status.send_modify(|status| {
            status.connected = true;
            status.connects += 1;
            status.last_error = None;
        });
    }

    fn disconnected(&self) {
        self.metrics.connected.set(0);
        self.status.send_modify(|status| status.connected = false);
    }

    fn failed(&self, error: &str) {
        self.status.send_if_modified(|status| {
            if status.last_error.as_deref() == Some(error) {
                return false;
            }
            // Once for each cause: a refused publish would log without end.
            tracing::warn!(error, "the bus reports an error");
            status.last_error = Some(error.into());
            true
        });
    }

    /// Messages may have been missed by everybody.
    fn cut(&self) {
        self.metrics.gaps.inc();
        self.queues.lock().iter().filter_map(Weak::upgrade).for_each(|queue| queue.cut());
    }
}

/// Keeps a connection until the bus is dropped or the process drains.
pub(super) async fn run(
    config: NatsConfig,
    shared: Arc<Shared>,
    closed: oneshot::Receiver<()>,
    drain: Drain,
) {
    tokio::select! {
        () = keep(&config, &shared) => {}
        _ = closed => {}
        () = drain.signaled() => {}
    }
    shared.disconnected();
    shared.client.send_replace(None);
}

async fn keep(config: &NatsConfig, shared: &Shared) {
    let mut attempt = 1;
    loop {
        let (tell, events) = mpsc::channel(EVENTS);
        match config.options(tell).connect(config.servers()).await {
            Ok(client) => {
                attempt = 1;
                shared.client.send_replace(Some(client.clone()));
                shared.connected();
                watch_over(client, events, shared).await;
                shared.client.send_replace(None);
                shared.disconnected();
                shared.metrics.gaps.inc();
            }
            Err(error) => {
                shared.failed(&error.to_string());
                tokio::time::sleep(pause(attempt, config.reconnect_limit())).await;
                attempt += 1;
            }
        }
    }
}

/// Follows what becomes of a client until it has given up.
async fn watch_over(client: Client, mut events: mpsc::Receiver<Event>, shared: &Shared) {
    // While the connection is away: resolves when it is back, or when the client has ended.
    let mut back: Option<BoxFuture<'static, bool>> = None;
    loop {
        let returned = async {
            match back.as_mut() {
                Some(back) => back.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // What was told comes before what follows from it.
            biased;
            event = events.recv() => match event {
                None => return,
                Some(Event::Disconnected) => {
                    shared.disconnected();
                    let client = client.clone();
                    // Commands are taken only while there is a connection, and this one is taken
                    // behind the subscriptions that are made anew.
                    back = Some(async move { client.flush().await.is_ok() }.boxed());
                }
                Some(Event::SlowConsumer(_)) => shared.cut(),
                Some(Event::ServerError(error)) => shared.failed(&text(&error)),
                Some(Event::ClientError(error)) => shared.failed(&error.to_string()),
                Some(_) => {}
            },
            alive = returned => {
                back = None;
                if !alive {
                    return;
                }
                shared.connected();
                shared.cut();
            }
        }
    }
}

fn text(error: &ServerError) -> String {
    match error {
        ServerError::AuthorizationViolation => "the server refuses the credentials".to_owned(),
        other => other.to_string(),
    }
}

/// The pause before an attempt: doubled each time up to the limit, and between half and all of
/// that, so that a server that comes back is not met by everybody at once.
pub(super) fn pause(attempt: usize, limit: Duration) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
    let longest = FIRST_PAUSE.saturating_mul(1 << doublings).min(limit);
    longest.mul_f64(0.5 + 0.5 * drawn())
}

/// A number from 0 to 1.
fn drawn() -> f64 {
    let mut bytes = [0; 4];
    // Without a random source all pauses are longest.
    getrandom::fill(&mut bytes)
        .map_or(1.0, |()| f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit_and_are_spread() {
        let limit = Duration::from_secs(5);
        let longest = |attempt| (0..200).map(|_| pause(attempt, limit)).max().unwrap();
        let shortest = |attempt| (0..200).map(|_| pause(attempt, limit)).min().unwrap();
        assert!(longest(1) <= FIRST_PAUSE && shortest(1) >= FIRST_PAUSE / 2);
        assert!(longest(3) <= FIRST_PAUSE * 4 && shortest(3) >= FIRST_PAUSE * 2);
        for attempt in [7, 100, usize::MAX] {
            assert!(longest(attempt) <= limit && shortest(attempt) >= limit / 2);
        }
        assert!(longest(7) > shortest(7));
    }
}
