//! A deadline that may move with every read, without touching the runtime's timer each time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use domain::Moment;
use tokio::time::Sleep;

/// Wakes a task at a deadline. A deadline that moves on is noticed only when the earlier one
/// has come; one that moves forward is set at once.
#[derive(Default)]
pub(crate) struct Timer {
    armed: Option<(Pin<Box<Sleep>>, Moment)>,
}

impl Timer {
    /// Ready once `deadline` has passed.
    pub(crate) fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Moment) -> Poll<()> {
        loop {
            let now = lifecycle::monotonic();
            if deadline <= now {
                return Poll::Ready(());
            }
            let (sleep, armed_for) = self
                .armed
                .get_or_insert_with(|| (Box::pin(tokio::time::sleep(deadline - now)), deadline));
            if deadline < *armed_for || *armed_for <= now {
                sleep.as_mut().reset(tokio::time::Instant::now() + (deadline - now));
                *armed_for = deadline;
            }
            ready!(sleep.as_mut().poll(cx));
            // The runtime's timer has a grain of a millisecond: what woke early is armed again.
            *armed_for = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moves_on_is_kept() {
        let mut timer = Timer::default();
        let start = lifecycle::monotonic();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deadline = at(10);
        poll_fn(|cx| {
            if deadline == at(10) {
                // Armed for the first deadline, which then moves.
                assert!(timer.poll_until(cx, deadline).is_pending());
                deadline = at(30);
            }
            timer.poll_until(cx, deadline)
        })
        .await;
        assert_eq!(lifecycle::monotonic() - start, Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moves_forward_is_kept() {
        let mut timer = Timer::default();
        let start = lifecycle::monotonic();
        poll_fn(|cx| {
            assert!(timer.poll_until(cx, start + Duration::from_secs(60)).is_pending());
            Poll::Ready(())
        })
        .await;
        poll_fn(|cx| timer.poll_until(cx, start + Duration::from_secs(5))).await;
        assert_eq!(lifecycle::monotonic() - start, Duration::from_secs(5));
    }
}
