//! Logs belong to the whole process, so this test has a process of its own.

use instrumentation::{InstrumentationError, LogConfig, Registry, encode, init_logs};

#[test]
fn logs_are_set_up_once_and_their_losses_are_a_metric() {
    let guard = init_logs(&LogConfig::default()).unwrap();
    let again = init_logs(&LogConfig::default());
    assert!(matches!(again, Err(InstrumentationError::AlreadySetUp)));
    let registry = Registry::new();
    guard.register(&registry).unwrap();
    assert!(encode(&registry).contains("warmpath_log_dropped_lines_total 0"));
    assert!(matches!(guard.register(&registry), Err(InstrumentationError::Metric(_))));
}
