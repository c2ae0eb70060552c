//! The OpenAI dialect as far as a gateway needs it: the few request fields it reads,
//! byte-preserving edits of the rest, the event stream cut at event boundaries, and error bodies.
//!
//! The rule behind all of it: what a client sent reaches the engine as the bytes it sent, and
//! what an engine answered reaches the client as the bytes it answered. Nothing here decodes a
//! body and encodes it again.
//!
//! - [`body`]: [`BodyView`], the fields of a request and where they stand
//! - [`splice`]: [`Splice`], edits of single fields by byte range
//! - [`sse`]: [`SseSplitter`], an event stream cut into events, byte for byte
//! - [`chunk`]: [`ChunkView`], what one event of a stream says
//! - [`errors`]: [`ApiError`], bodies and events of the gateway's own errors
//! - [`multipart`]: [`FormScanner`], the model that a form names
//! - [`headers`]: values of the retry and rate limit headers

pub mod body;
pub mod chunk;
pub mod errors;
pub mod headers;
mod json;
pub mod multipart;
pub mod splice;
pub mod sse;

pub use body::{BodyError, BodyView, Field, Member, Object, PromptField, RouteKind, TokenIds};
pub use chunk::{
    ChunkView, Grammar, MAX_RESPONSE_ID_BYTES, Said, UsageFilter, UsageMeter, response_id,
    usage_of_response,
};
pub use errors::{ApiError, Dialect};
pub use json::{Items, items};
pub use multipart::{FormFault, FormModel, FormScanner};
pub use splice::Splice;
pub use sse::{FrameKind, SseFrame, SseSplitter};
