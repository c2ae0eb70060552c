//! In-process clusters, wire tests and architecture tests.

pub mod environment;
