//! Listening sockets, and errors that say what to do.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::LifecycleError;

/// Listens on `address`; port 0 takes a free one.
///
/// # Errors
/// The address is taken, not ours, or not allowed; the error says which and what to do.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, LifecycleError> {
    TcpListener::bind(address).await.map_err(|source| LifecycleError::Bind {
        address,
        hint: hint(&source),
        source,
    })
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
    async fn an_address_of_another_machine_is_refused() {
        // 192.0.2.0/24 is set aside for documentation (RFC 5737): no interface has it.
        let error = bind(SocketAddr::from(([192, 0, 2, 1], 0))).await.unwrap_err().to_string();
        assert!(error.contains("no interface of this machine"), "{error}");
    }
}
