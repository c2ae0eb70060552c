//! What can go wrong on the way to telemetry.

/// Telemetry could not be asked, or said what is not understood.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FeedError {
    /// It is not in reach, or refused.
    #[error("telemetry: {0}")]
    Unreachable(String),
    /// Another process of this one's name is a member, and began later.
    #[error(
        "another process has this one's member.id and began later: give each edge and router a \
         name of its own"
    )]
    NameTaken,
    /// An answer has no meaning here.
    #[error("telemetry sent what is not understood: {0}")]
    Malformed(String),
}
