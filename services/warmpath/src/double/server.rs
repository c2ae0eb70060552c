//! Accepting connections and serving HTTP/1.1 on them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::realtime;
use super::routes;
use super::socket::{Socket, SocketControl};

/// Connections at a time; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 16_384;
/// Pause after the system could not accept or listen, so as not to spin.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Time at a stop for the end of an answer to leave. A request whose head is not here by then is not
/// waited for.
const FLUSH_TIME: Duration = Duration::from_millis(100);

/// Serves until `stop`, then finishes the requests in flight. Dropping the future closes all.
pub(crate) async fn serve(engine: Arc<Engine>, listener: TcpListener, stop: CancellationToken) {
    let Ok(address) = listener.local_addr() else { return };
    let mut refusing = engine.faults.watch_refusing();
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        let refuse = *refusing.borrow_and_update();
        if refuse {
            listener = None;
        } else if listener.is_none() {
            listener = listen_again(address).await;
        }
        tokio::select! {
            accepted = accept(listener.as_ref()), if connections.len() < MAX_CONNECTIONS => {
                match accepted {
                    Ok(stream) => {
                        connections.spawn(connection(Arc::clone(&engine), stream, stop.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection was not accepted");
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
            }
            Some(_) = connections.join_next() => {}
            _ = refusing.changed() => {}
            () = tokio::time::sleep(RETRY_PAUSE), if listener.is_none() && !refuse => {}
            () = stop.cancelled() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => Ok(listener.accept().await?.0),
        None => std::future::pending().await,
    }
}

/// Opens the port again after it was closed. Someone else may have it for a moment: no listener,
/// and the next turn of the loop tries again.
async fn listen_again(address: SocketAddr) -> Option<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(%error, %address, "the port cannot be opened again yet");
            None
        }
    }
}

async fn connection(engine: Arc<Engine>, stream: TcpStream, stop: CancellationToken) {
    // Fails only on a connection that is gone already.
    let _ = stream.set_nodelay(true);
    let control = Arc::new(SocketControl::default());
    let open = Arc::clone(&engine.open_sockets);
    let io = TokioIo::new(Socket::new(stream, Arc::clone(&control), open));
    let service = service_fn(|request| routes::handle(&engine, &control, request));
    let connection = http1::Builder::new().serve_connection(io, service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // An error is a client that went away or a fault on purpose: nothing to tell.
        _ = connection.as_mut() => {
            if let Some(upgrade) = control.switched() {
                tokio::select! {
                    () = realtime::carry(&engine, upgrade) => {}
                    () = stop.cancelled() => {}
                }
            }
            return;
        }
        () = control.idle_for(engine.keep_alive()) => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let ended = connection.as_mut();
    tokio::select! {
        _ = ended => {}
        () = async { tokio::join!(stop.cancelled(), control.quiet_for(FLUSH_TIME)); } => {}
    }
}
