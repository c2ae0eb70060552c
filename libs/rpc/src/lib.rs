//! What the gRPC ends of all services share.
//!
//! - [`RawServerConfig`], [`ServerConfig`]: where a service listens, and who may come
//! - [`RawClientConfig`], [`ClientConfig`]: channels to peers, which connect again by themselves
//! - [`Server`]: serves until a drain
//! - [`https`]: TLS of the ports that people and scripts call by HTTP
//! - [`Fingerprint`]: tells whether two ends have the same secret, and nothing else of it
//!
//! TLS between services is always mutual: each side shows a certificate, and takes only those that go back to
//! `ca`. Without TLS only loopback addresses are served and called, unless `allow_plaintext` says
//! that something else protects the network.
//!
//! ```no_run
//! # async fn run(drain: lifecycle::Drain, routes: tonic::service::Routes)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use rpc::{Metrics, RawServerConfig, Server, ServerConfig};
//!
//! let config = ServerConfig::new(RawServerConfig::default())?;
//! let listener = lifecycle::bind(config.listen()).await?;
//! let server = Server::new(listener, &config, Metrics::default())?;
//! println!("peers reach us at {}", server.address());
//! let channel = config.client().channel("http://127.0.0.1:7001")?;
//! server.run(routes, drain).await?;
//! # drop(channel);
//! # Ok(())
//! # }
//! ```

mod client;
mod config;
mod error;
mod fingerprint;
pub mod https;
mod metrics;
mod server;

pub use client::{ClientConfig, is_address};
pub use config::{RawClientConfig, RawServerConfig, RawTls, ServerConfig};
pub use error::{Error, explain};
pub use fingerprint::Fingerprint;
pub use metrics::Metrics;
pub use server::Server;

/// Largest message that either side takes, in bytes: what tonic's services allow by default. A
/// prompt of a million tokens is half a megabyte of keys.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
