//! Bodies in codings that the gateway does not read.

use domain::ErrorCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::testing::*;

fn ok() -> Vec<Vec<Step>> {
    vec![vec![answer("200 OK", "", "{}")]]
}

/// Sends a request in chunks and reads what there is to read until the end of the connection.
async fn in_chunks(bed: &Bed, path: &str, codings: &str) -> Option<Reply> {
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    let (length, next) = (WHOLE.len(), "GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{codings}\r\n{length:x}\r\n{WHOLE}\r\n0\r\n\r\n{next}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    Reply::of(&bytes)
}

#[tokio::test]
async fn a_transfer_coding_besides_chunks_is_refused_and_nothing_behind_it_is_read() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    for path in ["/v1/chat/completions", "/v1/audio/transcriptions", "/v1/nothing", "/health"] {
        for codings in [
            "transfer-encoding: gzip, chunked\r\n",
            "Transfer-Encoding: GZIP\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: identity, chunked\r\n",
            "transfer-encoding: chunked, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        ] {
            let reply = in_chunks(&bed, path, codings).await.unwrap();
            assert!(reply.whole, "one answer, and then the end: {}", reply.text());
            assert_error(&reply, ErrorCode::UnsupportedTransferCoding);
            assert_eq!((reply.status, reply.header("connection")), (501, Some("close")));
        }
    }
    let reply =
        in_chunks(&bed, "/v1/messages", "transfer-encoding: gzip, chunked\r\n").await.unwrap();
    assert_eq!(reply.status, 501);
    assert!(reply.text().starts_with(r#"{"type":"error","#), "{}", reply.text());
    assert!(engine.requests().is_empty());
    bed.assert_idle().await;
}

#[tokio::test]
async fn chunks_alone_are_taken_however_they_are_written() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let codings = "transfer-encoding: Chunked \r\nconnection: close\r\n";
    assert_eq!(in_chunks(&bed, "/v1/chat/completions", codings).await.unwrap().status, 200);
    assert_eq!(engine.requests()[0].body, WHOLE.as_bytes());
}

#[tokio::test]
async fn a_compressed_body_is_refused_with_what_would_be_taken() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    for path in ["/v1/chat/completions", "/v1/audio/transcriptions", "/v1/embeddings"] {
        for coding in ["gzip", "identity, gzip", "zstd\r\ncontent-encoding: identity"] {
            let header = format!("content-encoding: {coding}\r\n");
            let reply = bed.client.post(path, &header, WHOLE).await;
            assert_error(&reply, ErrorCode::UnsupportedContentCoding);
            assert_eq!((reply.status, reply.header("accept-encoding")), (415, Some("identity")));
        }
    }
    assert!(engine.requests().is_empty());
    let plain =
        bed.client.post("/v1/chat/completions", "content-encoding: Identity\r\n", WHOLE).await;
    assert_eq!(plain.status, 200);
    bed.assert_idle().await;
}
