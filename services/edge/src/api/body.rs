//! Reading a request's body within its bounds.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::ErrorCode;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use openai_api::ApiError;
use tokio::time::timeout;

use crate::refusal::Refusal;

/// The longest that the body of a refused request is read.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Reads a whole body. `pause` is the longest time between two pieces.
pub(super) async fn read(
    body: &mut Incoming,
    headers: &HeaderMap,
    limit: usize,
    pause: Duration,
) -> Result<Bytes, Refusal> {
    if announced(headers).is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    loop {
        let next = timeout(pause, body.frame()).await.map_err(|_| too_slow())?;
        let Some(frame) = next else { break };
        let frame = frame.map_err(|_| cut())?;
        // Trailers of a request mean nothing here.
        let Ok(piece) = frame.into_data() else { continue };
        if whole.len() + joined.len() + piece.len() > limit {
            return Err(too_large(limit));
        }
        // A body in one piece, as most are, is not copied.
        if whole.is_empty() && joined.is_empty() {
            whole = piece;
        } else {
            if joined.is_empty() {
                joined = BytesMut::from(std::mem::take(&mut whole));
            }
            joined.extend_from_slice(&piece);
        }
    }
    Ok(if joined.is_empty() { whole } else { joined.freeze() })
}

/// Reads off what a refused request still sends, so that its client gets to read why: a socket
/// that is closed with unread bytes resets the connection. Returns whether the end was reached.
pub(super) async fn drain(body: &mut Incoming, headers: &HeaderMap) -> bool {
    if headers.contains_key(EXPECT) {
        // This client sends its body only when told to go on.
        return body.is_end_stream();
    }
    let reading = async {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    timeout(DRAIN_TIME, reading).await.unwrap_or(false)
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(limit: usize) -> Refusal {
    let message = format!("the body is larger than {limit} bytes");
    Refusal::new(ApiError::new(ErrorCode::RequestTooLarge, message))
}

fn too_slow() -> Refusal {
    let message = "the body did not arrive in time";
    Refusal::new(ApiError::new(ErrorCode::RequestTimeout, message))
}

fn cut() -> Refusal {
    let message = "the body did not arrive whole";
    Refusal::new(ApiError::new(ErrorCode::InvalidRequest, message))
}
