//! Credentials that Warmpath itself gives out: their text, how they are made and how checked.
//!
//! - [`key`]: API keys of tenants, of which only a hash is stored
//! - [`join`]: tokens with which engines announce themselves, of which only a public key is stored
//! - [`presented`]: what a request carries
//!
//! Both are shown once, when they are made. Nothing here prints a secret by the way.

mod hex;
pub mod join;
pub mod key;
pub mod presented;

pub use hex::{bytes_from_hex, hex};
pub use join::{JoinKey, MintedToken};
pub use key::GeneratedKey;

/// A credential cannot be made or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The system has no random source.
    #[error("the system gives no randomness")]
    NoRandomness,
    /// A text is no join token. It is not quoted.
    #[error("it is no join token: wp-join-<id>-<64 hex digits> is one")]
    NoJoinToken,
}
