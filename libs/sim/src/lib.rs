//! A cluster without a cluster: no I/O, no clock, time is passed in or virtual.
//!
//! - [`engine`]: one vLLM engine in virtual time: paged KV cache with the exact free queue,
//!   chunked prefill, continuous batching, preemption
//! - [`lru`]: the plain block cache of the published documents workload
//! - [`workload`], [`trace`]: seeded request sets, and recorded traffic
//! - [`gateway`]: the production index, load book, fit and choice as a gateway uses them, and the
//!   other ways to route
//! - [`cluster`]: a gateway and its engines in virtual time
//! - [`windowed`], [`partition`]: the published documents workload, and the best fixed places in it
//! - [`outcome`]: what a run measured
//! - [`index_load`]: recorded prompts for benches of an index
//! - [`python_random`]: the generator that the published figures were drawn with
//! - [`error`]: what can be wrong with a configuration or a request

pub mod cluster;
pub mod engine;
pub mod error;
pub mod gateway;
pub mod index_load;
pub mod lru;
pub mod outcome;
pub mod partition;
pub mod python_random;
pub mod request;
pub mod trace;
pub mod windowed;
pub mod workload;

pub use engine::{CacheEvent, Counters, EngineConfig, EngineEvent, EngineModel, EventKind};
pub use error::Error;
