//! One accepted connection's socket: counted, told to write byte by byte, reset or closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// What a response can do to the connection it goes over.
#[derive(Debug, Default)]
pub(crate) struct SocketControl {
    reset: AtomicBool,
    one_byte_writes: AtomicBool,
    close_when_idle: AtomicBool,
    busy: AtomicBool,
    flushes: AtomicU64,
    response_ended: Notify,
    switched: Mutex<Option<OnUpgrade>>,
}

impl SocketControl {
    /// A request arrived.
    pub(crate) fn begin(&self) {
        self.busy.store(true, Ordering::Release);
        self.one_byte_writes.store(false, Ordering::Release);
    }

    /// Its response is through, or given up.
    pub(crate) fn end(&self) {
        self.busy.store(false, Ordering::Release);
        self.response_ended.notify_one();
    }

    /// The socket will be closed with a RST instead of a FIN.
    pub(crate) fn reset_on_close(&self) {
        self.reset.store(true, Ordering::Release);
    }

    /// The current response goes out one byte per write.
    pub(crate) fn write_byte_by_byte(&self) {
        self.one_byte_writes.store(true, Ordering::Release);
    }

    /// The connection is closed as soon as the current response is through.
    pub(crate) fn close_after_response(&self) {
        self.close_when_idle.store(true, Ordering::Release);
    }

    /// After the current response the connection speaks another protocol.
    pub(crate) fn switch_to(&self, upgrade: OnUpgrade) {
        *self.switched.lock() = Some(upgrade);
    }

    /// What the connection is to go on with, if it has switched.
    pub(crate) fn switched(&self) -> Option<OnUpgrade> {
        self.switched.lock().take()
    }

    /// How often everything written so far had been handed to the system.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Waits until the connection has had no request for `limit`, whether it ever carried one or not.
    pub(crate) async fn quiet_for(&self, limit: Duration) {
        loop {
            while self.busy.load(Ordering::Acquire) {
                self.response_ended.notified().await;
            }
            tokio::time::sleep(limit).await;
            if !self.busy.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Waits until the connection was without a request for `limit` after a response. As with
    /// uvicorn, one that has not carried a request yet is not idle.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        self.response_ended.notified().await;
        loop {
            if self.busy.load(Ordering::Acquire) {
                self.response_ended.notified().await;
                continue;
            }
            if limit.is_zero() || self.close_when_idle.load(Ordering::Acquire) {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(limit) => {
                    if !self.busy.load(Ordering::Acquire) {
                        return;
                    }
                }
                () = self.response_ended.notified() => {}
            }
        }
    }
}

/// A connection's stream. Dropping it closes the connection, by RST if that was asked for.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    control: Arc<SocketControl>,
    open: Arc<AtomicUsize>,
}

impl Socket {
    /// Counts the socket in `open` as long as it lives.
    pub(crate) fn new(
        stream: TcpStream,
        control: Arc<SocketControl>,
        open: Arc<AtomicUsize>,
    ) -> Self {
        open.fetch_add(1, Ordering::AcqRel);
        Self { stream, control, open }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.control.reset.load(Ordering::Acquire) {
            let socket = socket2::SockRef::from(&self.stream);
            // Fails only on a socket that is closed already.
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.control.one_byte_writes.load(Ordering::Acquire) {
            buf = &buf[..buf.len().min(1)];
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.control.one_byte_writes.load(Ordering::Acquire) {
            let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| &**buf);
            return self.poll_write(cx, first);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.control.flushes.fetch_add(1, Ordering::AcqRel);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.control.reset.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
