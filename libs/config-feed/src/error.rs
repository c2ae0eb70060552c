//! What can go wrong on the way to telemetry.

use crate::Refusal;

/// Telemetry could not be asked, or said what is not understood.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FeedError {
    /// It is not in reach.
    #[error("telemetry: {0}")]
    Unreachable(String),
    /// Another process of this one's name is a member, and began later.
    #[error(
        "another process has this one's member.id and began later: give each edge and router a \
         name of its own"
    )]
    NameTaken,
    /// It does not let this process in.
    #[error("telemetry refuses: {0}")]
    Refused(String),
    /// An answer has no meaning here.
    #[error("telemetry sent what is not understood: {0}")]
    Malformed(String),
}

impl From<Refusal> for FeedError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NameTaken => Self::NameTaken,
            other => Self::Refused(other.to_string()),
        }
    }
}
