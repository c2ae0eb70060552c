//! Data-parallel ranks behind one address: caches, metrics and bookings of their own.

use std::collections::BTreeSet;

use integration_tests::cluster::Cluster;
use integration_tests::scenarios::{chat_with, document};
use serde_json::json;
use warmpath::double::SeenRequest;

/// Tokens in a block of a double.
const BLOCK: u64 = 16;
const DOCUMENTS: u64 = 6;

fn question(number: u64, question: u64) -> String {
    let text = format!("{}\n\nQuestion {question}?", document(number, 300));
    let usage = json!({"include_usage": true});
    chat_with(&text, json!({"max_tokens": 2, "stream": true, "stream_options": usage}))
}

/// The rank that a request names.
fn pin(request: &SeenRequest) -> Option<String> {
    let value = request.headers.get("x-data-parallel-rank")?;
    value.to_str().ok().map(str::to_owned)
}

#[tokio::test]
async fn a_prefix_stays_on_its_rank_and_every_request_names_it() {
    let cluster = Cluster::builder().engines(1).double(|_, double| double.data_parallel(2));
    let cluster = cluster.build().await;
    let client = cluster.client();
    let double = &cluster.doubles()[0];
    let mut ranks = Vec::new();
    for asked in 0..4 {
        for number in 0..DOCUMENTS {
            let reply = client.chat(question(number, asked)).await;
            let usage = reply.events().usage.expect("usage was asked for");
            let cached = usage.cached_tokens.expect("the double tells cached tokens");
            let predicted = reply.number("x-warmpath-matched-tokens");
            assert!(predicted.abs_diff(cached) <= BLOCK, "predicted {predicted}, cached {cached}");
            let warm = cached * 10 > usage.prompt_tokens * 8;
            assert_eq!(warm, asked > 0, "{cached} of {} at ask {asked}", usage.prompt_tokens);
        }
        let seen = double.take_requests();
        let asked: Vec<_> = seen.iter().filter(|r| r.target.contains("chat")).map(pin).collect();
        assert_eq!(asked.len() as u64, DOCUMENTS);
        ranks.push(asked);
    }
    assert!(ranks.iter().all(|asked| *asked == ranks[0]), "a document changed its rank: {ranks:?}");
    let used: BTreeSet<_> = ranks[0].iter().flatten().map(String::as_str).collect();
    assert_eq!(used, BTreeSet::from(["0", "1"]));
    let (stats, scheduled) = (double.rank_stats(), DOCUMENTS * 4);
    assert_eq!(stats.iter().map(|rank| rank.scheduled).sum::<u64>(), scheduled);
    for rank in stats {
        // Three of four questions found their document on this rank.
        assert!(rank.cached_tokens * 100 > rank.prompt_tokens * 65, "{rank:?}");
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_engine_with_one_rank_is_told_none() {
    let cluster = Cluster::builder().engines(1).build().await;
    cluster.client().chat(question(0, 0)).await;
    let seen = cluster.doubles()[0].take_requests();
    let asked: Vec<_> = seen.iter().filter(|r| r.target.contains("chat")).map(pin).collect();
    assert_eq!(asked, [None]);
    cluster.stop().await;
}
