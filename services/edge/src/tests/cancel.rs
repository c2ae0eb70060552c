//! Clients that go away.

use std::time::Duration;

use tokio::io::AsyncReadExt;

use crate::testing::*;

/// What the engine has done when the client goes.
fn phases() -> Vec<(&'static str, Vec<Step>)> {
    vec![
        ("before the head", vec![Step::AwaitClose]),
        ("after the head", vec![sse(), Step::AwaitClose]),
        ("after the role", vec![sse(), event(ROLE), Step::AwaitClose]),
        ("after a token", vec![sse(), event(ROLE), event(&token("a")), Step::AwaitClose]),
    ]
}

#[tokio::test]
async fn a_client_that_goes_away_closes_the_upstream_in_every_phase() {
    for (phase, script) in phases() {
        let engine = Engine::start("a", vec![script]).await;
        let bed = Bed::start(&[&engine]).await;
        let mut stream = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
        engine.await_requests(1).await;
        if phase == "after a token" {
            let _ = stream.read(&mut [0; 64]).await.unwrap();
        }
        let left = tokio::time::Instant::now();
        drop(stream);
        engine.await_all_closed().await;
        assert!(left.elapsed() < Duration::from_millis(100), "{phase}");
        bed.assert_idle().await;
        assert_eq!(bed.router.events()[0].last().unwrap(), "cancelled", "{phase}");
        bed.assert_metric("warmpath_edge_upstream_cancelled_total 1");
        bed.assert_metric(
            r#"warmpath_edge_requests_total{model="m",outcome="cancelled",route="chat"} 1"#,
        );
    }
}

#[tokio::test]
async fn hang_ups_leave_no_permit_behind() {
    let mut scripts = vec![vec![Step::AwaitClose]; 40];
    scripts.push(events(&[&token("a"), DONE]));
    let engine = Engine::start("a", scripts).await;
    let mut setup = Setup::default();
    setup.tenants.push(tenant("anonymous", |t| t.max_concurrency = Some(4)));
    let bed = setup.start(&[&engine]).await;
    for round in 1..=10 {
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(bed.client.send("POST", "/v1/chat/completions", "", STREAM).await);
        }
        engine.await_requests(round * 4).await;
        assert_eq!(bed.client.chat(STREAM).await.status, 429);
        drop(open);
        bed.assert_idle().await;
    }
    assert_eq!(bed.client.chat(STREAM).await.status, 200);
    bed.assert_idle().await;
    engine.await_all_closed_but(1).await;
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_still_sends_is_forgotten() {
    let engine = Engine::start("a", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    let headers = "content-length: 1000\r\n";
    let body = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n";
    let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
    let request = format!("{body}{headers}\r\n{{\"model\":");
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    eventually("the request was not seen", || bed.gateway.families.in_flight.get() == 1).await;
    drop(stream);
    bed.assert_idle().await;
    assert!(engine.requests().is_empty());
}
