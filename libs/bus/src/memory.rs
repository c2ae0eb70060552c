//! The adapter in memory: one process that talks with itself.

use std::sync::Arc;

use bytes::Bytes;
use domain::BoxFuture;
use parking_lot::RwLock;
use tokio::sync::{oneshot, watch};

use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::{Bus, BusError, MAX_PAYLOAD, Message, Pattern, Room, Status, Subject, Subscription};

/// A bus within this process. Share it by `Arc`.
pub struct MemoryBus {
    listeners: RwLock<Vec<Listener>>,
    status: watch::Sender<Status>,
    metrics: Metrics,
}

struct Listener {
    pattern: Pattern,
    queue: Arc<Queue>,
    /// Closed once the subscription is dropped.
    gone: oneshot::Receiver<()>,
}

impl Listener {
    fn is_gone(&mut self) -> bool {
        self.gone.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }
}

impl MemoryBus {
    /// A bus that nobody listens to yet.
    pub fn new(metrics: Metrics) -> Self {
        metrics.connected.set(1);
        metrics.connects.inc();
        let status = Status { connected: true, connects: 1, last_error: None };
        Self { listeners: RwLock::default(), status: watch::Sender::new(status), metrics }
    }

    /// Subscriptions that are kept: those that were dropped go when another is made.
    #[cfg(test)]
    fn listeners(&self) -> usize {
        self.listeners.read().len()
    }
}

impl Bus for MemoryBus {
    fn publish(&self, subject: &Subject, payload: Bytes) -> Result<(), BusError> {
        if payload.len() > MAX_PAYLOAD {
            self.metrics.dropped("too_large");
            return Err(BusError::TooLarge { size: payload.len(), limit: MAX_PAYLOAD });
        }
        self.metrics.published.inc();
        let message = Message { subject: subject.clone(), payload };
        let listeners = self.listeners.read();
        for listener in listeners.iter().filter(|listener| listener.pattern.matches(subject)) {
            listener.queue.push(message.clone());
        }
        Ok(())
    }

    fn subscribe(&self, pattern: Pattern, room: Room) -> BoxFuture<'_, Subscription> {
        Box::pin(async move {
            let queue = Arc::new(Queue::new(room, self.metrics.clone()));
            let (subscription, gone) = Subscription::new(queue.clone());
            let mut listeners = self.listeners.write();
            listeners.retain_mut(|listener| !listener.is_gone());
            listeners.push(Listener { pattern, queue, gone });
            subscription
        })
    }

    fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }
}

impl Drop for MemoryBus {
    fn drop(&mut self) {
        self.metrics.connected.set(0);
        self.listeners.get_mut().iter().for_each(|listener| listener.queue.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn dropped_subscriptions_are_not_piled_up() {
        let bus = MemoryBus::new(Metrics::default());
        for _ in 0..100 {
            drop(bus.subscribe(Pattern::new(">").unwrap(), Room::default()).await);
        }
        assert_eq!(bus.listeners(), 1);
    }
}
