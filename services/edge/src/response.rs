//! The bodies that clients read.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use domain::Moment;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::exchange::{Broken, Exchange};
use crate::limits::Permit;
use crate::record::Record;

/// The body of an answer.
pub(crate) enum EdgeBody {
    /// The gateway's own words.
    Full(Option<Bytes>),
    /// An engine's.
    Forward(Box<ForwardBody>),
    /// An engine's, where the client's connection carries others too.
    Watched(Arc<Watched>),
}

/// An engine's answer on its way to a client, with all that lives as long as it: the booking and
/// the connection in the exchange, the tenant's permit, the request's record. Dropping it at any
/// point releases all of them at once.
pub(crate) struct ForwardBody {
    exchange: Exchange,
    record: Record,
    _permit: Permit,
}

impl EdgeBody {
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Full(Some(bytes.into()))
    }

    /// Puts an engine's answer on a list, so that it can be given up if its client stalls.
    pub(crate) fn watched_by(self, list: &Watchlist) -> Self {
        match self {
            Self::Forward(body) => list.watch(body),
            other => other,
        }
    }
}

impl ForwardBody {
    pub(crate) fn new(exchange: Exchange, record: Record, permit: Permit) -> Box<Self> {
        Box::new(Self { exchange, record, _permit: permit })
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.exchange.poll_next(cx).map(|next| next.map(|piece| piece.map(Frame::data)))
    }
}

impl Drop for ForwardBody {
    fn drop(&mut self) {
        let summary = self.exchange.summary();
        let record = &mut self.record;
        record.answered(summary);
        if let Some((outcome, code)) = summary.end {
            record.end(outcome, code);
        }
    }
}

/// The answers of one HTTP/2 connection. One of them may stall while the connection does not, and
/// a stalled one is not polled; so somebody else has to look.
#[derive(Clone, Default)]
pub(crate) struct Watchlist(Arc<Mutex<Vec<Weak<Watched>>>>);

/// A body that can be given up from outside.
pub(crate) struct Watched(Mutex<WatchedState>);

struct WatchedState {
    /// `None` once it was given up.
    body: Option<Box<ForwardBody>>,
    /// Since when it is the client's turn.
    handed_at: Option<Moment>,
    /// Whom to wake while it is the engine's.
    waiting: Option<Waker>,
}

impl Watchlist {
    fn watch(&self, body: Box<ForwardBody>) -> EdgeBody {
        let state = WatchedState { body: Some(body), handed_at: None, waiting: None };
        let watched = Arc::new(Watched(Mutex::new(state)));
        let mut list = self.0.lock();
        list.retain(|w| w.strong_count() > 0);
        list.push(Arc::downgrade(&watched));
        EdgeBody::Watched(watched)
    }

    /// Whether an answer is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.lock().iter().any(|watched| watched.strong_count() > 0)
    }

    /// Has all that wait for their engines look at what has changed.
    pub(crate) fn wake(&self) {
        let bodies: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for waker in bodies.iter().filter_map(|watched| watched.0.lock().waiting.take()) {
            waker.wake();
        }
    }

    /// Gives up what no client has taken on for `limit`.
    pub(crate) fn give_up_stalled(&self, now: Moment, limit: Duration) {
        let bodies: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for watched in bodies {
            let mut state = watched.0.lock();
            if state.handed_at.is_some_and(|at| now - at >= limit) {
                let stalled = state.body.take();
                drop(state);
                drop(stalled);
            }
        }
    }
}

impl Watched {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut state = self.0.lock();
        let Some(body) = &mut state.body else { return Poll::Ready(Some(Err(Broken))) };
        let piece = body.poll_piece(cx);
        state.handed_at = piece.is_ready().then(lifecycle::monotonic);
        match &mut state.waiting {
            _ if piece.is_ready() => {}
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        piece
    }

    fn is_end(&self) -> bool {
        self.0.lock().body.as_ref().is_some_and(|body| body.exchange.is_end())
    }
}

impl Body for EdgeBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            EdgeBody::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            EdgeBody::Forward(body) => body.poll_piece(cx),
            EdgeBody::Watched(watched) => watched.poll_piece(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            EdgeBody::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            EdgeBody::Forward(body) => body.exchange.is_end(),
            EdgeBody::Watched(watched) => watched.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            EdgeBody::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            EdgeBody::Forward(body) if body.exchange.is_end() => SizeHint::with_exact(0),
            EdgeBody::Forward(_) | EdgeBody::Watched(_) => SizeHint::default(),
        }
    }
}
