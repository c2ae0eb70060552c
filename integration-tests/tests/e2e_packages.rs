//! What the test command installed is what the requirements pin.

use std::fs;
use std::process::Command;

use integration_tests::environment;

#[test]
fn the_python_packages_are_those_that_are_pinned() {
    let pins = environment::workspace_root().join("integration-tests/requirements.in");
    for pin in fs::read_to_string(pins).unwrap().lines() {
        let (package, version) = pin.split_once("==").unwrap();
        let script =
            format!("import importlib.metadata as m; print(m.version({package:?}), end='')");
        let run = Command::new(environment::python()).args(["-c", &script]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&run.stdout),
            version,
            "{package}: {}",
            String::from_utf8_lossy(&run.stderr)
        );
    }
}

#[test]
fn the_model_is_a_gguf_file() {
    let start = fs::read(environment::llama_model()).unwrap();
    assert_eq!(&start[..4], b"GGUF");
}

#[test]
fn the_binary_says_what_it_is() {
    let run = Command::new(environment::warmpath_binary()).arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let expected = concat!("warmpath ", env!("CARGO_PKG_VERSION"));
    assert_eq!(said.trim_end(), expected, "{}", String::from_utf8_lossy(&run.stderr));
}
