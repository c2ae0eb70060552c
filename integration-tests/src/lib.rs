//! In-process clusters, wire tests and architecture tests.
//!
//! - [`cluster`]: engine doubles and a whole gateway in this process
//! - [`client`]: requests over sockets of their own
//! - [`region`]: the services as processes apart, in this process
//! - [`wire`]: what is between them, to be cut
//! - [`desired`]: the admin API
//! - [`scripted`]: an engine that does byte for byte what it is told
//! - [`recorded`]: what real engines answered
//! - [`scenarios`]: longer runs that end in figures; `show` prints them, tests check them
//! - [`process`]: real engines and Python scripts
//! - [`wait`]: bounded waiting for a condition
//! - [`environment`]: what the test command installs

pub mod client;
pub mod cluster;
pub mod desired;
pub mod environment;
pub mod metrics;
pub mod process;
pub mod recorded;
pub mod region;
pub mod scenarios;
pub mod scripted;
pub mod wait;
pub mod wire;

#[path = "../../libs/openai-api/tests/support/recording.rs"]
mod recording;
