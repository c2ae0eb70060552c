//! Requests go where their prefix is, and the router can say why.

use std::collections::HashSet;

use http::Method;
use integration_tests::client::Reply;
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::{chat, chat_with, document};
use serde_json::json;

/// Tokens in a block of a double.
const BLOCK: u64 = 16;

fn assert_prediction_is_near(reply: &Reply) -> u64 {
    let predicted = reply.number("x-warmpath-matched-tokens");
    let usage = reply.events().usage.expect("usage was asked for");
    let cached = usage.cached_tokens.expect("the double tells cached tokens");
    assert!(predicted.abs_diff(cached) <= BLOCK, "predicted {predicted}, cached {cached}");
    cached
}

fn question(document_number: u64, question: usize) -> String {
    let text = format!("{}\n\nQuestion {question}?", document(document_number, 400));
    let usage = json!({"include_usage": true});
    chat_with(&text, json!({"max_tokens": 2, "stream": true, "stream_options": usage}))
}

#[tokio::test]
async fn a_shared_document_goes_to_one_backend_and_its_cached_tokens_are_foretold() {
    let cluster = Cluster::builder().build().await;
    let client = cluster.client();
    for number in 0..6 {
        let mut backends = HashSet::new();
        for asked in 0..4 {
            let reply = client.chat(question(number, asked)).await;
            backends.insert(reply.backend().to_owned());
            let cached = assert_prediction_is_near(&reply);
            let tokens = reply.events().usage.unwrap().prompt_tokens;
            let warm = asked > 0;
            assert_eq!(cached * 10 > tokens * 8, warm, "{cached} of {tokens} at ask {asked}");
        }
        assert_eq!(backends.len(), 1, "document {number} went to {backends:?}");
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_burst_of_one_new_prefix_computes_it_no_more_than_once_on_any_engine() {
    let cluster = Cluster::builder().build().await;
    let client = cluster.client();
    let burst = (0..12).map(|n| client.chat(question(1, n)));
    let replies = futures_util::future::join_all(burst).await;
    let backends: HashSet<&str> = replies.iter().map(Reply::backend).collect();
    let cold = replies.iter().filter(|reply| assert_prediction_is_near(reply) == 0).count();
    assert_eq!(cold, backends.len(), "one cold prefill on each of {backends:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_request_can_be_explained_with_every_candidate_and_what_became_of_it() {
    let cluster = Cluster::builder().build().await;
    let client = cluster.client();
    let first = client.chat(question(7, 0)).await;
    let second = client.chat(question(7, 1)).await;
    let id = second.header("x-request-id");
    cluster.assert_idle().await;
    let explained = cluster.explain(id).await;
    assert_eq!(explained["request"], id);
    let attempt = &explained["attempts"][0];
    assert_eq!(attempt["decision"]["backend"], first.backend());
    assert_eq!(attempt["decision"]["reason"], "warm_prefix");
    let foretold = second.number("x-warmpath-matched-tokens");
    assert_eq!(attempt["decision"]["predicted_cached_tokens"], foretold);
    let candidates = attempt["candidates"].as_array().unwrap();
    let names: HashSet<&str> = candidates.iter().filter_map(|c| c["backend"].as_str()).collect();
    assert_eq!(names, HashSet::from(["engine-0", "engine-1", "engine-2"]));
    for candidate in candidates {
        let chosen = candidate["backend"] == first.backend();
        assert_eq!(candidate["chosen"], chosen);
        assert_eq!(candidate["matched_blocks"].as_u64().unwrap() > 0, chosen);
        assert!(candidate["score"]["total_seconds"].is_number());
        assert!(!candidate["why"].as_str().unwrap().is_empty());
    }
    assert_eq!(attempt["outcome"]["state"], "finished");
    let usage = second.events().usage.unwrap();
    assert_eq!(attempt["outcome"]["usage"]["cached_tokens"], usage.cached_tokens.unwrap());
    let unknown = integration_tests::client::Client::new(cluster.admin());
    assert_eq!(unknown.get("/admin/v1/explain/nobody").await.status, 404);
    cluster.stop().await;
}

#[tokio::test]
async fn a_request_can_be_explained_by_the_clients_own_id() {
    let cluster = Cluster::builder().engines(1).build().await;
    let label = [("x-request-id", "mine 1%")];
    let body = question(1, 0).into();
    let reply = cluster.client().send(Method::POST, "/v1/chat/completions", &label, body).await;
    assert_eq!(reply.header("x-request-id"), "mine 1%");
    cluster.assert_idle().await;
    let explained = cluster.explain("mine%201%25").await;
    let attempt = &explained["attempts"][0];
    assert_eq!(
        (&explained["request"], &attempt["client_request"]),
        (&json!("mine 1%"), &json!("mine 1%"))
    );
    let own = attempt["request"].as_str().unwrap();
    assert!(own.starts_with("req-"), "{own}");
    assert_eq!(cluster.explain(own).await["attempts"][0], *attempt);
    cluster.stop().await;
}

#[tokio::test]
async fn salts_and_models_do_not_share_a_prefix() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    for salt in [None, Some("one"), Some("two")] {
        let fields = json!({"max_tokens": 1, "stream": true, "cache_salt": salt,
            "stream_options": {"include_usage": true}});
        let body = chat_with(&document(3, 200), fields);
        let first = client.chat(body.clone()).await;
        assert_eq!(first.number("x-warmpath-matched-tokens"), 0, "{salt:?}");
        assert_eq!(assert_prediction_is_near(&first), 0);
        let second = client.chat(body).await;
        assert!(assert_prediction_is_near(&second) > 0, "{salt:?}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn without_a_tokenizer_documents_keep_to_a_backend_by_their_text() {
    let cluster = Cluster::builder().without_tokenizer().build().await;
    let client = cluster.client();
    for number in 0..3 {
        let mut backends = HashSet::new();
        for asked in 0..3 {
            let reply = client.chat(question(number, asked)).await;
            backends.insert(reply.backend().to_owned());
            let explained = cluster.explain(reply.header("x-request-id")).await;
            assert_eq!(explained["attempts"][0]["decision"]["level"], "text");
        }
        assert_eq!(backends.len(), 1, "document {number} went to {backends:?}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn backends_that_tie_take_turns_with_cold_requests() {
    // However unevenly this machine lets them compute, they are to be taken as equally fast.
    let tie = "[router]\ntie_margin_seconds = 10.0";
    let cluster = Cluster::builder().engines(5).config(tie).build().await;
    let client = cluster.client();
    for number in 0..50 {
        client.chat(chat(&format!("Cold {number}"), 1, false)).await;
    }
    assert_eq!(cluster.requests(), [10; 5]);
    cluster.stop().await;
}

#[tokio::test]
async fn round_robin_takes_turns() {
    let config = "[router]\npolicy = \"round-robin\"";
    let cluster = Cluster::builder().config(config).build().await;
    let client = cluster.client();
    for asked in 0..9 {
        client.chat(question(1, asked)).await;
    }
    assert_eq!(cluster.requests(), [3, 3, 3]);
    cluster.stop().await;
}
