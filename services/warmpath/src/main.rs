//! The `warmpath` binary.
fn main() {}
