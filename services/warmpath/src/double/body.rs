//! Response bodies: whole, cut short, and the stream of tokens as the engine makes them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::fault::{Cut, Plan};
use super::socket::SocketControl;
use super::stream::TokenStream;

/// How often a body that is about to cut the connection looks whether what it sent is out.
const FLUSH_POLL: Duration = Duration::from_millis(1);

/// The body of every answer. Tells the connection when it is through or dropped.
#[derive(Debug)]
pub(crate) struct DoubleBody {
    kind: Kind,
    control: Arc<SocketControl>,
}

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    /// As one chunk of a body whose length is not told beforehand.
    Chunked(Option<Bytes>),
    Partial(Partial),
    Tokens(Box<TokenStream>),
}

/// Something, then an end that is none.
#[derive(Debug)]
struct Partial {
    data: Option<Bytes>,
    /// The length that the headers promise, if they do.
    length: Option<u64>,
    ending: Ending,
}

/// How a body ends that does not end well.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Never: nothing comes any more.
    Stall,
    /// With the connection, once everything sent so far is out.
    Cut(CutWhenFlushed),
}

impl Ending {
    pub(crate) fn cut(how: Cut, control: &Arc<SocketControl>) -> Self {
        Ending::Cut(CutWhenFlushed {
            how,
            flushes: control.flushes(),
            look: Box::pin(tokio::time::sleep(FLUSH_POLL)),
            control: Arc::clone(control),
        })
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self {
            Ending::Stall => Poll::Pending,
            Ending::Cut(cut) => cut.poll(cx),
        }
    }
}

/// Waits until the system has all bytes, then ends the body as the fault says.
#[derive(Debug)]
pub(crate) struct CutWhenFlushed {
    how: Cut,
    /// Flushes seen when the last bytes were handed on.
    flushes: u64,
    look: Pin<Box<tokio::time::Sleep>>,
    control: Arc<SocketControl>,
}

impl CutWhenFlushed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.how == Cut::End {
            self.control.close_after_response();
            return Poll::Ready(None);
        }
        while self.control.flushes() == self.flushes {
            ready!(self.look.as_mut().poll(cx));
            self.look.as_mut().reset(tokio::time::Instant::now() + FLUSH_POLL);
        }
        if self.how == Cut::Reset {
            self.control.reset_on_close();
        }
        Poll::Ready(Some(Err(io::Error::other("the connection is cut on purpose"))))
    }
}

impl DoubleBody {
    fn new(kind: Kind, control: &Arc<SocketControl>) -> Self {
        Self { kind, control: Arc::clone(control) }
    }

    /// All of it, with its length.
    pub(crate) fn whole(bytes: Bytes, control: &Arc<SocketControl>) -> Self {
        Self::new(Kind::Whole(Some(bytes)), control)
    }

    /// All of it in one chunk.
    pub(crate) fn chunked(bytes: Bytes, control: &Arc<SocketControl>) -> Self {
        Self::new(Kind::Chunked(Some(bytes)), control)
    }

    /// Tokens as they come.
    pub(crate) fn tokens(stream: TokenStream, control: &Arc<SocketControl>) -> Self {
        Self::new(Kind::Tokens(Box::new(stream)), control)
    }

    /// Nothing, ever.
    pub(crate) fn silent(control: &Arc<SocketControl>) -> Self {
        let partial = Partial { data: None, length: None, ending: Ending::Stall };
        Self::new(Kind::Partial(partial), control)
    }

    /// All of it, unless the plan has a fault for the middle of an answer.
    pub(crate) fn with_faults(bytes: Bytes, plan: &Plan, control: &Arc<SocketControl>) -> Self {
        let length = bytes.len() as u64;
        let half = bytes.slice(..bytes.len() / 2);
        let (length, ending) = match (plan.stall, plan.cut, plan.bad_json) {
            (Some(_), ..) => (Some(length), Ending::Stall),
            (_, Some((_, how @ Cut::End)), _) => (None, Ending::cut(how, control)),
            (_, Some((_, how)), _) => (Some(length), Ending::cut(how, control)),
            (.., Some(_)) => return Self::whole(half, control),
            _ => return Self::whole(bytes, control),
        };
        Self::new(Kind::Partial(Partial { data: Some(half), length, ending }), control)
    }

    /// The first `head` bytes of a stream, then the plan's fault; all of it without one.
    pub(crate) fn chunked_with_faults(
        bytes: Bytes,
        head: usize,
        plan: &Plan,
        control: &Arc<SocketControl>,
    ) -> Self {
        let ending = match (plan.stall, plan.cut) {
            (Some(_), _) => Ending::Stall,
            (_, Some((_, how))) => Ending::cut(how, control),
            _ => return Self::chunked(bytes, control),
        };
        let partial = Partial { data: Some(bytes.slice(..head)), length: None, ending };
        Self::new(Kind::Partial(partial), control)
    }
}

impl Drop for DoubleBody {
    fn drop(&mut self) {
        self.control.end();
    }
}

impl Body for DoubleBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.kind {
            Kind::Whole(bytes) | Kind::Chunked(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Kind::Partial(partial) => match partial.data.take() {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None => partial.ending.poll(cx),
            },
            Kind::Tokens(stream) => stream.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.kind, Kind::Whole(None) | Kind::Chunked(None))
            || matches!(&self.kind, Kind::Whole(Some(bytes)) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Partial(Partial { length: Some(length), .. }) => SizeHint::with_exact(*length),
            _ => SizeHint::default(),
        }
    }
}
