//! The task of one subscription.

use std::sync::Arc;

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use lifecycle::Drain;
use tokio::sync::{oneshot, watch};

use crate::queue::Queue;
use crate::{Message, Pattern, Subject};

/// Moves what is heard into a queue, over one client after another.
pub(super) struct Listener {
    pattern: Pattern,
    queue: Arc<Queue>,
    clients: watch::Receiver<Option<Client>>,
    gone: oneshot::Receiver<()>,
}

/// Why a client is not listened to any more.
enum End {
    /// It has given up.
    Ended,
    /// Another one is there, or none.
    Replaced,
    /// Nobody reads any more, or the bus is dropped.
    Over,
}

impl Listener {
    pub(super) fn new(
        pattern: Pattern,
        queue: Arc<Queue>,
        clients: watch::Receiver<Option<Client>>,
        gone: oneshot::Receiver<()>,
    ) -> Self {
        Self { pattern, queue, clients, gone }
    }

    /// Runs until the subscription or the bus is dropped. `begun` is told when the subscription
    /// is with the connection, or when there is none to wait for.
    pub(super) async fn run(mut self, begun: oneshot::Sender<()>, drain: Drain) {
        let queue = self.queue.clone();
        tokio::select! {
            () = self.listen(begun) => {}
            () = drain.signaled() => {}
        }
        queue.close();
    }

    async fn listen(&mut self, begun: oneshot::Sender<()>) {
        let mut begun = Some(begun);
        let mut heard = false;
        loop {
            let client = self.clients.borrow_and_update().clone();
            if let Some(client) = client {
                let subscriber = client.subscribe(self.pattern.as_str().to_owned()).await;
                drop(client);
                if heard {
                    // With another client: what came in between is missing.
                    self.queue.cut();
                }
                drop(begun.take());
                if let Ok(subscriber) = subscriber {
                    heard = true;
                    match self.hear(subscriber).await {
                        End::Over => return,
                        End::Replaced => continue,
                        End::Ended => {}
                    }
                }
            }
            drop(begun.take());
            tokio::select! {
                changed = self.clients.changed() => if changed.is_err() { return },
                _ = &mut self.gone => return,
            }
        }
    }

    async fn hear(&mut self, mut subscriber: Subscriber) -> End {
        loop {
            tokio::select! {
                message = subscriber.next() => match message {
                    Some(message) => self.take(message),
                    None => return End::Ended,
                },
                changed = self.clients.changed() => match changed {
                    Ok(()) => return End::Replaced,
                    Err(_) => return End::Over,
                },
                _ = &mut self.gone => return End::Over,
            }
        }
    }

    fn take(&self, message: async_nats::Message) {
        match Subject::new(message.subject.as_str()) {
            Ok(subject) => self.queue.push(Message { subject, payload: message.payload }),
            // Others may use longer subjects. None of ours is missing.
            Err(error) => tracing::debug!(%error, "a message was passed over"),
        }
    }
}
