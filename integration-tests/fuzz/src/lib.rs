//! What must hold of every reader of foreign bytes, whatever the bytes.
//!
//! Each module has one function `check`, which panics where something does not hold. Fuzzers call
//! it with bytes of their own (`targets/`, a nightly toolchain); the test of this package calls it
//! with every file of `corpus/`, on any toolchain.

pub mod body;
pub mod config;
pub mod credentials;
pub mod events;
pub mod form;
pub mod metrics;
pub mod template;

/// One reader's check.
pub type Check = fn(&[u8]);

/// Every check, by the name of its corpus.
pub const CHECKS: [(&str, Check); 7] = [
    ("body", body::check),
    ("config", config::check),
    ("credentials", credentials::check),
    ("events", events::check),
    ("form", form::check),
    ("metrics", metrics::check),
    ("template", template::check),
];
