//! From the wire's messages to the types of `domain` and `replication`, and back.
//!
//! What comes from the wire is foreign: everything is checked for presence and bounded. Words
//! for people (a decision's reason, an evidence level) that are newer than this code are read as
//! the plainest one there is, so that neighbouring versions work together.

mod common;
mod routing;

pub use routing::{Asked, Decided, Reported, What};

/// Longest name that is taken, in bytes: of a model, a tenant, a backend, a request.
pub const MAX_NAME_BYTES: usize = 1024;

/// A message that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A part without which the rest means nothing is absent.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A number or word is none that may stand there.
    #[error("`{field}` is {value}, which is not allowed")]
    NotAllowed {
        /// The field.
        field: &'static str,
        /// What stands there.
        value: String,
    },
    /// There is more of something than a message may hold.
    #[error("`{field}` has {count} entries or bytes, {limit} are allowed")]
    TooMany {
        /// The field.
        field: &'static str,
        /// How much there is.
        count: usize,
        /// How much may be there.
        limit: usize,
    },
}

/// A name of at most [`MAX_NAME_BYTES`].
pub(crate) fn name(field: &'static str, text: &str) -> Result<(), WireError> {
    bounded(field, text.len(), MAX_NAME_BYTES)
}

pub(crate) fn bounded(field: &'static str, count: usize, limit: usize) -> Result<(), WireError> {
    if count > limit { Err(WireError::TooMany { field, count, limit }) } else { Ok(()) }
}

pub(crate) fn present<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing(field))
}

pub(crate) fn all<T, U>(
    field: &'static str,
    limit: usize,
    values: Vec<T>,
) -> Result<Vec<U>, WireError>
where
    U: TryFrom<T, Error = WireError>,
{
    bounded(field, values.len(), limit)?;
    values.into_iter().map(U::try_from).collect()
}
