//! The crate's one error type.

/// What can be wrong with an engine's configuration or a submitted request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A field of [`EngineConfig`](crate::EngineConfig) has a value that makes no sense.
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
