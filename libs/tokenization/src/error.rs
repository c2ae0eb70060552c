//! What can go wrong: one enum for a folder that cannot be read, one for a request.

use std::path::PathBuf;

/// A model folder that cannot be used. The message names the file and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file is missing or unreadable.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file was read and does not hold what it should.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, in one line.
        reason: String,
    },
}

/// A request that this crate cannot turn into tokens. The engine may still take it: the caller
/// falls back to what it knows without a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A field of the body has a shape no template could read.
    #[error("`{field}` {reason}")]
    Body {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The model has no chat template.
    #[error("the model folder has no chat template")]
    NoTemplate,
    /// The template that came with the request does not compile or is too long.
    #[error("the request's chat template is not usable: {0}")]
    BadTemplate(String),
    /// The template refused the request (`raise_exception`), or failed on it.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// Rendering took more steps, or made more text, than allowed.
    #[error("the chat template exceeded its budget")]
    TooMuch,
    /// The text has a piece without a break that the tokenizer would need too much memory for.
    #[error("a piece of the text is too long to be tokenised at once")]
    TooLong,
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}
