//! The adapter over NATS core.
//!
//! One task makes the connection and watches it. The client library connects again by itself
//! after a cut; when it gives up for good (a server that refuses the credentials, say) the task
//! makes another client, so that a server which is put right is found again. Each subscription has
//! a task that moves what it hears into the subscriber's queue, and never waits there.
//!
//! After a cut every subscriber is told of a gap, once its subscription is with the server again.

mod config;
mod connection;
mod listener;

use std::sync::Arc;

use async_nats::Client;
use async_nats::client::PublishErrorKind;
use async_nats::connection::State;
use bytes::Bytes;
use domain::BoxFuture;
use futures_util::FutureExt;
use lifecycle::TaskSpawner;
use tokio::sync::{oneshot, watch};

pub use config::{NatsConfig, RawNatsConfig, RawNatsTls};

use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::{Bus, BusError, MAX_PAYLOAD, Pattern, Room, Status, Subject, Subscription};
use connection::Shared;

/// A connection to NATS. Dropping it closes the connection and ends its subscriptions.
pub struct NatsBus {
    shared: Arc<Shared>,
    spawner: TaskSpawner,
    /// Dropped with the bus, which ends the connection's task.
    _open: oneshot::Sender<()>,
}

impl NatsBus {
    /// Begins to connect, and goes on trying for as long as the bus lives. Its tasks end with the
    /// spawner's drain: give it the spawner of the background stage.
    pub fn start(config: NatsConfig, spawner: TaskSpawner, metrics: Metrics) -> Self {
        let shared = Arc::new(Shared::new(metrics));
        let (open, closed) = oneshot::channel();
        let drain = spawner.drain();
        spawner.spawn("bus-connection", connection::run(config, shared.clone(), closed, drain));
        Self { shared, spawner, _open: open }
    }

    /// Hands a message to a client that is connected.
    fn send(client: &Client, subject: &Subject, payload: Bytes) -> Result<(), BusError> {
        let size = payload.len();
        if client.connection_state() != State::Connected {
            return Err(BusError::Away);
        }
        // The send waits only for room in the client's own queue, so asking once is enough. A task
        // that has used up its share of the runtime would be told to wait for that alone.
        let sending = client.publish(async_nats::Subject::from(subject.as_str()), payload);
        match tokio::task::unconstrained(sending).now_or_never() {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(match error.kind() {
                PublishErrorKind::MaxPayloadExceeded => {
                    BusError::TooLarge { size, limit: client.server_info().max_payload }
                }
                PublishErrorKind::InvalidSubject | PublishErrorKind::Send => BusError::Away,
            }),
            None => Err(BusError::Busy),
        }
    }
}

impl Bus for NatsBus {
    fn publish(&self, subject: &Subject, payload: Bytes) -> Result<(), BusError> {
        let size = payload.len();
        let sent = if size > MAX_PAYLOAD {
            Err(BusError::TooLarge { size, limit: MAX_PAYLOAD })
        } else {
            let client = self.shared.client();
            client.ok_or(BusError::Away).and_then(|client| Self::send(&client, subject, payload))
        };
        match &sent {
            Ok(()) => self.shared.metrics.published.inc(),
            Err(BusError::TooLarge { .. }) => self.shared.metrics.dropped("too_large"),
            Err(BusError::Busy) => self.shared.metrics.dropped("busy"),
            Err(_) => self.shared.metrics.dropped("away"),
        }
        sent
    }

    fn subscribe(&self, pattern: Pattern, room: Room) -> BoxFuture<'_, Subscription> {
        Box::pin(async move {
            let queue = Arc::new(Queue::new(room, self.shared.metrics.clone()));
            self.shared.remember(&queue);
            let (subscription, gone) = Subscription::new(queue.clone());
            let listener = listener::Listener::new(pattern, queue, self.shared.clients(), gone);
            // With the connection before this returns, so that what is published next is heard.
            let (begun, waiting) = oneshot::channel();
            let drain = self.spawner.drain();
            self.spawner.spawn("bus-subscription", listener.run(begun, drain));
            let _ = waiting.await;
            subscription
        })
    }

    fn status(&self) -> watch::Receiver<Status> {
        self.shared.status()
    }
}
