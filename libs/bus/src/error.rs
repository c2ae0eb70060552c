//! What can go wrong on a bus.

/// A subject is wrong, or a message was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// A subject or pattern is not of its form.
    #[error("a subject is not of its form: {reason}")]
    Subject {
        /// What is allowed.
        reason: &'static str,
    },
    /// The payload is larger than the bus takes.
    #[error("a message of {size} bytes is too large: {limit} are allowed")]
    TooLarge {
        /// The payload's bytes.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// There is no connection now. The message is gone; a later one may go through.
    #[error("the bus is away: the message was dropped")]
    Away,
    /// Messages are published faster than the connection takes them. The message is gone.
    #[error("the bus is too slow: the message was dropped")]
    Busy,
}
