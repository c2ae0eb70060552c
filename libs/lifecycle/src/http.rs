//! A small HTTP port: bounded connections, slow clients cut off, a graceful end.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::{Acceptor, TaskSpawner};

/// A TLS handshake takes milliseconds; one that takes so long holds a connection for nothing.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bounds of an HTTP port.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Connections served at a time; further ones wait in the system's backlog.
    pub max_connections: usize,
    /// Time for a request's head to arrive, and for the next one on a kept connection. One on
    /// which no request begins for up to twice as long is closed, whatever it does meanwhile.
    pub header_timeout: Duration,
}

impl ServeLimits {
    /// For an admin port: a few scrapers, probes and people.
    pub const ADMIN: Self = Self { max_connections: 64, header_timeout: Duration::from_secs(30) };
}

/// Serves `router` over HTTP/1.1 and h2c until the spawner's drain is signalled. Then it stops
/// listening and returns; connections finish the request they are in, as tasks of the spawner.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServeLimits,
    spawner: TaskSpawner,
) {
    serve_all(listener, || None, router, limits, spawner).await;
}

/// The same over TLS, as it is at the beginning of each connection. Whoever speaks anything else is
/// cut off.
pub async fn serve_tls(
    listener: TcpListener,
    tls: impl Fn() -> Arc<ServerConfig>,
    router: Router,
    limits: ServeLimits,
    spawner: TaskSpawner,
) {
    let tls = || Some(TlsAcceptor::from(tls()));
    serve_all(listener, tls, router, limits, spawner).await;
}

async fn serve_all(
    listener: TcpListener,
    tls: impl Fn() -> Option<TlsAcceptor>,
    router: Router,
    limits: ServeLimits,
    spawner: TaskSpawner,
) {
    let mut acceptor = Acceptor::new(listener, limits.max_connections);
    let drain = spawner.drain();
    loop {
        let (stream, permit) = tokio::select! {
            accepted = acceptor.next() => accepted,
            () = drain.signaled() => return,
        };
        let connection = Connection { router: router.clone(), limits, permit };
        let (tls, own) = (tls(), spawner.clone());
        spawner.spawn("http-connection", async move {
            match tls {
                None => connection.run(stream, own).await,
                Some(tls) => {
                    if let Some(stream) = handshake(&tls, stream).await {
                        connection.run(stream, own).await;
                    }
                }
            }
        });
    }
}

async fn handshake(
    tls: &TlsAcceptor,
    stream: TcpStream,
) -> Option<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("a TLS handshake took too long");
            None
        }
    }
}

/// The streams of an HTTP/2 connection are supervised tasks like any other.
impl<F> hyper::rt::Executor<F> for TaskSpawner
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.spawn("http-stream", async move {
            stream.await;
        });
    }
}

struct Connection {
    router: Router,
    limits: ServeLimits,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run<S>(self, stream: S, spawner: TaskSpawner)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let drain = spawner.drain();
        let mut builder = auto::Builder::new(spawner);
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.limits.header_timeout);
        builder.http2().timer(TokioTimer::new());
        let router = TowerToHyperService::new(self.router);
        let begun = AtomicU64::new(0);
        let service = service_fn(|request| {
            begun.fetch_add(1, Ordering::Relaxed);
            router.call(request)
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        // The library has no limit for clients that say nothing at all, speak HTTP/2 without
        // asking anything, or do not read; a few of them would take the port.
        let mut looks = tokio::time::interval(self.limits.header_timeout);
        looks.tick().await;
        let (mut seen, mut draining) = (0, false);
        let ended = loop {
            tokio::select! {
                ended = connection.as_mut() => break ended,
                _ = looks.tick() => {
                    let now = begun.load(Ordering::Relaxed);
                    if std::mem::replace(&mut seen, now) == now {
                        break Ok(());
                    }
                }
                () = drain.signaled(), if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection broke");
        }
        drop(self.permit);
    }
}

#[cfg(test)]
mod tests;
