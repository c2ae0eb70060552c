//! An engine that dies under load, and comes back.

use integration_tests::scenarios::kill;

#[tokio::test]
async fn a_killed_engine_fails_no_request_before_its_first_token_and_comes_back_cold() {
    let report = kill::run(100, 100).await;
    assert_eq!(report.failed, 0, "{:?}", report.failures);
    assert_eq!(report.complete + report.interrupted, report.requests);
    assert!(report.interrupted > 0, "it was killed while it streamed: {report:?}");
    assert!(report.matched_blocks_before > 0, "{report:?}");
    assert_eq!(report.matched_blocks_after_restart, 0, "its cache is empty");
    assert!(report.came_back);
}
