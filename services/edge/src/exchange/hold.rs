//! The beginning of an answer, held back while another engine may still give a better one.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use domain::{FailureClass, Moment};

use super::fault::Fault;
use super::{Exchange, Phase, Read, Reader};

/// What is held back before the commit point, at most.
const HOLD_BYTES: usize = 4096;
/// How long it is held back, at most.
const HOLD_TIME: Duration = Duration::from_secs(10);
/// What became of the hold.
pub(crate) enum Commit {
    /// The answer goes to the client.
    Ready,
    /// The attempt failed before its first content, like this; the answer as far as it came can
    /// still be handed on.
    Failed(FailureClass),
}

impl Exchange {
    /// Waits until the answer is good to be handed on, or has failed.
    pub(crate) async fn commit(&mut self) -> Commit {
        let hold_until = lifecycle::monotonic() + HOLD_TIME;
        poll_fn(|cx| self.poll_commit(cx, hold_until)).await
    }

    fn poll_commit(&mut self, cx: &mut Context<'_>, hold_until: Moment) -> Poll<Commit> {
        loop {
            if let Some(fault) = self.held_error() {
                return Poll::Ready(self.fail_held(fault.class));
            }
            if self.is_committed() {
                self.release();
                return Poll::Ready(Commit::Ready);
            }
            match self.poll_read(cx) {
                Poll::Ready(Read::Some) => {}
                Poll::Ready(Read::End) => match self.check_end() {
                    Ok(()) => self.end_well(),
                    Err(fault) => return Poll::Ready(self.fail_held(fault.class)),
                },
                Poll::Ready(Read::Broken(fault)) => {
                    return Poll::Ready(self.fail_held(fault.class));
                }
                Poll::Pending => {
                    let deadline = self.deadline();
                    match self.timer.poll_until(cx, deadline.min(hold_until)) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(()) if deadline <= lifecycle::monotonic() => {
                            return Poll::Ready(self.fail_held(FailureClass::Timeout));
                        }
                        Poll::Ready(()) => self.release(),
                    }
                }
            }
        }
    }

    /// Whether the answer may no longer be given up.
    fn is_committed(&self) -> bool {
        if self.phase != Phase::Held || self.ready_bytes > HOLD_BYTES {
            return true;
        }
        match &self.reader {
            Reader::Events(events) => events.is_committed(),
            Reader::Plain(_) | Reader::Opaque => self.ready_bytes > 0,
        }
    }

    /// An error that the engine sent in place of content.
    pub(super) fn held_error(&self) -> Option<Fault> {
        match &self.reader {
            Reader::Events(events) if self.phase == Phase::Held => {
                events.error().map(Fault::of_error)
            }
            _ => None,
        }
    }

    fn fail_held(&mut self, class: FailureClass) -> Commit {
        self.lease.fail(class);
        Commit::Failed(class)
    }

    /// Lets an answer that failed before its first content go to the client after all, since
    /// there is no other.
    pub(crate) fn release(&mut self) {
        if self.phase == Phase::Held {
            self.phase = Phase::Open;
        }
    }
}
