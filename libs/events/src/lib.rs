//! What a region tells and hears over the bus, for systems outside of it too: subjects and JSON
//! payloads of version 1, as `docs/events.md` has them.
//!
//! - [`Region`]: the subjects
//! - [`BackendEvent`], [`LoadEvent`], [`DecisionEvent`]: what is told
//! - [`DecisionEvents`]: a routing port that tells of its decisions
//! - [`Announcement`], [`Envelope`], [`Answer`]: engines that announce themselves
//!
//! Fields may be added within a version; readers skip those that they do not know. The bus may
//! lose any message: whoever needs the state asks for it.

mod announcement;
mod decisions;
mod payload;
mod region;

pub use announcement::{Announcement, Answer, Envelope, Phase, Verdict};
pub use decisions::DecisionEvents;
pub use payload::{BackendEvent, DecisionEvent, LoadEvent, RankLoad};
pub use region::Region;

/// A payload or a name is not of its form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// A region's name.
    #[error("a region's name has 1 to 32 lower-case letters, digits and dashes")]
    Region,
    /// A payload. It is not quoted.
    #[error("the payload is not of its form (line {line}, column {column})")]
    Payload {
        /// Where, from 1.
        line: usize,
        /// Where in it, from 1.
        column: usize,
    },
}

/// A payload as it is sent.
pub fn encode(payload: &impl serde::Serialize) -> bytes::Bytes {
    // Structs of strings, numbers and lists always serialise.
    serde_json::to_vec(payload).unwrap_or_default().into()
}

/// Reads a payload.
///
/// # Errors
/// It is not of that form.
pub fn decode<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<T, EventError> {
    serde_json::from_slice(payload)
        .map_err(|error| EventError::Payload { line: error.line(), column: error.column() })
}
