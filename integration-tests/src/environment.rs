//! What `integration-tests/run` installs for the end-to-end tests and tells them by environment
//! variables. This is the one place of the tests that reads the environment.

use std::path::PathBuf;

/// The Python interpreter that has the official OpenAI SDK and the llama.cpp server.
///
/// # Panics
/// It was not told: the test was started by other means than `integration-tests/run`.
pub fn python() -> PathBuf {
    told("WARMPATH_TEST_PYTHON")
}

/// The weights of SmolLM2-135M-Instruct in the GGUF format.
///
/// # Panics
/// As [`python`].
pub fn llama_model() -> PathBuf {
    told("WARMPATH_TEST_LLAMA_MODEL")
}

/// The `warmpath` binary, built from this tree.
///
/// # Panics
/// As [`python`].
pub fn warmpath_binary() -> PathBuf {
    told("WARMPATH_TEST_BINARY")
}

/// The NATS server.
///
/// # Panics
/// As [`python`].
pub fn nats_server() -> PathBuf {
    told("WARMPATH_TEST_NATS_SERVER")
}

/// The folder of the workspace.
pub fn workspace_root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test command passes paths to the tests by environment variables"
)]
fn told(name: &str) -> PathBuf {
    let path = std::env::var(name).map(PathBuf::from).unwrap_or_else(|_| {
        panic!("{name} is not set; run `./integration-tests/run --only e2e`, which installs what this test needs")
    });
    assert!(path.exists(), "{name} names {}, which does not exist", path.display());
    path
}
