//! Listening sockets, and errors that say what to do.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::LifecycleError;

/// Connections that the system holds until they are taken, where it allows as many (Linux:
/// `net.core.somaxconn`). The usual 128 are too few for clients that all come at once: the system
/// drops or resets what is beyond.
const BACKLOG: u32 = 4096;

/// Listens on `address`; port 0 takes a free one.
///
/// # Errors
/// The address is taken, not ours, or not allowed; the error says which and what to do.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, LifecycleError> {
    listen(address).map_err(|source| LifecycleError::Bind { address, hint: hint(&source), source })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As listeners have it everywhere: a port whose last connections are not forgotten yet is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the address is in use; stop the process that listens there or choose another port"
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has the address; use one that it has, or 0.0.0.0"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "not permitted; choose a port from 1024 upwards or grant CAP_NET_BIND_SERVICE"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_in_use_is_named_with_what_to_do() {
        let first = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let taken = first.local_addr().unwrap();
        let error = bind(taken).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot listen on {taken}: the address is in use")));
        assert!(error.contains("choose another port"), "{error}");
    }

    #[tokio::test]
    async fn a_burst_of_connections_waits_to_be_taken() {
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        // The system's own bound, where it is lower, holds too.
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        let allowed = allowed.ok().and_then(|bound| bound.trim().parse().ok()).unwrap_or(128);
        let mut clients = Vec::new();
        for n in 0..allowed.min(300) {
            let connecting = tokio::net::TcpStream::connect(address);
            let connected = tokio::time::timeout(std::time::Duration::from_secs(20), connecting);
            clients.push(connected.await.unwrap_or_else(|_| panic!("{n} were let in")).unwrap());
        }
        for _ in &clients {
            listener.accept().await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_refused() {
        // 192.0.2.0/24 is set aside for documentation (RFC 5737): no interface has it.
        let error = bind(SocketAddr::from(([192, 0, 2, 1], 0))).await.unwrap_err().to_string();
        assert!(error.contains("no interface of this machine"), "{error}");
    }
}
