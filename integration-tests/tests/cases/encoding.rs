//! Compressed bytes.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use integration_tests::client::Reply;
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::chat;
use integration_tests::scripted::{
    DONE, Gate, ROLE, ScriptedEngine, Step, answer, part, short, stream_end, stream_head, token,
    usage,
};

use crate::before;

/// What a compressor would have made; nobody on the way may look into it.
const COMPRESSED: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\xff\xfe{\"data: \n\n\r\n[DONE]";

async fn ask(cluster: &Cluster, accepted: Option<&str>, stream: bool) -> Reply {
    let headers: Vec<_> = accepted.map(|value| ("accept-encoding", value)).into_iter().collect();
    let body = Bytes::from(chat("x", 1, stream));
    cluster.client().send(Method::POST, "/v1/chat/completions", &headers, body).await
}

#[tokio::test]
async fn an_engine_is_never_asked_to_compress_whatever_the_client_can_read() {
    let engine = ScriptedEngine::with(Vec::new()).await;
    // One that compresses whenever it is allowed to.
    engine.answer_by(|asked| match asked.header("accept-encoding") {
        Some("identity") => short(asked),
        _ => vec![Step::Send(answer("200 OK", "content-encoding: gzip\r\n", COMPRESSED).into())],
    });
    let cluster = before(&[&engine]).build().await;
    for stream in [true, false] {
        let mut seen = Vec::new();
        for accepted in [Some("gzip, br, zstd"), Some("gzip"), Some("*"), Some("identity"), None] {
            let reply = ask(&cluster, accepted, stream).await;
            assert_eq!((reply.status.as_u16(), reply.header("content-encoding")), (200, ""));
            seen.push(reply.body);
        }
        assert!(seen.iter().all(|body| *body == seen[0]), "{seen:?}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn an_engine_that_compresses_unasked_has_its_bytes_and_its_header_passed_on() {
    let engine = ScriptedEngine::with(Vec::new()).await;
    let kinds = ["gzip", "br", "zstd"];
    let cluster = before(&[&engine]).build().await;
    for kind in kinds {
        let encoded = format!("content-encoding: {kind}\r\n");
        let whole = vec![answer("200 OK", &encoded, COMPRESSED)];
        engine.answer(whole);
        let reply = ask(&cluster, Some("gzip, br, zstd"), false).await;
        assert_eq!((reply.header("content-encoding"), &reply.body[..]), (kind, COMPRESSED));
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{encoded}\
             transfer-encoding: chunked\r\n\r\n"
        );
        let pieces = COMPRESSED.chunks(5).map(integration_tests::scripted::chunk);
        let pieces =
            std::iter::once(head.into_bytes()).chain(pieces).chain([b"0\r\n\r\n".to_vec()]);
        engine.answer(pieces.collect());
        let reply = ask(&cluster, Some("gzip, br, zstd"), true).await;
        assert_eq!((reply.header("content-encoding"), &reply.body[..]), (kind, COMPRESSED));
        assert!(reply.whole);
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn events_come_one_by_one_and_are_counted_for_a_client_that_reads_compressed_answers() {
    let gate = Gate::default();
    let steps = Arc::new(
        [
            vec![stream_head(), part(ROLE)],
            (0..5)
                .flat_map(|n| [part(&token(&format!("t{n}"))), Step::Await(gate.clone())])
                .collect(),
            vec![part(&usage(7, 5)), part(DONE), stream_end()],
        ]
        .concat(),
    );
    let engine = ScriptedEngine::with(Vec::new()).await;
    let script = Arc::clone(&steps);
    engine.answer_by(move |_| script.to_vec());
    let cluster = before(&[&engine]).build().await;
    let mut open = cluster.client().open("/v1/chat/completions", &chat("x", 5, true)).await;
    for n in 0..5 {
        assert!(open.read_until(format!("\"t{n}\"").as_bytes(), 1).await, "{}", open.seen());
        gate.let_pass(1);
    }
    assert!(open.read_until(DONE.as_bytes(), 1).await);
    drop(open);
    cluster.assert_idle().await;
    let counted = cluster.metrics().await.sum("warmpath_edge_prompt_tokens_total", &[]);
    assert_eq!(counted, 7.0);
    cluster.stop().await;
}
