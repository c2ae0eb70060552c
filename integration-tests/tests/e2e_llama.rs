//! Two real llama.cpp servers behind the gateway.

use std::collections::{BTreeMap, BTreeSet};

use integration_tests::client::Reply;
use integration_tests::cluster::Cluster;
use integration_tests::process::{LlamaServer, conformance};
use integration_tests::scenarios::document;
use serde_json::json;

/// As many as the two servers have slots, which keep one prefix each.
const DOCUMENTS: u64 = 4;
const ASKS: usize = 4;

fn ask(document_number: u64, asked: usize, stream: bool) -> String {
    // The document comes first, so that no two share a beginning worth keeping.
    let text = format!("{}\n\nQuestion {asked}: what is it about?", document(document_number, 100));
    json!({
        "model": LlamaServer::MODEL,
        "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Answer."}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": stream,
        "stream_options": stream.then(|| json!({"include_usage": true})),
    })
    .to_string()
}

fn cached_tokens(reply: &Reply, stream: bool) -> u64 {
    let usage =
        if stream { reply.events().usage } else { openai_api::usage_of_response(&reply.body) };
    usage.and_then(|usage| usage.cached_tokens).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_servers_are_driven_by_the_sdk_and_keep_their_documents() {
    let servers = [LlamaServer::start(), LlamaServer::start()];
    for server in &servers {
        server.await_ready();
    }
    let builder = Cluster::builder().engines(0);
    let builder = builder.backend("llama-0", &servers[0].url());
    let cluster = builder.backend("llama-1", &servers[1].url()).build().await;

    let (direct, gateway) = (servers[0].url(), format!("http://{}", cluster.edge()));
    let checked = tokio::task::spawn_blocking(move || {
        conformance(&[
            "--direct",
            &direct,
            "--gateway",
            &gateway,
            "--model",
            LlamaServer::MODEL,
            "--engine",
            "llama-cpp",
        ])
    });
    checked.await.unwrap().unwrap_or_else(|printed| panic!("{printed}"));

    let mut backends: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for asked in 0..ASKS {
        for number in 0..DOCUMENTS {
            let stream = asked % 2 == 0;
            let reply = cluster.client().chat(ask(number, asked, stream)).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            backends.entry(number).or_default().insert(reply.backend().to_owned());
            let cached = cached_tokens(&reply, stream);
            assert!(asked == 0 || cached > 50, "document {number} at ask {asked}: {cached} cached");
        }
    }
    assert!(backends.values().all(|of_one| of_one.len() == 1), "{backends:?}");
    let used: BTreeSet<&String> = backends.values().flatten().collect();
    assert_eq!(used.len(), 2, "both have documents: {backends:?}");
    cluster.assert_idle().await;
    cluster.stop().await;
}
