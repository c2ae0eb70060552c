//! Making connections: TCP with `TCP_NODELAY`, TLS where the address says `https`.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::client::conn::http1;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower::Service;

use super::SendError;
use super::outgoing::Outgoing;

/// Largest buffer of one connection: bounds the memory of a stream whose reader is slow, and
/// the size of an answer's head.
const BUFFER_BYTES: usize = 64 * 1024;

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
pub(super) type Connection = http1::Connection<TokioIo<WatchedIo>, Outgoing>;

/// An open connection and the handle to send on it.
pub(super) struct Live {
    pub(super) sender: http1::SendRequest<Outgoing>,
    /// `None` once it has ended.
    pub(super) connection: Option<Connection>,
    pub(super) io: Arc<IoState>,
}

impl Live {
    /// Reads and writes what can be; ready when the connection has ended.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        drive(&mut self.connection, cx)
    }
}

/// As [`Live::drive`], while the sender is in use.
pub(super) fn drive(connection: &mut Option<Connection>, cx: &mut Context<'_>) -> Poll<()> {
    let Some(open) = connection else { return Poll::Ready(()) };
    match Pin::new(open).poll(cx) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(_) => {
            *connection = None;
            Poll::Ready(())
        }
    }
}

/// Opens connections.
pub(super) struct Connector {
    plain: HttpConnector,
    /// Built when the first `https` address is met: loading the system's roots takes a while.
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Default for Connector {
    fn default() -> Self {
        let mut plain = HttpConnector::new();
        plain.set_nodelay(true);
        plain.enforce_http(false);
        // An engine whose machine is gone says nothing of it, and a session has no other limit
        // between two words than a long one.
        plain.set_keepalive(Some(lifecycle::KEEPALIVE_TIME));
        plain.set_keepalive_interval(Some(lifecycle::KEEPALIVE_INTERVAL));
        plain.set_keepalive_retries(Some(lifecycle::KEEPALIVE_RETRIES));
        Self { plain, tls: OnceLock::new() }
    }
}

impl Connector {
    pub(super) async fn connect(&self, uri: &Uri, limit: Duration) -> Result<Box<Live>, SendError> {
        let opening = async {
            let stream = self.open(uri, limit).await?;
            handshake(stream).await.map_err(|e| SendError::Connect(e.to_string()))
        };
        match tokio::time::timeout(limit, opening).await {
            Ok(live) => live,
            Err(_) => Err(SendError::Connect("it took too long".to_owned())),
        }
    }

    async fn open(&self, uri: &Uri, limit: Duration) -> Result<Stream, SendError> {
        let mut plain = self.plain.clone();
        // Shared by the addresses that a name may have.
        plain.set_connect_timeout(Some(limit));
        if uri.scheme() == Some(&http::uri::Scheme::HTTPS) {
            let tls = self.tls.get_or_init(with_roots).as_ref();
            let tls = tls.map_err(|e| SendError::Connect(e.clone()))?;
            let mut tls = HttpsConnector::from((plain, Arc::clone(tls)));
            tls.call(uri.clone()).await.map_err(|e| SendError::Connect(e.to_string()))
        } else {
            let stream = plain.call(uri.clone()).await;
            stream.map(Stream::from).map_err(|e| SendError::Connect(e.to_string()))
        }
    }
}

fn with_roots() -> Result<Arc<ClientConfig>, String> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_native_roots()
        .map_err(|e| format!("the system's root certificates: {e}"))?;
    Ok(Arc::new(builder.with_no_client_auth()))
}

async fn handshake(stream: Stream) -> hyper::Result<Box<Live>> {
    let io = Arc::new(IoState::default());
    let watched = TokioIo::new(WatchedIo { inner: TokioIo::new(stream), state: Arc::clone(&io) });
    let (sender, connection) =
        http1::Builder::new().max_buf_size(BUFFER_BYTES).handshake(watched).await?;
    let mut live = Box::new(Live { sender, connection: Some(connection), io });
    // The sender is ready once the connection has been polled.
    poll_fn(|cx| {
        let _ = live.drive(cx);
        live.sender.poll_ready(cx)
    })
    .await?;
    Ok(live)
}

/// What is known of a connection's bytes.
#[derive(Debug, Default)]
pub(super) struct IoState {
    received: AtomicBool,
}

impl IoState {
    /// A new request is about to be sent.
    pub(super) fn reset(&self) {
        self.received.store(false, Ordering::Relaxed);
    }

    /// Whether any byte has come since the last reset.
    pub(super) fn has_received(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }
}

/// A stream that notes whether anything was read: whether a request may be sent again hangs
/// on it.
pub(super) struct WatchedIo {
    inner: TokioIo<Stream>,
    state: Arc<IoState>,
}

impl AsyncRead for WatchedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.state.received.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for WatchedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
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
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_system_asks_whether_an_engine_is_still_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let opened = Connector::default().open(&uri, Duration::from_secs(5)).await.unwrap();
        let Stream::Http(stream) = opened else { panic!("no TLS was asked for") };
        let socket = SockRef::from(stream.inner());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), lifecycle::KEEPALIVE_TIME);
    }
}
