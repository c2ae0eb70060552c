//! Pages of metrics: bounded whatever clients send, and true.

use bytes::Bytes;
use credentials::GeneratedKey;
use futures_util::stream::{self, StreamExt};
use http::Method;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::chat;
use integration_tests::scripted::{
    DONE, Gate, ROLE, ScriptedEngine, Step, part, short_answer, stream_end, stream_head, token,
};
use integration_tests::wait::{PATIENCE, eventually};

use crate::before;

#[tokio::test]
async fn strangers_and_holders_of_keys_add_no_series_by_what_they_make_up() {
    let key = GeneratedKey::generate("team").unwrap();
    let config = format!("[[tenants]]\nid = \"team\"\n{}", key.config_lines());
    let shape = |_, double: warmpath::double::Double| double.static_response(true);
    let cluster = Cluster::builder().engines(1).double(shape).config(&config).build().await;
    let (stranger, holder) = (cluster.client(), cluster.client().with_key(key.secret_text()));
    let send = |n: usize| {
        let (stranger, holder) = (stranger.clone(), holder.clone());
        async move {
            let model = format!("m-{n}");
            let unknown = chat("x", 1, n.is_multiple_of(2)).replace(MODEL, &model);
            stranger.chat(unknown.clone()).await.assert_error(401, "invalid_api_key");
            holder.chat(unknown).await.assert_error(404, "model_not_found");
            for client in [&stranger, &holder] {
                let path = format!("/v1/files/{n}");
                client.get(&path).await.assert_error(404, "route_not_found");
                let method = Method::from_bytes(format!("M{n}").as_bytes()).unwrap();
                let reply = client.send(method, "/v1/chat/completions", &[], Bytes::new()).await;
                reply.assert_error(405, "method_not_allowed");
            }
            let headers =
                [("x-tenant", &*model), ("x-request-id", &*model), ("x-warmpath-tenant", &*model)];
            let body = Bytes::from(chat("x", 1, false));
            let reply = holder.send(Method::POST, "/v1/chat/completions", &headers, body).await;
            assert_eq!(reply.status, 200);
        }
    };
    send(0).await;
    let before = cluster.metrics().await.series();
    stream::iter(1..200).map(send).buffer_unordered(16).collect::<Vec<()>>().await;
    cluster.assert_idle().await;
    let page = cluster.metrics().await;
    assert!(page.series() < before + 20, "{before} series became {}", page.series());
    assert!(!page.text().contains("m-17") && !page.text().contains("M17"));
    cluster.stop().await;
}

#[tokio::test]
async fn only_a_streams_first_token_stops_the_clock() {
    let gate = Gate::default();
    let engine = ScriptedEngine::with(Vec::new()).await;
    let cluster = before(&[&engine]).build().await;
    let samples = || async {
        let metrics = cluster.metrics().await;
        metrics.sum("warmpath_edge_ttft_seconds_count", &[])
    };
    let reasoning = token("t").replace("\"content\"", "\"reasoning_content\"");
    let call = token("t").replace("\"content\":\"t\"", "\"tool_calls\":[{\"index\":0}]");
    for (n, output) in [token("t"), reasoning, call].into_iter().enumerate() {
        let steps = vec![
            stream_head(),
            // So many that they are not held back.
            part(&": ping\n\n".repeat(1000)),
            part(ROLE),
            Step::Await(gate.clone()),
            part(&output),
            part(DONE),
            stream_end(),
        ];
        engine.answer_by(move |_| steps.clone());
        let mut open = cluster.client().open("/v1/chat/completions", &chat("x", 9, true)).await;
        assert!(open.read_until(b"assistant", 1).await, "{}", open.seen());
        let leased = || async { cluster.held().await.leases == 1 };
        eventually(PATIENCE, "it is open", leased).await;
        gate.let_pass(1);
        assert!(open.read_until(DONE.as_bytes(), 1).await);
        drop(open);
        cluster.assert_idle().await;
        assert_eq!(samples().await, n as f64 + 1.0);
    }
    // Neither an error without a token nor an answer in one piece adds a sample.
    let error = "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n";
    for steps in
        [vec![stream_head(), part(ROLE), part(error), part(DONE), stream_end()], short_answer()]
    {
        let whole = steps.len() == 1;
        engine.answer_by(move |_| steps.clone());
        cluster.client().chat(chat("x", 9, !whole)).await;
        cluster.assert_idle().await;
        assert_eq!(samples().await, 3.0);
    }
    let durations = [("route", "chat")];
    let metrics = cluster.metrics().await;
    assert_eq!(metrics.sum("warmpath_edge_request_duration_seconds_count", &durations), 5.0);
    cluster.stop().await;
}
