//! What waits to be written to one stream.
//!
//! Whatever is ready when the stream can be written goes in one frame, reports before Routes:
//! the more is under way, the less a message costs. Nobody waits for a report of progress or of an
//! end, so these let a few milliseconds pass for others to go with.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use proto::routing::v1::edge_message::Kind;
use proto::routing::v1::report::Kind as Reported;
use proto::routing::v1::{EdgeFrame, EdgeMessage};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A frame ends with the message that takes it past this. Far below what a router reads at once.
const FRAME_BYTES: usize = 256 << 10;
/// Messages without credit that may wait: some seconds' worth of a busy edge. Past that they are
/// dropped, and audits make up for them.
const MOST_WAITING: usize = 1 << 16;
/// How long a message waits that nobody waits for. A booking ends that much later: less than the
/// time that an engine takes for a step.
const PATIENCE: Duration = Duration::from_millis(5);
/// So many of them make a frame worth its while.
const WORTH_A_FRAME: usize = 64;

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
    /// Until when all that waits may wait; `None` if nothing does.
    due: Option<Due>,
}

/// When what waits must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    By(Instant),
}

impl Queue {
    fn note(&mut self, message: &Kind, waiting: usize) {
        let is_patient = is_patient(message) && waiting < WORTH_A_FRAME;
        self.due = match self.due {
            Some(Due::Now) => Some(Due::Now),
            _ if !is_patient => Some(Due::Now),
            Some(by) => Some(by),
            None => Some(Due::By(Instant::now() + PATIENCE)),
        };
    }
}

/// Whether nobody waits for it.
fn is_patient(message: &Kind) -> bool {
    let Kind::Report(report) = message else { return false };
    matches!(report.kind, Some(Reported::Progress(_) | Reported::Finished(_)))
}

impl Outbox {
    /// Adds a message. `false` if the stream is over, or too much waits.
    pub(crate) fn push(&self, kind: Kind) -> bool {
        let is_route = matches!(kind, Kind::Route(_));
        let wakes = {
            let mut queue = self.queue.lock();
            let waiting = queue.first.len();
            if queue.is_closed || waiting >= MOST_WAITING {
                return false;
            }
            let before = queue.due;
            queue.note(&kind, waiting);
            let message = EdgeMessage { kind: Some(kind) };
            // Routes are bounded by their credit.
            if is_route {
                queue.routes.push_back(message)
            } else {
                queue.first.push_back(message)
            }
            queue.due != before
        };
        if wakes {
            self.written.notify_one();
        }
        true
    }

    /// The stream is over.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        *queue = Queue { is_closed: true, ..Queue::default() };
        drop(queue);
        self.written.notify_one();
    }

    /// What waits, as soon as any of it must go; `None` once the stream is over.
    pub(crate) async fn next(&self) -> Option<EdgeFrame> {
        loop {
            let written = self.written.notified();
            match self.take() {
                Taken::Frame(frame) => return Some(frame),
                Taken::End => return None,
                Taken::Nothing => written.await,
                Taken::Later(due) => tokio::select! {
                    () = written => {}
                    () = tokio::time::sleep_until(due) => {}
                },
            }
        }
    }

    fn take(&self) -> Taken {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Taken::End;
        }
        match queue.due {
            None => return Taken::Nothing,
            Some(Due::By(due)) if due > Instant::now() => return Taken::Later(due),
            Some(_) => {}
        }
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while bytes < FRAME_BYTES {
            let Some(message) = queue.first.pop_front().or_else(|| queue.routes.pop_front()) else {
                break;
            };
            bytes += message.encoded_len();
            messages.push(message);
        }
        let is_empty = queue.first.is_empty() && queue.routes.is_empty();
        queue.due = (!is_empty).then_some(Due::Now);
        Taken::Frame(EdgeFrame { messages })
    }
}

/// What can be done now.
enum Taken {
    Frame(EdgeFrame),
    /// Nothing before then.
    Later(Instant),
    Nothing,
    /// The stream is over.
    End,
}

#[cfg(test)]
mod tests {
    use proto::routing::v1::{Finished, Report, Route, WantMembers};

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

    fn finished(lease: u64) -> Kind {
        let kind = Some(Reported::Finished(Finished::default()));
        Kind::Report(Report { lease, kind, ..Report::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_request_waits_a_moment_for_company() {
        let outbox = Outbox::default();
        let begun = Instant::now();
        outbox.push(finished(1));
        let company = async {
            tokio::time::sleep(PATIENCE / 2).await;
            outbox.push(route(2, 1));
        };
        let (frame, ()) = tokio::join!(outbox.next(), company);
        assert_eq!(leases(&frame.unwrap()), [1, 2]);
        assert!(begun.elapsed() < PATIENCE);

        // Without it, it goes alone; a second one does not make it wait again.
        let begun = Instant::now();
        outbox.push(finished(3));
        let second = async {
            tokio::time::sleep(PATIENCE / 2).await;
            outbox.push(finished(4));
        };
        let (frame, ()) = tokio::join!(outbox.next(), second);
        assert_eq!(leases(&frame.unwrap()), [3, 4]);
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn many_ends_wait_for_nobody() {
        let outbox = Outbox::default();
        let begun = Instant::now();
        for lease in 0..=WORTH_A_FRAME as u64 {
            outbox.push(finished(lease));
        }
        assert_eq!(leases(&outbox.next().await.unwrap()).len(), WORTH_A_FRAME + 1);
        assert_eq!(begun.elapsed(), Duration::ZERO);
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
