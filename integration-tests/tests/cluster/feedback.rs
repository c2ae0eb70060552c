//! What engines report of their caches corrects what the router believes of them.

use integration_tests::client::Client;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::{chat_with, document};
use serde_json::json;

/// Blocks of the larger and the smaller of a cache and what is told of it.
const LARGE: u32 = 480;
const SMALL: u32 = 240;

/// Asks about a document of some 20 blocks. Returns predicted and cached tokens.
async fn ask(client: &Client, number: u64) -> (u64, u64) {
    let usage = json!({"include_usage": true});
    let fields = json!({"max_tokens": 2, "stream": true, "stream_options": usage});
    let reply = client.chat(chat_with(&document(number, 80), fields)).await;
    let cached = reply.events().usage.and_then(|usage| usage.cached_tokens);
    (reply.number("x-warmpath-matched-tokens"), cached.expect("the double tells cached tokens"))
}

/// A document number; those up to 80 come again and again, the small ones most often.
fn number(request: u64) -> u64 {
    (request * 37 % 97) * (request * 53 % 89) / 97
}

/// Two engines that have and tell so many blocks. Returns what one is modelled with in the end,
/// and how far predictions were off over the last requests, as a share of what was cached.
async fn learned(actual: u32, told: u32) -> (f64, f64) {
    let cluster = Cluster::builder()
        .engines(2)
        .blocks(actual)
        .double(move |_, double| double.told_blocks(told).prefill_tokens_per_second(1e6))
        .build()
        .await;
    let client = cluster.client();
    for request in 0..700 {
        ask(&client, number(request)).await;
    }
    let (mut off, mut all) = (0, 0);
    for request in 700..850 {
        let (predicted, cached) = ask(&client, number(request)).await;
        off += predicted.abs_diff(cached);
        all += cached;
    }
    cluster.assert_idle().await;
    let backends = cluster.operator("/admin/v1/backends").await;
    let cache = &backends["ranks"][0]["caches"][0];
    assert_eq!(cache["told_blocks"], told - 1);
    assert_eq!(backends["ranks"][0]["evidence"], "feedback");
    let corrections = "warmpath_router_capacity_corrections_total";
    assert!(cluster.metrics().await.sum(corrections, &[("model", MODEL)]) > 0.0);
    cluster.stop().await;
    (cache["capacity_blocks"].as_f64().expect("a number"), off as f64 / all as f64)
}

#[tokio::test]
async fn a_cache_that_is_smaller_than_its_engine_tells_is_learned() {
    let (capacity, off) = learned(SMALL, LARGE).await;
    assert!((190.0..300.0).contains(&capacity), "{capacity}");
    assert!(off < 0.1, "{off}");
}

#[tokio::test]
async fn a_cache_that_is_larger_than_its_engine_tells_is_learned() {
    let (capacity, off) = learned(LARGE, SMALL).await;
    // As much as these requests can show: few documents lie further back.
    assert!((280.0..600.0).contains(&capacity), "{capacity}");
    assert!(off < 0.1, "{off}");
}

#[tokio::test]
async fn a_cache_that_was_reset_is_believed_to_be_empty_after_a_run_of_misses() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    for number in 0..20 {
        ask(&client, number).await;
    }
    cluster.assert_idle().await;
    assert!(cluster.double("engine-0").reset_prefix_cache());
    for number in 0..8 {
        let (predicted, cached) = ask(&client, number).await;
        assert!(predicted > 0 && cached == 0, "{number}: {predicted} {cached}");
    }
    cluster.assert_idle().await;
    assert_eq!(ask(&client, 15).await, (0, 0));
    let (predicted, cached) = ask(&client, 15).await;
    assert!(predicted > 0 && predicted.abs_diff(cached) <= 16, "{predicted} {cached}");
    let purges = cluster.metrics().await;
    assert_eq!(purges.value("warmpath_router_purges_total", &[("scope", "rank")]), 1.0);
    cluster.stop().await;
}
