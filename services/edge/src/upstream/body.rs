//! The body of an engine's answer, and the connection it comes from.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::connect::Live;
use super::pool::Host;

/// What is read on from an answer that nobody wants, to keep its connection.
const DISCARD_FRAMES: usize = 16;

/// An answer's body. Polling it drives the connection; dropping it before its end closes the
/// connection; at its end the connection goes back to the pool.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    live: Option<Box<Live>>,
    host: Arc<Host>,
}

impl UpstreamBody {
    pub(super) fn new(incoming: Incoming, live: Box<Live>, host: Arc<Host>) -> Self {
        Self { incoming, live: Some(live), host }
    }

    /// The next piece, or `None` at the end.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut next = Pin::new(&mut self.incoming).poll_frame(cx);
        if let (true, Some(live)) = (next.is_pending(), &mut self.live) {
            let _ = live.drive(cx);
            next = Pin::new(&mut self.incoming).poll_frame(cx);
        }
        match &next {
            Poll::Ready(None) => self.recycle(cx),
            Poll::Ready(Some(Err(_))) => self.live = None,
            _ if self.incoming.is_end_stream() => self.recycle(cx),
            _ => {}
        }
        next
    }

    /// Whether nothing more will come.
    pub(crate) fn is_end(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// Gives up the answer. What has already arrived is read off, so that a small answer does
    /// not cost its connection.
    pub(crate) fn discard(mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..DISCARD_FRAMES {
            match self.poll_next(&mut cx) {
                Poll::Ready(Some(Ok(_))) => {}
                _ => return,
            }
        }
    }

    fn recycle(&mut self, cx: &mut Context<'_>) {
        let Some(mut live) = self.live.take() else { return };
        if live.drive(cx).is_pending() && matches!(live.sender.poll_ready(cx), Poll::Ready(Ok(())))
        {
            self.host.put_idle(live);
        }
    }
}
