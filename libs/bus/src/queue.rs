//! What a subscriber has not read yet: bounded, oldest dropped first, gaps in their places.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::metrics::Metrics;
use crate::{Delivery, Gap, Message, Room};

/// Between one who hears and one who reads.
#[derive(Debug)]
pub(crate) struct Queue {
    room: Room,
    metrics: Metrics,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// What is missing before the first of `held`.
    missing: Gap,
    held: VecDeque<Delivery>,
    messages: usize,
    bytes: usize,
    reader: Option<Waker>,
    closed: bool,
}

fn size(message: &Message) -> usize {
    message.subject.as_str().len() + message.payload.len()
}

impl Queue {
    pub(crate) fn new(room: Room, metrics: Metrics) -> Self {
        Self { room, metrics, inner: Mutex::default() }
    }

    /// Adds a message; the oldest make room for it.
    pub(crate) fn push(&self, message: Message) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return;
        }
        self.metrics.received.inc();
        inner.messages += 1;
        inner.bytes += size(&message);
        inner.held.push_back(Delivery::Message(message));
        while inner.messages > self.room.messages.max(1)
            || (inner.bytes > self.room.bytes && inner.messages > 1)
        {
            inner.shed();
            self.metrics.received_dropped.inc();
        }
        inner.wake();
    }

    /// Notes that messages may be missing behind those that are held.
    pub(crate) fn cut(&self) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return;
        }
        let gap = Gap { dropped: 0, uncounted: true };
        match inner.held.back_mut() {
            Some(Delivery::Gap(last)) => last.merge(gap),
            Some(Delivery::Message(_)) => inner.held.push_back(Delivery::Gap(gap)),
            None => inner.missing.merge(gap),
        }
        inner.wake();
    }

    /// Ends it. What is held can still be read.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.wake();
    }

    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let mut inner = self.inner.lock();
        if inner.missing != Gap::default() {
            return Poll::Ready(Some(Delivery::Gap(std::mem::take(&mut inner.missing))));
        }
        if let Some(delivery) = inner.held.pop_front() {
            if let Delivery::Message(message) = &delivery {
                inner.messages -= 1;
                inner.bytes -= size(message);
            }
            return Poll::Ready(Some(delivery));
        }
        if inner.closed {
            return Poll::Ready(None);
        }
        inner.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Inner {
    /// Drops the oldest message, and notes it with the gaps before it.
    fn shed(&mut self) {
        while let Some(delivery) = self.held.pop_front() {
            match delivery {
                Delivery::Gap(gap) => self.missing.merge(gap),
                Delivery::Message(message) => {
                    self.messages -= 1;
                    self.bytes -= size(&message);
                    self.missing.dropped += 1;
                    return;
                }
            }
        }
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Gap {
    fn merge(&mut self, other: Gap) {
        self.dropped += other.dropped;
        self.uncounted |= other.uncounted;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Subject;

    fn message(text: &'static str) -> Message {
        let payload = Bytes::from_static(text.as_bytes());
        Message { subject: Subject::new("s").unwrap(), payload }
    }

    fn queue(messages: usize, bytes: usize) -> Queue {
        Queue::new(Room { messages, bytes }, Metrics::default())
    }

    /// Everything that can be read now: texts, and gaps as numbers.
    fn read(queue: &Queue) -> Vec<String> {
        let mut found = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(delivery)) = queue.poll_next(&mut context) {
            found.push(match delivery {
                Delivery::Message(message) => String::from_utf8(message.payload.to_vec()).unwrap(),
                Delivery::Gap(gap) if gap.uncounted => format!("-{}?", gap.dropped),
                Delivery::Gap(gap) => format!("-{}", gap.dropped),
            });
        }
        found
    }

    #[test]
    fn the_oldest_make_room_and_leave_a_gap() {
        let queue = queue(2, 1000);
        ["a", "b", "c", "d"].map(message).into_iter().for_each(|m| queue.push(m));
        assert_eq!(read(&queue), ["-2", "c", "d"]);
        queue.push(message("e"));
        assert_eq!(read(&queue), ["e"]);
        assert_eq!(queue.metrics.received_dropped.get(), 2);
    }

    #[test]
    fn bytes_are_bounded_too_but_for_one_message() {
        let queue = queue(100, 8);
        ["123", "456", "7"].map(message).into_iter().for_each(|m| queue.push(m));
        assert_eq!(read(&queue), ["-1", "456", "7"]);
        queue.push(message("much more than eight"));
        assert_eq!(read(&queue), ["much more than eight"]);
        ["much more than eight", "x"].map(message).into_iter().for_each(|m| queue.push(m));
        assert_eq!(read(&queue), ["-1", "x"]);
    }

    #[test]
    fn a_cut_stands_where_it_happened() {
        let queue = queue(2, 1000);
        queue.push(message("a"));
        queue.cut();
        queue.cut();
        queue.push(message("b"));
        assert_eq!(read(&queue), ["a", "-0?", "b"]);
        queue.cut();
        assert_eq!(read(&queue), ["-0?"]);
    }

    #[test]
    fn a_cut_between_dropped_messages_is_not_forgotten() {
        let queue = queue(1, 1000);
        queue.push(message("a"));
        queue.cut();
        queue.push(message("b"));
        queue.push(message("c"));
        assert_eq!(read(&queue), ["-2?", "c"]);
    }

    #[test]
    fn what_is_held_can_be_read_after_the_end() {
        let queue = queue(2, 1000);
        queue.push(message("a"));
        queue.close();
        queue.push(message("b"));
        assert_eq!(read(&queue), ["a"]);
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(queue.poll_next(&mut context), Poll::Ready(None));
    }
}
