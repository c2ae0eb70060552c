//! What passes through, and how.

use crate::testing::*;

#[tokio::test]
async fn a_stream_passes_byte_for_byte_without_the_usage_that_was_not_asked_for() {
    let (a, b) = (token("a"), token("b"));
    let engine = Engine::start("e", vec![events(&[ROLE, &a, &b, USAGE, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.text(), [ROLE, &a, &b, DONE].concat());
    assert!(reply.whole);
    assert_eq!(reply.header("x-engine"), Some("yes"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(bed.router.events(), [["first-token", "finished 9+2 cached 4"]]);
    let sent = &engine.requests()[0];
    let expected = STREAM.replace("true}", r#"true,"stream_options":{"include_usage":true}}"#);
    assert_eq!(String::from_utf8_lossy(&sent.body), expected);
    bed.assert_idle().await;
}
