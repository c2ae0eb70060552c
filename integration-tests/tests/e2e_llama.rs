//! Two real llama.cpp servers behind the gateway.

use integration_tests::client::Reply;
use integration_tests::cluster::Cluster;
use integration_tests::process::{LlamaServer, conformance};
use integration_tests::scenarios::document;
use serde_json::json;

/// As many as each server has slots, which keep one prefix each: wherever the first question
/// about a document goes, there is room for it.
const DOCUMENTS: u64 = 4;
const ASKS: u64 = 5;
/// Documents before those that count.
const LESSONS: u64 = 8;

fn ask(document_number: u64, asked: u64, stream: bool) -> String {
    // The document comes first, so that no two share a beginning worth keeping.
    let text = format!("{}\n\nQuestion {asked}: what is it about?", document(document_number, 100));
    json!({
        "model": LlamaServer::MODEL,
        "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Answer."}],
        "max_tokens": 2,
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
    let servers = [LlamaServer::start(DOCUMENTS), LlamaServer::start(DOCUMENTS)];
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

    // How fast these engines are is learned from prompts that they have to compute.
    for number in 0..LESSONS {
        let reply = cluster.client().chat(ask(DOCUMENTS + number, 0, true)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let mut warm = 0;
    let mut homes: Vec<Vec<String>> = vec![Vec::new(); DOCUMENTS as usize];
    for asked in 0..ASKS {
        for turn in 0..DOCUMENTS {
            // In another order each time, so that taking turns would part a document's questions.
            let number = (turn + asked) % DOCUMENTS;
            let stream = asked % 2 == 0;
            let reply = cluster.client().chat(ask(number, asked, stream)).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            homes[number as usize].push(reply.backend().to_owned());
            warm += u64::from(asked > 0 && cached_tokens(&reply, stream) > 50);
        }
    }
    // On a machine whose speed swings, a question may rightly move; most must not.
    let could = DOCUMENTS * (ASKS - 1);
    assert!(warm * 10 >= could * 8, "{warm} of {could} found their document: {homes:?}");
    cluster.assert_idle().await;
    cluster.stop().await;
}
