//! What each tenant may send.

use credentials::GeneratedKey;
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::chat;
use integration_tests::wait::{PATIENCE, eventually};

async fn two_tenants(limits: &str) -> (Cluster, [String; 2]) {
    let keys = ["small", "large"].map(|tenant| GeneratedKey::generate(tenant).unwrap());
    let config = format!(
        "[[tenants]]\nid = \"small\"\n{limits}\n[[tenants]]\nid = \"large\"\n{}{}",
        keys[0].config_lines(),
        keys[1].config_lines()
    );
    let cluster = Cluster::builder().engines(1).config(&config).build().await;
    (cluster, keys.map(|key| key.secret_text().to_owned()))
}

#[tokio::test]
async fn requests_over_a_tenants_rate_are_refused_and_others_are_not() {
    let (cluster, [small, large]) = two_tenants("requests_per_minute = 3").await;
    let [small, large] = [small, large].map(|key| cluster.client().with_key(&key));
    for left in [2, 1, 0] {
        let reply = small.chat(chat("x", 1, false)).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.number("x-ratelimit-limit-requests"), 3);
        assert_eq!(reply.number("x-ratelimit-remaining-requests"), left);
        assert!(reply.header("x-ratelimit-reset-requests").ends_with('s'));
    }
    let refused = small.chat(chat("x", 1, false)).await;
    refused.assert_error(429, "rate_limit_exceeded");
    assert_eq!(refused.json()["error"]["type"], "requests");
    assert!((1..=20).contains(&refused.number("retry-after")));
    assert!((1..=20_000).contains(&refused.number("retry-after-ms")));
    assert_eq!(refused.number("x-ratelimit-remaining-requests"), 0);
    assert_eq!(cluster.requests(), [3]);
    let reply = large.chat(chat("x", 1, false)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-ratelimit-limit-requests"), "");
    cluster.stop().await;
}

#[tokio::test]
async fn requests_over_a_tenants_concurrency_are_refused_and_others_are_not() {
    let (cluster, [small, large]) = two_tenants("max_concurrency = 1").await;
    let [small, large] = [small, large].map(|key| cluster.client().with_key(&key));
    let double = &cluster.doubles()[0];
    let open = small.open("/v1/chat/completions", &chat("Long", 2000, true)).await;
    let running = || async { double.stats().running == 1 };
    eventually(PATIENCE, "it runs", running).await;
    let refused = small.chat(chat("x", 1, false)).await;
    refused.assert_error(429, "concurrency_limit_exceeded");
    assert!(refused.number("retry-after") >= 1);
    assert_eq!(large.chat(chat("x", 1, false)).await.status, 200);
    open.hang_up(false);
    cluster.assert_idle().await;
    assert_eq!(small.chat(chat("x", 1, false)).await.status, 200);
    cluster.stop().await;
}
