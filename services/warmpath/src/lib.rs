//! All services in one process, the operator's command line, the engine double and the benches.
//!
//! - [`config`], [`gateway`], [`serve`]: the gateway as `warmpath serve` runs it
//! - [`double`]: an engine without a model, with vLLM's cache and vLLM's answers
//! - [`demo`]: round robin against prefix routing on three doubles
//! - [`bench`](mod@bench): what the gateway adds
//! - [`sim_cli`]: workloads and traces under virtual time
//! - [`load`]: the client of demo and benches
//! - [`announce`]: beside an engine, over the bus
//! - [`cli`], [`operator`], [`key`]: the command line

pub mod announce;
pub mod bench;
pub mod cli;
pub mod config;
pub mod demo;
pub mod double;
pub mod gateway;
pub mod key;
pub mod load;
pub mod operator;
pub mod serve;
pub mod sim_cli;
pub mod stats;
