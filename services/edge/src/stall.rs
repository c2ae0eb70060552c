//! A client's socket that gives up on a client which does not read.
//!
//! An answer whose client reads slowly is held back by TCP alone, down to the engine. One whose
//! client reads nothing at all would hold its engine for ever; so a write that makes no progress
//! for too long is an error, which ends the connection and all that hangs on it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use domain::Moment;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::timer::Timer;

/// How long a write may make no progress; it can be changed.
#[derive(Clone, Debug)]
pub(crate) struct StallLimit(Arc<AtomicU64>);

impl StallLimit {
    pub(crate) fn new(limit: Duration) -> Self {
        let shared = Self(Arc::default());
        shared.set(limit);
        shared
    }

    pub(crate) fn set(&self, limit: Duration) {
        self.0.store(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// A stream with such a limit.
pub(crate) struct StallIo<S> {
    inner: S,
    limit: StallLimit,
    /// Since when nothing could be written.
    since: Option<Moment>,
    timer: Timer,
}

impl<S> StallIo<S> {
    pub(crate) fn new(inner: S, limit: StallLimit) -> Self {
        Self { inner, limit, since: None, timer: Timer::default() }
    }

    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.since = None;
            return written;
        }
        let since = *self.since.get_or_insert_with(lifecycle::monotonic);
        match self.timer.poll_until(cx, since + self.limit.get()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stalls_is_given_up_and_a_slow_one_is_not() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut io = StallIo::new(near, StallLimit::new(Duration::from_secs(60)));
        let slow = async {
            let mut byte = [0; 8];
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                far.read_exact(&mut byte).await.unwrap();
            }
            far
        };
        let (written, far) = tokio::join!(io.write_all(&[0; 40]), slow);
        written.unwrap();
        let started = lifecycle::monotonic();
        let stalled = io.write_all(&[0; 40]).await.unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
        assert_eq!(lifecycle::monotonic() - started, Duration::from_secs(60));
        drop(far);
    }
}
