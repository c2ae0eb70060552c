//! What can go wrong between two services.

use std::error::Error as StdError;

/// A server or a channel could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate, its key or the authority's certificate is of no use.
    #[error("the certificates of this service cannot be used: {reason}")]
    Certificates {
        /// Why.
        reason: String,
    },
    /// A peer's address is none that may be called.
    #[error("cannot call {address}: {reason}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// The listener failed.
    #[error("cannot serve: {0}")]
    Listener(#[from] std::io::Error),
    /// The server ended before it should.
    #[error("the server ended: {0}")]
    Serve(String),
}

/// An error with all that caused it, on one line: the outermost one alone says no more than
/// "transport error".
pub fn explain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}
