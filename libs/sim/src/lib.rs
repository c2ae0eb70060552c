//! What can be computed about engines without an engine: no I/O, no clock, time is passed in.
//!
//! - [`engine`]: one vLLM engine in virtual time: paged KV cache with the exact free queue,
//!   chunked prefill, continuous batching, preemption
//! - [`workload`]: seeded request sets: documents of pseudo-prose and the draws over them
//! - [`error`]: what can be wrong with a configuration or a request

pub mod engine;
pub mod error;
pub mod workload;

pub use engine::{CacheEvent, Counters, EngineConfig, EngineEvent, EngineModel, EventKind};
pub use error::Error;
