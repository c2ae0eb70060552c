//! Bodies over HTTP/2 in frames with next to nothing in them.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::testing::h2::*;
use crate::testing::*;

/// Empty frames that the library takes of one connection.
const EMPTY: usize = 100;
/// RFC 9113 section 7.
const ENHANCE_YOUR_CALM: u8 = 11;

fn ok() -> Vec<Vec<Step>> {
    vec![vec![answer("200 OK", "", "{}")]]
}

/// Begins a request.
async fn begin(bed: &Bed) -> TcpStream {
    let mut stream = TcpStream::connect(bed.client.address).await.unwrap();
    let head = headers(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "x"),
        (":path", "/v1/chat/completions"),
    ]);
    let begun = [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS, 1, &head)].concat();
    stream.write_all(&[PREFACE, &begun].concat()).await.unwrap();
    stream
}

/// What ends the wait: an answer, or why there will be none.
async fn outcome(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    while let Some((kind, _, payload)) = read_frame(stream).await {
        if [HEADERS, GOAWAY].contains(&kind) {
            return (kind, payload);
        }
    }
    panic!("the connection ended without a word");
}

#[tokio::test]
async fn a_body_in_tiny_frames_is_taken_and_one_of_empty_ones_ends_its_own_connection_alone() {
    let engine = Engine::start("e", ok()).await;
    let bed = Bed::start(&[&engine]).await;
    let empty = |count: usize| frame(DATA, 0, 1, &[]).repeat(count);
    let bytes = WHOLE.as_bytes().chunks(1).flat_map(|byte| frame(DATA, 0, 1, byte));
    let (bytes, end) = (bytes.collect::<Vec<_>>(), frame(DATA, END_STREAM, 1, &[]));
    let mut patient = begin(&bed).await;
    patient.write_all(&empty(EMPTY)).await.unwrap();

    let mut endless = begin(&bed).await;
    endless.write_all(&empty(EMPTY + 1)).await.unwrap();
    let (kind, why) = outcome(&mut endless).await;
    assert_eq!((kind, why[7]), (GOAWAY, ENHANCE_YOUR_CALM));
    assert!(engine.requests().is_empty());

    patient.write_all(&[bytes, end].concat()).await.unwrap();
    assert_eq!(outcome(&mut patient).await.0, HEADERS);
    assert_eq!(engine.requests()[0].body, WHOLE.as_bytes());
    bed.assert_idle().await;
}
