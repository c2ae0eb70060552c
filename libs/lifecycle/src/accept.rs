//! Taking connections of a port, so many at a time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// First and longest pause after the system refuses a connection (most often: no file handles
/// are left), so that nothing spins.
const PAUSE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// After so long without a byte the system asks whether the other side of a connection is there.
pub const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
/// How often it asks again: one that does not answer is gone after two minutes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// How many questions go without an answer until the connection ends.
pub const KEEPALIVE_RETRIES: u32 = 4;

/// A listener that takes a connection only when there is a permit for it. Further ones wait in
/// the system's backlog.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    pause: Duration,
}

impl Acceptor {
    /// Takes at most `max_connections` at a time.
    pub fn new(listener: TcpListener, max_connections: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max_connections));
        Self { listener, permits, pause: PAUSE[0] }
    }

    /// The permits: all of them are free when the last connection has ended.
    pub fn permits(&self) -> &Arc<Semaphore> {
        &self.permits
    }

    /// The next connection, with the permit that it holds until its end. Safe to give up waiting
    /// for: no connection is lost.
    pub async fn next(&mut self) -> (TcpStream, OwnedSemaphorePermit) {
        loop {
            match self.accept().await {
                Ok(accepted) => {
                    self.pause = PAUSE[0];
                    return accepted;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    let pause = self.pause;
                    self.pause = (pause * 2).min(PAUSE[1]);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = self.listener.accept().await?;
        stream.set_nodelay(true)?;
        // A side that is gone without a word, as by a pulled plug, would hold its place for ever.
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_TIME)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok((stream, permit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_asks_whether_a_client_is_still_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut acceptor = Acceptor::new(listener, 1);
        let (client, (accepted, _permit)) =
            tokio::join!(TcpStream::connect(address), acceptor.next());
        let socket = SockRef::from(&accepted);
        assert!(client.is_ok() && socket.keepalive().expect("an open socket"));
        assert_eq!(socket.tcp_keepalive_time().expect("it is on"), KEEPALIVE_TIME);
        assert_eq!(socket.tcp_keepalive_interval().expect("it is on"), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().expect("it is on"), KEEPALIVE_RETRIES);
    }
}
