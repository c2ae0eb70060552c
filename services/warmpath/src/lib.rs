//! All services in one process, the operator's command line and the engine double.

pub mod double;
