//! The API as its users see it, over a store in memory.

mod credentials;
mod documents;
mod kit;
mod log;
mod refusals;
