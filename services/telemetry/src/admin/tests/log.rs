//! The audit log and the status.

use std::time::Duration;

use domain::BackendState;
use serde_json::{Value, json};

use super::kit::{Kit, seen};

#[tokio::test]
async fn every_change_is_a_line_of_the_log_with_its_author() {
    let kit = Kit::new();
    kit.add("/backends/a", json!({"url": "http://a:1"})).await.is(201);
    kit.post("/backends/a/drain", Value::Null).await.is(200);
    kit.delete("/backends/a").await.is(204);
    let events = kit.get("/events").await;
    let items = events.is(200)["items"].as_array().unwrap();
    let row = |item: &Value| {
        let text = |name: &str| item[name].as_str().unwrap_or("-").to_owned();
        (text("author"), text("action"), text("id"), item["document"]["wish"].clone())
    };
    let ops = |action: &str, wish: Value| ("ops".into(), action.into(), "a".into(), wish);
    let rows: Vec<_> = items.iter().map(row).collect();
    let expected = [
        ops("created", json!("ready")),
        ops("replaced", json!("draining")),
        ops("deleted", Value::Null),
    ];
    assert_eq!(rows, expected);
    assert_eq!((&events.body["revision"], &events.body["oldest"]), (&3.into(), &1.into()));
    let later = kit.get("/events?after=2").await;
    assert_eq!(later.is(200)["items"].as_array().unwrap().len(), 1);
    assert_eq!(later.body["next_after"], 3);
    let newest = kit.get("/events?limit=1").await;
    assert_eq!(newest.is(200)["items"][0]["action"], "deleted");
    kit.get("/events?after=9").await.is_problem(400, "invalid_parameter");
    kit.get("/events?wait_seconds=21").await.is_problem(400, "invalid_parameter");
}

#[tokio::test(start_paused = true)]
async fn a_follower_hears_of_a_change_at_once_or_that_there_is_none() {
    let kit = Kit::new();
    kit.add("/tenants/a", json!({})).await.is(201);
    let start = tokio::time::Instant::now();
    let nothing = kit.get("/events?after=1&wait_seconds=5").await;
    assert_eq!(nothing.is(200)["items"], json!([]));
    assert_eq!((&nothing.body["next_after"], start.elapsed()), (&1.into(), Duration::from_secs(5)));
    let follow = kit.get("/events?after=1&wait_seconds=20");
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        kit.add("/tenants/b", json!({})).await.is(201);
    };
    let start = tokio::time::Instant::now();
    let (heard, ()) = tokio::join!(follow, change);
    assert_eq!(heard.is(200)["items"][0]["id"], "b");
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test]
async fn the_status_shows_store_engines_and_members() {
    let kit = Kit::seeing(vec![seen("a", BackendState::Ready), seen("b", BackendState::Ready)]);
    kit.add("/tenants/a", json!({})).await.is(201);
    let status = kit.get("/status").await;
    let body = status.is(200);
    assert_eq!((&body["store"]["revision"], &body["fleet"]["revision"]), (&1.into(), &3.into()));
    assert_eq!(body["fleet"]["backends"], json!({"ready": 2}));
    let member =
        json!({"id": "router-0", "incarnation": 2, "role": "router", "address": "http://r:1"});
    assert_eq!(body["members"]["items"], json!([member]));
}
