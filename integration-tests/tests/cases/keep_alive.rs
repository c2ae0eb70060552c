//! Connections to engines that end between two requests.

use std::collections::HashSet;
use std::time::Duration;

use integration_tests::client::Session;
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::chat;
use integration_tests::scripted::{ScriptedEngine, Step, short};

use crate::before;

#[tokio::test]
async fn an_engine_that_closes_after_every_answer_without_a_word_costs_no_request() {
    let engine = ScriptedEngine::with(Vec::new()).await;
    engine.answer_by(|asked| [short(asked), vec![Step::Close]].concat());
    let cluster = before(&[&engine]).build().await;
    let mut session = Session::new(&cluster.client()).await;
    for n in 0..300 {
        let body = chat(&format!("Request {n}"), 1, n % 2 == 0);
        let reply = session.post("/v1/chat/completions", body).await;
        assert!(reply.status == 200 && reply.whole, "{n}: {}", reply.text());
    }
    let asked = engine.asked();
    let ids: HashSet<_> = asked.iter().filter_map(|a| a.header("x-request-id")).collect();
    assert_eq!((asked.len(), ids.len()), (300, 300), "each was read once, under an id of its own");
    drop(session);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_engine_whose_idle_limit_strikes_between_any_two_requests_costs_none() {
    // About the time between two requests, so that connections end before, at and after the
    // sending of the next.
    let limits = [0, 1, 2, 3];
    let cluster = Cluster::builder()
        .engines(limits.len())
        .double(move |n, double| {
            double.keep_alive(Duration::from_millis(limits[n])).static_response(true)
        })
        .build()
        .await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(Session::new(&cluster.client()).await);
    }
    for n in 0..400 {
        let body = chat(&format!("Request {n}"), 1, n % 2 == 0);
        let reply = sessions[n % 3].post("/v1/chat/completions", body).await;
        assert!(reply.status == 200 && reply.whole, "{n}: {}", reply.text());
    }
    let metrics = cluster.metrics().await;
    assert_eq!(metrics.sum("warmpath_edge_requests_total", &[("outcome", "ok")]), 400.0);
    assert_eq!(metrics.sum("warmpath_router_ejections_total", &[]), 0.0);
    drop(sessions);
    cluster.assert_idle().await;
    cluster.stop().await;
}
