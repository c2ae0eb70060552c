//! Taking connections of a port, so many at a time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// First and longest pause after the system refuses a connection (most often: no file handles
/// are left), so that nothing spins.
const PAUSE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

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
        Ok((stream, permit))
    }
}
