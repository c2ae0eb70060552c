//! The bodies that clients read.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::exchange::{Broken, Exchange};
use crate::limits::Permit;
use crate::record::Record;

/// The body of an answer.
pub(crate) enum EdgeBody {
    /// The gateway's own words.
    Full(Option<Bytes>),
    /// An engine's.
    Forward(Box<ForwardBody>),
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
}

impl ForwardBody {
    pub(crate) fn new(exchange: Exchange, record: Record, permit: Permit) -> Box<Self> {
        Box::new(Self { exchange, record, _permit: permit })
    }
}

impl Drop for ForwardBody {
    fn drop(&mut self) {
        let summary = self.exchange.summary();
        let record = &mut self.record;
        record.usage = summary.usage;
        record.ttft = summary.first_token_at.map(|at| at - record.started);
        if let Some((outcome, code)) = summary.end {
            record.end(outcome, code);
        }
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
            EdgeBody::Forward(body) => {
                body.exchange.poll_next(cx).map(|next| next.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            EdgeBody::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            EdgeBody::Forward(body) => body.exchange.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            EdgeBody::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            EdgeBody::Forward(body) if body.exchange.is_end() => SizeHint::with_exact(0),
            EdgeBody::Forward(_) => SizeHint::default(),
        }
    }
}
