//! The crate's one error type.

/// A rule that a setting keeps or breaks: whether it is kept, the field's name, and what is allowed.
pub(crate) type Rule = (bool, &'static str, &'static str);

/// What can be wrong with a configuration, a workload or a submitted request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A field of [`EngineConfig`](crate::EngineConfig) or of a workload has a value that makes no
    /// sense.
    #[error("{field}: {expected}")]
    Config {
        /// The field's name.
        field: &'static str,
        /// What is allowed.
        expected: &'static str,
    },
    /// A request with this id is still waiting or running.
    #[error("request {0} is already in the engine")]
    DuplicateRequest(u64),
    /// A prompt or an output limit of zero tokens.
    #[error("a request needs at least one prompt token and one output token")]
    EmptyRequest,
    /// The request could never run, not even alone on an empty engine.
    #[error("the request needs {needed_blocks} blocks, the cache has {usable_blocks}")]
    TooLong {
        /// Blocks that prompt and output need together.
        needed_blocks: u32,
        /// Blocks the engine can hand out.
        usable_blocks: u32,
    },
}

impl Error {
    /// # Errors
    /// [`Error::Config`] of the first rule that is broken.
    pub(crate) fn first_broken(rules: impl IntoIterator<Item = Rule>) -> Result<(), Self> {
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, expected)) => Err(Self::Config { field, expected }),
            None => Ok(()),
        }
    }
}
