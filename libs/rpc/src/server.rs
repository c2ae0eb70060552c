//! Serving until a drain.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream;
use lifecycle::{Acceptor, Drain};
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tonic::service::Routes;
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::client::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::{Error, Metrics, ServerConfig, explain};

/// A region has some hundred members with a few connections each. Further ones wait.
const MAX_CONNECTIONS: usize = 4096;
/// Calls that one connection may have open: a few sessions and watches.
const MAX_CALLS: u32 = 256;
/// A TLS handshake takes milliseconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// A peer that is gone without a word is found after these two.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// A bound port and how it is served.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    builder: tonic::transport::Server,
    address: String,
    metrics: Metrics,
}

impl Server {
    /// Prepares to serve on a bound port.
    ///
    /// # Errors
    /// The certificates cannot be used, or the listener has no address.
    pub fn new(
        listener: TcpListener,
        config: &ServerConfig,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        let address = config.address(listener.local_addr()?);
        let mut builder = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_CALLS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keepalive_interval(Some(PING_EVERY))
            .http2_keepalive_timeout(Some(PING_TIMEOUT));
        if let Some(tls) = &config.client().tls {
            let tls = ServerTlsConfig::new()
                .identity(tls.identity.clone())
                .client_ca_root(tls.ca.clone())
                .timeout(HANDSHAKE_TIMEOUT);
            let secured = builder.tls_config(tls);
            builder = secured.map_err(|e| Error::Certificates { reason: explain(&e) })?;
        }
        Ok(Self { listener, builder, address, metrics })
    }

    /// What peers connect to, as `http://HOST:PORT` or `https://HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The same, as a task: a failure is logged.
    pub async fn serve(self, routes: Routes, drain: Drain) {
        if let Err(error) = self.run(routes, drain).await {
            tracing::error!(%error, "the gRPC port is closed");
        }
    }

    /// Serves until the drain. New connections are then refused, and open calls waited for: a
    /// call without an end of its own must end by the drain. An end of the process's time for the
    /// drain drops this future, and with it what is still open.
    ///
    /// # Errors
    /// The server fails as a whole; no single connection can make it.
    pub async fn run(mut self, routes: Routes, drain: Drain) -> Result<(), Error> {
        let acceptor = Acceptor::new(self.listener, MAX_CONNECTIONS);
        let incoming = stream::unfold((acceptor, self.metrics), |(mut acceptor, metrics)| async {
            let (stream, permit) = acceptor.next().await;
            let connection = Connection::new(stream, permit, &metrics);
            Some((Ok::<_, io::Error>(connection), (acceptor, metrics)))
        });
        self.builder
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, async move { drain.signaled().await })
            .await
            .map_err(|e| Error::Serve(explain(&e)))
    }
}

/// A peer's connection, counted while it is open.
struct Connection {
    stream: TcpStream,
    open: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit, metrics: &Metrics) -> Self {
        metrics.accepted.inc();
        metrics.connections.inc();
        Self { stream, open: metrics.connections.clone(), _permit: permit }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
