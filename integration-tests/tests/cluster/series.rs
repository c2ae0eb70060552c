//! The page of metrics is bounded, whatever clients send, and tells what happened.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::Method;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::{chat, document};

#[tokio::test]
async fn what_clients_make_up_adds_no_series() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    let send = |n: usize| {
        let client = client.clone();
        async move {
            let unknown = chat("x", 1, n.is_multiple_of(2)).replace(MODEL, &format!("m-{n}"));
            client.chat(unknown).await.assert_error(404, "model_not_found");
            client.get(&format!("/v1/files/{n}")).await.assert_error(404, "route_not_found");
            client.get(&format!("/v1/models/m-{n}")).await.assert_error(404, "model_not_found");
            let tenant = format!("t-{n}");
            let headers = [("x-tenant", tenant.as_str()), ("user-agent", tenant.as_str())];
            let body = Bytes::from(chat("x", 1, false));
            client.send(Method::POST, "/v1/chat/completions", &headers, body).await;
        }
    };
    send(0).await;
    let before = cluster.metrics().await.series();
    stream::iter(1..250).map(send).buffer_unordered(16).collect::<Vec<()>>().await;
    cluster.assert_idle().await;
    let page = cluster.metrics().await;
    assert!(page.series() < before + 30, "{before} series became {}", page.series());
    assert!(!page.text().contains("m-17") && !page.text().contains("t-17"));
    let others = page.sum("warmpath_edge_requests_total", &[("model", "other")]);
    assert_eq!(others as usize, 3 * 250);
    cluster.stop().await;
}

#[tokio::test]
async fn what_was_foretold_and_what_was_delivered_can_be_read_side_by_side() {
    let cluster = Cluster::builder().engines(2).build().await;
    let client = cluster.client();
    for asked in 0..5 {
        let body = chat(&format!("{} {asked}", document(1, 300)), 3, true);
        assert!(client.chat(body).await.events().is_complete());
    }
    cluster.assert_idle().await;
    let page = cluster.metrics().await;
    let of_model = [("model", MODEL)];
    let ok = [("model", MODEL), ("route", "chat"), ("outcome", "ok")];
    assert_eq!(page.value("warmpath_edge_requests_total", &ok), 5.0);
    assert_eq!(page.value("warmpath_edge_ttft_seconds_count", &of_model), 5.0);
    assert_eq!(page.value("warmpath_edge_overhead_seconds_count", &[]), 5.0);
    let foretold = page.value("warmpath_edge_predicted_cached_tokens_total", &of_model);
    let delivered = page.value("warmpath_edge_delivered_cached_tokens_total", &of_model);
    assert!(delivered > 1000.0 && (foretold - delivered).abs() <= 5.0 * 16.0);
    let truth: u64 = cluster.stats().iter().map(|stats| stats.cached_tokens).sum();
    assert_eq!(delivered as u64, truth);
    let ready = [("state", "ready")];
    assert_eq!(page.sum("warmpath_telemetry_backend_state", &ready), 2.0);
    assert_eq!(page.sum("warmpath_router_decisions_total", &of_model), 5.0);
    cluster.stop().await;
}
