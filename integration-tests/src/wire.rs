//! A wire between two parts that can be cut, or pass nothing for a while.

use std::net::SocketAddr;
use std::sync::Arc;

use lifecycle::{Lifecycle, TaskHandle};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A wire that can be cut, or pass nothing for a while.
pub struct Wire {
    /// Its near end.
    pub address: String,
    passes: watch::Sender<bool>,
    connections: Arc<Mutex<Vec<TaskHandle>>>,
    lifecycle: Lifecycle,
}

impl Wire {
    /// One that leads to this address.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn to(address: &str) -> Self {
        let target = address.trim_start_matches("http://").to_owned();
        let listener: TcpListener =
            lifecycle::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("a bound socket"));
        let (lifecycle, connections) = (Lifecycle::new(), Arc::new(Mutex::new(Vec::new())));
        let passes = watch::Sender::new(true);
        let gate = passes.subscribe();
        let (spawner, of_task) = (lifecycle.spawner(), Arc::clone(&connections));
        lifecycle.spawn("wire", async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let Ok(mut far) = TcpStream::connect(&target).await else { continue };
                let gate = gate.clone();
                let connection = spawner.spawn("connection", async move {
                    let ((near_out, near_in), (far_out, far_in)) = (near.split(), far.split());
                    tokio::join!(
                        copy(near_out, far_in, gate.clone()),
                        copy(far_out, near_in, gate)
                    );
                });
                of_task.lock().push(connection);
            }
        });
        Self { address, passes, connections, lifecycle }
    }

    /// Nothing passes any more.
    pub fn stall(&self) {
        self.passes.send_replace(false);
    }

    /// All of it passes.
    pub fn resume(&self) {
        self.passes.send_replace(true);
    }

    /// Every connection breaks.
    pub fn cut(&self) {
        self.connections.lock().drain(..).for_each(|connection| connection.abort());
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut passes: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n) = from.read(&mut buffer).await {
        let passed = passes.wait_for(|passes| *passes).await.is_ok();
        if n == 0 || !passed || to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.lifecycle.begin_drain();
    }
}
