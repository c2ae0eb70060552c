//! What waits to be written to one stream.
//!
//! Whatever is ready when the stream can be written goes in one frame, reports before Routes:
//! the more is under way, the less a message costs.

use std::collections::VecDeque;

use parking_lot::Mutex;
use prost::Message;
use proto::routing::v1::edge_message::Kind;
use proto::routing::v1::{EdgeFrame, EdgeMessage};
use tokio::sync::Notify;

/// A frame ends with the message that takes it past this. Far below what a router reads at once.
const FRAME_BYTES: usize = 256 << 10;
/// Messages without credit that may wait: some seconds' worth of a busy edge. Past that they are
/// dropped, and audits make up for them.
const MOST_WAITING: usize = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    written: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    first: VecDeque<EdgeMessage>,
    routes: VecDeque<EdgeMessage>,
    is_closed: bool,
}

impl Outbox {
    /// Adds a message. `false` if the stream is over, or too much waits.
    pub(crate) fn push(&self, kind: Kind) -> bool {
        let is_route = matches!(kind, Kind::Route(_));
        let message = EdgeMessage { kind: Some(kind) };
        {
            let mut queue = self.queue.lock();
            if queue.is_closed || queue.first.len() >= MOST_WAITING {
                return false;
            }
            // Routes are bounded by their credit.
            if is_route { queue.routes.push_back(message) } else { queue.first.push_back(message) }
        }
        self.written.notify_one();
        true
    }

    /// The stream is over.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        *queue = Queue { is_closed: true, ..Queue::default() };
        drop(queue);
        self.written.notify_one();
    }

    /// What waits, as soon as anything does; `None` once the stream is over.
    pub(crate) async fn next(&self) -> Option<EdgeFrame> {
        loop {
            let written = self.written.notified();
            if let Some(frame) = self.take() {
                return frame;
            }
            written.await;
        }
    }

    /// A frame, or `Some(None)` for the end.
    fn take(&self) -> Option<Option<EdgeFrame>> {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Some(None);
        }
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while bytes < FRAME_BYTES {
            let Some(message) = queue.first.pop_front().or_else(|| queue.routes.pop_front()) else {
                break;
            };
            bytes += message.encoded_len();
            messages.push(message);
        }
        (!messages.is_empty()).then_some(Some(EdgeFrame { messages }))
    }
}

#[cfg(test)]
mod tests {
    use proto::routing::v1::{Report, Route, WantMembers};

    use super::*;

    fn route(lease: u64, keys: usize) -> Kind {
        Kind::Route(Route { lease, request: "r".repeat(keys), ..Route::default() })
    }

    fn report(lease: u64) -> Kind {
        Kind::Report(Report { lease, ..Report::default() })
    }

    fn leases(frame: &EdgeFrame) -> Vec<u64> {
        let lease = |message: &EdgeMessage| match &message.kind {
            Some(Kind::Route(route)) => route.lease,
            Some(Kind::Report(report)) => report.lease,
            other => panic!("unexpected: {other:?}"),
        };
        frame.messages.iter().map(lease).collect()
    }

    #[tokio::test]
    async fn reports_overtake_routes_and_all_go_in_one_frame() {
        let outbox = Outbox::default();
        for kind in [route(1, 1), report(2), route(3, 1), report(4)] {
            assert!(outbox.push(kind));
        }
        assert_eq!(leases(&outbox.next().await.unwrap()), [2, 4, 1, 3]);
    }

    #[tokio::test]
    async fn a_long_message_ends_its_frame() {
        let outbox = Outbox::default();
        for lease in 1..=3 {
            outbox.push(route(lease, FRAME_BYTES));
        }
        outbox.push(report(4));
        assert_eq!(leases(&outbox.next().await.unwrap()), [4, 1]);
        assert_eq!(leases(&outbox.next().await.unwrap()), [2]);
    }

    #[tokio::test]
    async fn what_is_too_much_is_dropped_and_nothing_follows_the_end() {
        let outbox = Outbox::default();
        for _ in 0..MOST_WAITING {
            assert!(outbox.push(Kind::WantMembers(WantMembers {})));
        }
        assert!(!outbox.push(report(1)));
        outbox.close();
        assert!(!outbox.push(report(1)));
        assert!(outbox.next().await.is_none());
    }
}
