//! When either side of a session was last heard of.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use domain::Moment;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The moment of the last byte, to be asked for while they pass.
#[derive(Clone)]
pub(super) struct Heard(Arc<AtomicU64>);

impl Heard {
    pub(super) fn at(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn now(&self) {
        self.0.store(lifecycle::monotonic().as_nanos(), Ordering::Relaxed);
    }
}

/// One end of a session, through which all bytes of both sides pass.
pub(super) struct HeardIo<S> {
    inner: S,
    heard: Heard,
}

impl<S> HeardIo<S> {
    pub(super) fn new(inner: S) -> Self {
        let heard = Heard(Arc::default());
        heard.now();
        Self { inner, heard }
    }

    pub(super) fn heard(&self) -> Heard {
        self.heard.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeardIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.heard.now();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeardIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        if written.is_ready() {
            self.heard.now();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
