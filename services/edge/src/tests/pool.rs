//! Connections to engines: kept, reused, replaced.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::testing::*;

fn one(text: &str) -> Vec<Step> {
    vec![answer("200 OK", "", text)]
}

#[tokio::test]
async fn a_connection_is_used_for_one_request_after_the_other() {
    let stream = events(&[&token("a"), DONE]);
    let scripts = vec![one("1"), stream.clone(), one("2"), stream];
    let engine = Engine::start("e", scripts).await;
    let bed = Bed::start(&[&engine]).await;
    for body in [WHOLE, STREAM, WHOLE, STREAM] {
        assert_eq!(bed.client.chat(body).await.status, 200);
        bed.assert_idle().await;
    }
    assert_eq!(engine.accepted(), 1);
}

#[tokio::test]
async fn a_client_connection_serves_one_request_after_the_other() {
    let engine = Engine::start("e", vec![events(&[&token("a"), DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut stream = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    assert!(read_reply(&mut stream, "POST").await.whole);
    for _ in 0..3 {
        let bytes = request_bytes("POST", "/v1/chat/completions", "", STREAM);
        stream.write_all(&bytes).await.unwrap();
        assert!(read_reply(&mut stream, "POST").await.whole);
    }
    assert_eq!(engine.accepted(), 1);
}

#[tokio::test]
async fn a_connection_that_the_engine_closed_meanwhile_costs_no_request() {
    // Closed right after the answer without a word: seen at checkout, or at the first write.
    let script = [one("1"), vec![Step::Close]].concat();
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    for _ in 0..50 {
        let reply = bed.client.chat(WHOLE).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "1"));
    }
    assert_eq!(engine.requests().len(), 50);
    assert!(bed.router.events().iter().all(|e| e == &["finished"]));
}

#[tokio::test]
async fn a_request_on_a_stale_connection_is_sent_once_more_under_another_id() {
    // The second request is read and dropped without a byte of answer, as by an engine that
    // closed while it was on its way.
    let engine = Engine::start("e", vec![one("1"), vec![Step::Reset], one("2")]).await;
    let bed = Bed::start(&[&engine]).await;
    assert_eq!(bed.client.chat(WHOLE).await.text(), "1");
    bed.assert_idle().await;
    assert_eq!(bed.client.chat(WHOLE).await.text(), "2");
    assert_eq!((engine.accepted(), engine.requests().len()), (2, 3));
    let ids: Vec<_> =
        engine.requests().iter().map(|r| r.header("x-request-id").unwrap().to_owned()).collect();
    assert_eq!(ids[2], format!("{}-r1", ids[1]));
    assert_eq!(bed.router.events(), [["finished"], ["finished"]]);
}

#[tokio::test]
async fn a_request_is_not_sent_twice_to_an_engine_that_broke_on_a_fresh_connection() {
    let engine = Engine::start("e", vec![vec![Step::Reset]]).await;
    let bed = Bed::start(&[&engine]).await;
    assert_eq!(bed.client.chat(WHOLE).await.status, 502);
    assert_eq!(engine.requests().len(), 1);
    assert_eq!(bed.router.events(), [["failed connection"]]);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_not_sent_again_when_the_engine_had_time_to_work_on_it() {
    let slow = vec![Step::Pause(Duration::from_secs(2)), Step::Reset];
    let engine = Engine::start("e", vec![one("1"), slow]).await;
    let bed = Bed::start(&[&engine]).await;
    assert_eq!(bed.client.chat(WHOLE).await.text(), "1");
    assert_eq!(bed.client.chat(WHOLE).await.status, 502);
    assert_eq!(engine.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_before_the_engine_would() {
    let engine = Engine::start("e", vec![one("1")]).await;
    let bed = Bed::start(&[&engine]).await;
    assert_eq!(bed.client.chat(WHOLE).await.text(), "1");
    assert_eq!(engine.accepted(), 1);
    tokio::time::sleep(Duration::from_millis(4900)).await;
    engine.await_all_closed().await;
    assert_eq!(bed.client.chat(WHOLE).await.text(), "1");
    assert_eq!(engine.accepted(), 2);
}

#[tokio::test]
async fn refusals_of_a_full_engine_do_not_cost_their_connection() {
    let full = answer("503 Service Unavailable", "", "full");
    let engine = Engine::start("a", vec![vec![full]]).await;
    let good = Engine::start("b", vec![one("1")]).await;
    let bed = Bed::start(&[&engine, &good]).await;
    for _ in 0..5 {
        assert_eq!(bed.client.chat(WHOLE).await.text(), "1");
        bed.assert_idle().await;
    }
    assert_eq!((engine.accepted(), good.accepted()), (1, 1));
}
