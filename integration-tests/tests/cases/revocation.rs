//! Keys, limits and tenants that change, seen through every edge.

use std::time::Duration;

use integration_tests::client::Client;
use integration_tests::region::Region;
use integration_tests::scenarios::chat;
use integration_tests::scripted::{
    DONE, Gate, ScriptedEngine, Step, part, short, stream_end, stream_head, token,
};
use integration_tests::wait::{PATIENCE, eventually};
use serde_json::json;

/// How soon every edge goes by a change. The rule is a second; tests share their machine.
const SOON: Duration = Duration::from_secs(5);

async fn status(client: &Client) -> u16 {
    client.chat(chat("x", 1, false)).await.status.as_u16()
}

async fn start(edge_config: &str) -> (Region, ScriptedEngine, Gate) {
    let (engine, gate) = (ScriptedEngine::with(Vec::new()).await, Gate::default());
    let of_test = gate.clone();
    engine.answer_by(move |asked| match asked.json()["stream"] == true {
        true => vec![
            stream_head(),
            part(&token("a")),
            Step::Await(of_test.clone()),
            part(DONE),
            stream_end(),
        ],
        false => short(asked),
    });
    let region = Region::start(1, 2, &[("a", engine.url())], edge_config).await;
    (region, engine, gate)
}

#[tokio::test]
async fn a_revoked_key_a_changed_limit_and_a_removed_tenant_hold_on_every_edge_soon() {
    let (region, _engine, gate) = start("").await;
    let desired = &region.desired;
    desired.put_tenant("acme", json!({"requests_per_minute": 1000})).await;
    let (id, key) = desired.make_key("acme").await;
    let edges = [0, 1].map(|edge| region.client(edge).with_key(&key));
    for edge in &edges {
        eventually(SOON, "a new key is known", || async { status(edge).await == 200 }).await;
        assert_eq!(edge.chat(chat("x", 1, false)).await.number("x-ratelimit-limit-requests"), 1000);
    }
    // What is open when the key goes ends as it began.
    let mut open = edges[1].open("/v1/chat/completions", &chat("x", 9, true)).await;
    assert!(open.read_until(b"\"a\"", 1).await, "{}", open.seen());

    desired.put_tenant("acme", json!({"requests_per_minute": 3})).await;
    for edge in &edges {
        let lowered = || async {
            edge.chat(chat("x", 1, false)).await.header("x-ratelimit-limit-requests") == "3"
        };
        eventually(SOON, "the limit is lowered", lowered).await;
        // Those that looked for it have used it up.
        let refused = || async { status(edge).await == 429 };
        eventually(SOON, "the limit counts", refused).await;
    }
    let (next_id, next) = desired.make_key("acme").await;
    desired.delete(&format!("/keys/{id}")).await;
    for (edge, old) in edges.iter().enumerate() {
        eventually(SOON, "the old key is refused", || async { status(old).await == 401 }).await;
        old.chat(chat("x", 1, false)).await.assert_error(401, "invalid_api_key");
        let rotated = region.client(edge).with_key(&next);
        let known = || async { [200, 429].contains(&status(&rotated).await) };
        eventually(SOON, "the next one is known", known).await;
    }
    gate.let_pass(1);
    assert!(open.read_until(DONE.as_bytes(), 1).await, "{}", open.seen());

    desired.delete(&format!("/keys/{next_id}")).await;
    desired.delete("/tenants/acme").await;
    desired.put_tenant("other", json!({})).await;
    for edge in 0..2 {
        let client = region.client(edge).with_key(&next);
        eventually(SOON, "the tenant is gone", || async { status(&client).await == 401 }).await;
    }
}

#[tokio::test]
async fn cut_off_from_telemetry_a_key_counts_no_longer_than_configured() {
    let (region, _engine, _gate) = start("[auth]\nmax_stale = \"1s\"\non_stale = \"refuse\"").await;
    region.desired.put_tenant("acme", json!({})).await;
    let (id, key) = region.desired.make_key("acme").await;
    let client = region.client(1).with_key(&key);
    eventually(SOON, "a new key is known", || async { status(&client).await == 200 }).await;
    region.wire.stall();
    region.desired.delete(&format!("/keys/{id}")).await;
    eventually(PATIENCE, "keys are doubted", || async { status(&client).await == 503 }).await;
    client.chat(chat("x", 1, false)).await.assert_error(503, "overloaded");
    region.wire.resume();
    eventually(PATIENCE, "it is refused", || async { status(&client).await == 401 }).await;
}
