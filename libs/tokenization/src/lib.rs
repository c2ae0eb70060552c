//! Tokenizers, chat templates, block keys and the cache of tokenised prefixes.
//!
//! A request's place in the KV map is decided by the very tokens the engine will see, so this
//! crate repeats what an engine does before its scheduler: it reads a [`ModelFolder`], renders a
//! [`ChatRequest`] with the model's own chat template, tokenises the text, and names every full
//! block of tokens with a chained [`KeySpace`] key. Requests of other APIs become chats first
//! ([`chat_of_messages`], [`chat_of_responses`]).
//!
//! Where no model folder is at hand, [`canonical_text`] gives bytes that stand for the prompt,
//! and [`KeySpace::text_keys`] names blocks of those.
//!
//! Everything here is synchronous and computes; nothing sleeps or reads the network. Long texts
//! take milliseconds: [`ModelFolder::estimate_uncached_bytes`] tells the caller beforehand, so
//! that it can move such work off its asynchronous threads.

mod chat;
mod dialect;
mod encode;
mod error;
mod folder;
mod keys;
pub mod parity;
mod template;
mod text;

pub use chat::{ChatRequest, TruncationSide};
pub use dialect::{Habits, chat_of_messages, chat_of_responses};
pub use encode::CacheStats;
pub use error::{FolderError, RenderError};
pub use folder::{ModelFolder, RenderedPrompt, TokenizedPrompt};
pub use keys::{KeySpace, KeyWriter};
pub use text::canonical_text;
