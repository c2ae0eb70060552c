//! The body of a request on its way to an engine: held whole, or passed on as it comes.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use openai_api::{FormFault, FormScanner};

use super::pace::ClientPace;
use super::pieces::Pieces;
use crate::timer::Timer;

/// A request's body.
pub(crate) enum Outgoing {
    /// All of it is here.
    Whole(Pieces),
    /// Its client is still sending.
    Streamed(Box<StreamedBody>),
}

/// A form that is passed on while it comes.
pub(crate) struct StreamedBody {
    /// What has come already.
    pub(crate) held: Pieces,
    /// What is still to come.
    pub(crate) rest: Incoming,
    /// Bytes that are still to be passed on, where the client told how many there are.
    pub(crate) left: Option<u64>,
    /// Bytes that may still come.
    pub(crate) room: usize,
    /// Looks for a second model.
    pub(crate) scanner: FormScanner,
    /// How slowly it may come.
    pub(crate) pace: ClientPace,
    pub(crate) fault: Arc<OnceLock<BodyFault>>,
    pub(crate) timer: Timer,
    pub(crate) ended: bool,
}

/// Why a client's body could not be passed on to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyFault {
    #[error("it is too large")]
    TooLarge,
    #[error("it did not arrive in time")]
    TooSlow,
    #[error("its client went away")]
    Gone,
    #[error("its framing is malformed")]
    Malformed,
    #[error(transparent)]
    Form(#[from] FormFault),
}

impl From<hyper::Error> for BodyFault {
    /// Chunks that are none are told by their kind; any other error is the connection's end.
    fn from(error: hyper::Error) -> Self {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        match cause.map(io::Error::kind) {
            Some(ErrorKind::InvalidData | ErrorKind::InvalidInput) => Self::Malformed,
            _ => Self::Gone,
        }
    }
}

impl Outgoing {
    /// No body.
    pub(crate) fn empty() -> Self {
        Self::Whole(Pieces::default())
    }
}

impl StreamedBody {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyFault>>> {
        if let Some(piece) = self.held.next() {
            return Poll::Ready(Some(Ok(piece)));
        }
        loop {
            match Pin::new(&mut self.rest).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers of a request mean nothing here.
                    let Ok(piece) = frame.into_data() else { continue };
                    self.pace.came(piece.len(), lifecycle::monotonic());
                    return Poll::Ready(Some(self.check(piece)));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => {
                    self.ended = true;
                    let end = self.scanner.finish().err();
                    return Poll::Ready(end.map(|fault| Err(fault.into())));
                }
                Poll::Pending => {
                    let deadline = self.pace.wait(lifecycle::monotonic());
                    return match self.timer.poll_until(cx, deadline) {
                        Poll::Ready(()) => Poll::Ready(Some(Err(BodyFault::TooSlow))),
                        Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
    }

    fn check(&mut self, piece: Bytes) -> Result<Bytes, BodyFault> {
        self.room = self.room.checked_sub(piece.len()).ok_or(BodyFault::TooLarge)?;
        self.scanner.feed(&piece)?;
        Ok(piece)
    }

    /// A piece that goes to the engine. With the last byte of a length that was told it has all,
    /// and this body is not asked for an end: a form that is none must not be whole there.
    fn pass(&mut self, piece: Bytes) -> Result<Bytes, BodyFault> {
        self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64));
        if self.left == Some(0) {
            self.scanner.finish()?;
        }
        Ok(piece)
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let body = match &mut *self {
            Outgoing::Whole(pieces) => {
                return Poll::Ready(pieces.next().map(|b| Ok(Frame::data(b))));
            }
            Outgoing::Streamed(body) => body,
        };
        let piece = std::task::ready!(body.poll_piece(cx));
        Poll::Ready(piece.map(|piece| match piece.and_then(|piece| body.pass(piece)) {
            Ok(piece) => Ok(Frame::data(piece)),
            Err(fault) => {
                let _ = body.fault.set(fault);
                Err(fault)
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Whole(pieces) => pieces.len() == 0,
            Outgoing::Streamed(body) => body.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Whole(pieces) => SizeHint::with_exact(pieces.len()),
            Outgoing::Streamed(body) => body.left.map(SizeHint::with_exact).unwrap_or_default(),
        }
    }
}
