//! The port.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use domain::BoxFuture;
use futures_core::Stream;
use tokio::sync::{oneshot, watch};

use crate::queue::Queue;
use crate::{BusError, Pattern, Subject};

/// Largest payload of a message: what a NATS server takes by default.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Messages to whoever listens now. Nothing is stored and nothing is promised: a message may be
/// lost on the way to any subscriber, but a subscriber that may have missed one is told so. All
/// adapters pass one suite (`tests/conformance`).
pub trait Bus: Send + Sync + 'static {
    /// Hands a message over. Never waits: what cannot be handed over at once is dropped, counted,
    /// and told of in the error, which most callers may ignore.
    ///
    /// # Errors
    /// [`BusError::TooLarge`], [`BusError::Away`], [`BusError::Busy`].
    fn publish(&self, subject: &Subject, payload: Bytes) -> Result<(), BusError>;

    /// Listens. Messages of one publisher come in the order they were published in. What this bus
    /// publishes after this has returned is heard; others are heard some time later.
    fn subscribe(&self, pattern: Pattern, room: Room) -> BoxFuture<'_, Subscription>;

    /// How the connection is, now and later.
    fn status(&self) -> watch::Receiver<Status>;
}

/// What a subscription holds for a reader that is slow. Past either, the oldest go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Messages.
    pub messages: usize,
    /// Bytes of subjects and payloads. One message is always held, whatever its size.
    pub bytes: usize,
}

impl Default for Room {
    /// A second's load reports of a thousand backends, and no more than 4 MiB.
    fn default() -> Self {
        Self { messages: 1024, bytes: 4 << 20 }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is about.
    pub subject: Subject,
    /// Its content.
    pub payload: Bytes,
}

/// What a subscriber gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A message.
    Message(Message),
    /// Messages were missed here, or may have been: ask for the state again.
    Gap(Gap),
}

/// How much was missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Messages dropped because the reader was slow.
    pub dropped: u64,
    /// Whether others may be missing that nobody counted, as the connection was cut.
    pub uncounted: bool,
}

/// How the connection is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether messages go through.
    pub connected: bool,
    /// Connections made so far.
    pub connects: u64,
    /// What went wrong last; `None` after a new connection.
    pub last_error: Option<Arc<str>>,
}

/// A running subscription: a stream of what it hears. It ends when the bus is dropped; dropping
/// it ends it.
#[derive(Debug)]
pub struct Subscription {
    queue: Arc<Queue>,
    /// Dropped with the subscription, which tells whoever feeds it.
    _listening: oneshot::Sender<()>,
}

impl Subscription {
    /// A subscription on a queue, and what resolves once it is dropped.
    pub(crate) fn new(queue: Arc<Queue>) -> (Self, oneshot::Receiver<()>) {
        let (listening, gone) = oneshot::channel();
        (Self { queue, _listening: listening }, gone)
    }
}

impl Stream for Subscription {
    type Item = Delivery;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.queue.poll_next(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.queue.close();
    }
}
