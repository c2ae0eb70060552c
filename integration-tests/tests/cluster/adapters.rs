//! Adapters over one model: one cache, blocks of their own, and only where they are served.

use integration_tests::client::Reply;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::{chat_with, document};
use serde_json::json;

/// Tokens in a block of a double.
const BLOCK: u64 = 16;

async fn ask(cluster: &Cluster, model: &str, number: u64, question: usize) -> Reply {
    let text = format!("{}\n\nQuestion {question}?", document(number, 240));
    let usage = json!({"include_usage": true});
    let fields = json!({
        "model": model, "max_tokens": 2, "stream": true, "stream_options": usage,
    });
    cluster.client().chat(chat_with(&text, fields)).await
}

/// Cached and prompt tokens, once the prediction was seen to hold.
fn cached(reply: &Reply) -> (u64, u64) {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let predicted = reply.number("x-warmpath-matched-tokens");
    let usage = reply.events().usage.expect("usage was asked for");
    let cached = usage.cached_tokens.expect("the double tells cached tokens");
    assert!(predicted.abs_diff(cached) <= BLOCK, "predicted {predicted}, cached {cached}");
    (cached, usage.prompt_tokens)
}

#[tokio::test]
async fn a_model_and_its_adapter_compete_for_one_cache_and_share_no_block() {
    // Room for two documents and a half.
    let cluster = Cluster::builder().engines(1).blocks(60);
    let cluster = cluster.double(|_, double| double.adapter("sql")).build().await;
    let (first, tokens) = cached(&ask(&cluster, MODEL, 1, 0).await);
    assert_eq!(first, 0);
    assert!((20 * BLOCK..28 * BLOCK).contains(&tokens), "the document has {tokens} tokens");
    // The same text is another KV under the adapter.
    let (first, _) = cached(&ask(&cluster, "sql", 1, 0).await);
    assert_eq!(first, 0);
    for model in [MODEL, "sql"] {
        let (again, tokens) = cached(&ask(&cluster, model, 1, 1).await);
        assert!(again * 10 > tokens * 8, "{again} of {tokens} for {model}");
    }
    // Another document of the adapter's presses the model's out, as the mirror knows.
    for number in 2..5 {
        cached(&ask(&cluster, "sql", number, 0).await);
    }
    let (gone, tokens) = cached(&ask(&cluster, MODEL, 1, 2).await);
    assert!(gone * 2 < tokens, "{gone} of {tokens} are still there");
    let mut state = 7_usize;
    for asked in 3..30 {
        state = (state * 5 + 3) % 16;
        let model = if state.is_multiple_of(3) { MODEL } else { "sql" };
        cached(&ask(&cluster, model, (state % 4) as u64, asked).await);
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_adapter_is_asked_only_where_it_is_served() {
    let with = |number, double: warmpath::double::Double| match number {
        1 => double.adapter("sql"),
        _ => double,
    };
    let cluster = Cluster::builder().double(with).build().await;
    for number in 0..6 {
        let reply = ask(&cluster, "sql", number, 0).await;
        assert_eq!(reply.backend(), "engine-1");
        cached(&reply);
    }
    let listing = cluster.client().get("/v1/models").await.json();
    let names: Vec<_> = listing["data"].as_array().expect("a list").iter().collect();
    assert_eq!(names.len(), 2);
    assert_eq!(names[1]["parent"], MODEL);
    assert_eq!(ask(&cluster, "law", 0, 0).await.status, 404);
    cluster.stop().await;
}
