//! Asking again, and when not to.

use domain::ErrorCode;

use crate::testing::*;

async fn good() -> Engine {
    Engine::start("b", vec![events(&[ROLE, &token("b"), USAGE, DONE])]).await
}

fn full() -> Vec<Step> {
    vec![answer("503 Service Unavailable", "retry-after: 7\r\n", r#"{"error":"full"}"#)]
}

#[tokio::test]
async fn a_failure_before_the_first_token_is_answered_by_another_engine() {
    let scripts = [
        ("connection", vec![Step::Reset]),
        ("connection", vec![Step::Close]),
        ("connection", vec![answer("101 Switching Protocols", "upgrade: h2c\r\n", "")]),
        ("interrupted", vec![sse(), Step::Reset]),
        ("interrupted", vec![sse(), event(ROLE), Step::Reset]),
        ("interrupted", vec![sse(), event(": keep-alive\n\n"), Step::Reset]),
        ("interrupted", vec![sse(), event(ROLE), Step::Close]),
        ("interrupted", events(&[ROLE])),
        ("interrupted", events(&[])),
        ("server_error", vec![answer("500 Internal Server Error", "", "oops")]),
        ("server_error", events(&[ROLE, "data: {\"error\":{\"code\":500}}\n\n", DONE])),
        ("back_pressure", full()),
        ("back_pressure", vec![answer("429 Too Many Requests", "", "")]),
    ];
    for (class, script) in scripts {
        let (bad, good) = (Engine::start("a", vec![script.clone()]).await, good().await);
        let bed = Bed::start(&[&bad, &good]).await;
        let reply = bed.client.chat(STREAM).await;
        assert_eq!(reply.text(), [ROLE, &token("b"), DONE].concat(), "{script:?}");
        assert!(reply.whole);
        let failed = format!("failed {class}");
        let expected: [&[&str]; 2] = [&[&failed], &["first-token", "finished 9+2 cached 4"]];
        assert_eq!(bed.router.events(), expected, "{script:?}");
        let routes = bed.router.routes();
        assert_eq!((routes[1].attempt, routes[1].excluded.len()), (1, 1));
        let ids = [&bad, &good].map(|e| e.requests()[0].header("x-request-id").unwrap().to_owned());
        assert_eq!(ids[1], format!("{}-r1", ids[0]), "{script:?}");
        bed.assert_idle().await;
        bed.assert_metric(&format!(r#"warmpath_edge_retries_total{{class="{class}"}} 1"#));
    }
}

#[tokio::test]
async fn an_address_where_nothing_listens_is_passed_over() {
    let (bad, good) = (Engine::refusing("a").await, good().await);
    let bed = Bed::start(&[&bad, &good]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [ROLE, &token("b"), DONE].concat());
    assert_eq!(bed.router.events()[0], ["failed connection"]);
}

#[tokio::test]
async fn a_whole_answer_that_never_began_is_given_by_another_engine() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n";
    let script = vec![Step::Send(head.as_bytes().to_vec()), Step::Reset];
    let bad = Engine::start("a", vec![script]).await;
    let good = Engine::start("b", vec![vec![answer("200 OK", "", "0123456789")]]).await;
    let bed = Bed::start(&[&bad, &good]).await;
    let reply = bed.client.chat(WHOLE).await;
    assert_eq!((reply.status, reply.text().as_str(), reply.whole), (200, "0123456789", true));
    assert_eq!(bed.router.events()[0], ["failed interrupted"]);
}

#[tokio::test]
async fn a_large_body_is_sent_again_whole() {
    let (bad, good) = (Engine::start("a", vec![vec![Step::Reset]]).await, good().await);
    let bed = Bed::start(&[&bad, &good]).await;
    let body = STREAM.replace("hi", &"x".repeat(5_000_000));
    let reply = bed.client.chat(&body).await;
    assert_eq!(reply.text(), [ROLE, &token("b"), DONE].concat());
    assert_eq!(bad.requests()[0].body.len(), good.requests()[0].body.len());
}

#[tokio::test]
async fn when_every_engine_is_full_the_last_answer_passes_with_its_retry_after() {
    let engines = [Engine::start("a", vec![full()]).await, Engine::start("b", vec![full()]).await];
    let bed = Bed::start(&[&engines[0], &engines[1]]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!((reply.status, reply.text().as_str()), (503, r#"{"error":"full"}"#));
    assert_eq!(reply.header("retry-after"), Some("7"));
    assert_eq!(bed.router.events(), [["failed back_pressure"], ["failed back_pressure"]]);
    bed.assert_idle().await;
    bed.assert_metric(
        r#"warmpath_edge_requests_total{model="m",outcome="back_pressure",route="chat"} 1"#,
    );
}

#[tokio::test]
async fn attempts_are_bounded() {
    let mut engines = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        engines.push(Engine::start(id, vec![vec![Step::Reset]]).await);
    }
    let bed = Bed::start(&engines.iter().collect::<Vec<_>>()).await;
    let reply = bed.client.chat(STREAM).await;
    assert_error(&reply, ErrorCode::UpstreamUnavailable);
    assert_eq!(engines.iter().filter(|e| !e.requests().is_empty()).count(), 3);
    bed.assert_idle().await;
}

#[tokio::test]
async fn an_engines_error_event_is_the_answer_when_there_is_no_other() {
    let error = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n";
    let engine = Engine::start("a", vec![events(&[ROLE, error, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [ROLE, error, DONE].concat());
    assert_eq!(bed.router.events(), [["failed server_error"]]);
}

#[tokio::test]
async fn an_error_event_that_blames_the_client_is_not_tried_elsewhere() {
    let error = "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n";
    let (engine, other) = (Engine::start("a", vec![events(&[error, DONE])]).await, good().await);
    let bed = Bed::start(&[&engine, &other]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [error, DONE].concat());
    assert_eq!(bed.router.events(), [["failed client_error"]]);
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn an_answer_without_content_is_an_answer() {
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let (engine, other) =
        (Engine::start("a", vec![events(&[ROLE, stop, USAGE, DONE])]).await, good().await);
    let bed = Bed::start(&[&engine, &other]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [ROLE, stop, DONE].concat());
    assert_eq!(bed.router.events(), [["finished 9+2 cached 4"]]);
    bed.assert_idle().await;
    let page = bed.metrics();
    assert!(page.contains(r#"warmpath_edge_ttft_seconds_count{model="m"} 0"#), "{page}");
}
