//! The desired state as documents: what operators want the fleet to be.
//!
//! Each document is a JSON object of one kind, named by its id. Versions of Warmpath that are
//! neighbours share one store: a field that this version does not know is kept when the document
//! is written again. So a later minor version may add fields that older code can ignore; whatever
//! older code would misread (a new variant, another meaning) is a new major version of the
//! schema.
//!
//! Secrets never stand in a document. Keys are kept as hashes, join tokens as public keys, and
//! an engine's credential as the name under which each service's own config has it.

mod backend;
mod join_token;
mod key;
mod tenant;

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use backend::{Announced, Backend, LifecycleWish, Model};
pub use join_token::{AddressRange, JoinToken};
pub use key::ApiKey;
pub use tenant::{Limits, Tenant};

/// Fields that this version does not know, as they were found.
pub type UnknownFields = serde_json::Map<String, serde_json::Value>;

/// Longest id in bytes. Ids are labels, header values and parts of log lines.
const MAX_ID_BYTES: usize = 128;
/// Longest name of a model: with owner and path some have 100 bytes.
const MAX_MODEL_BYTES: usize = 256;

/// One kind of document.
pub trait Document: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The kind in keys.
    const KIND: &'static str;
    /// Major and minor number of the schema that this code writes.
    const SCHEMA: (u16, u16);

    /// The name in keys.
    fn id(&self) -> &str;

    /// Checks what the types do not.
    ///
    /// # Errors
    /// The first field that is wrong.
    fn validate(&self) -> Result<(), InvalidDocument>;
}

/// A document that must not be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidDocument {
    /// The field, as it is written in the document.
    pub field: &'static str,
    /// What is wrong and what is allowed. Never quotes the value.
    pub reason: String,
}

impl InvalidDocument {
    fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self { field, reason: reason.into() }
    }
}

impl fmt::Display for InvalidDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for InvalidDocument {}

/// An id is 1 to 128 visible ASCII characters.
fn check_id(field: &'static str, id: &str) -> Result<(), InvalidDocument> {
    if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(|b| b.is_ascii_graphic()) {
        let reason = format!("1 to {MAX_ID_BYTES} visible ASCII characters are allowed");
        return Err(InvalidDocument::new(field, reason));
    }
    Ok(())
}

/// A model's name is what engines list: any text without control characters.
fn check_model(field: &'static str, name: &str) -> Result<(), InvalidDocument> {
    if name.is_empty() || name.len() > MAX_MODEL_BYTES || name.chars().any(char::is_control) {
        let reason = format!("1 to {MAX_MODEL_BYTES} bytes without control characters are allowed");
        return Err(InvalidDocument::new(field, reason));
    }
    Ok(())
}

/// 32 bytes as 64 lower-case hex digits.
fn check_hex(field: &'static str, text: &str) -> Result<(), InvalidDocument> {
    let plain = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != 64 || !plain {
        return Err(InvalidDocument::new(field, "64 lower-case hex digits are needed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
