//! One suite for both adapters.

#[path = "conformance/bed.rs"]
mod bed;
#[path = "conformance/suite.rs"]
mod suite;
