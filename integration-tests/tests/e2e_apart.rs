//! Edge, router and telemetry as processes of their own, over gRPC and a real NATS server, in
//! front of engine doubles. `integration-tests/show apart` and `show kills` run the same at length.

use std::process::Command;

use integration_tests::environment::{nats_server, python, warmpath_binary, workspace_root};
use serde_json::Value;

fn run(arguments: &[&str]) -> Value {
    let binary = warmpath_binary();
    let run = Command::new(python())
        .arg(workspace_root().join("integration-tests/python/apart.py"))
        .args(arguments)
        .args(["--bin".as_ref(), binary.parent().unwrap().as_os_str()])
        .args(["--nats".as_ref(), nats_server().as_os_str()])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{}\n{told}", String::from_utf8_lossy(&run.stdout));
    serde_json::from_slice(&run.stdout).unwrap()
}

#[test]
fn a_router_telemetry_or_nats_that_is_killed_fails_no_request() {
    let kills = [
        "kills",
        "--rate",
        "10",
        "--minutes",
        "1",
        "--pause",
        "2",
        "--documents",
        "6",
        // Other tests run beside this one: only what fails counts here.
        "--hits-within",
        "100",
        "--victims",
        "router-0,router-1,telemetry,nats",
    ];
    let report = run(&kills);
    let outcomes = report["figures"]["outcomes"].as_object().unwrap();
    assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["complete"], "{report}");
    assert_eq!(report["figures"]["phases"].as_array().unwrap().len(), 4);
}
