//! Asking again.

use crate::testing::*;

#[tokio::test]
async fn a_failure_before_the_first_token_is_answered_by_another_engine() {
    let bad = Engine::start("a", vec![vec![Step::Reset]]).await;
    let good = Engine::start("b", vec![events(&[ROLE, &token("b"), DONE])]).await;
    let bed = Bed::start(&[&bad, &good]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [ROLE, &token("b"), DONE].concat());
    bed.assert_idle().await;
}
