//! Reading a request's body within its bounds.

use std::time::Duration;

use bytes::Bytes;
use domain::Moment;
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::intake::{Gathered, Intake};
use crate::payload;
use crate::refusal::Refusal;
use crate::upstream::BodyFault;

/// So much more has to come within the limit between two pieces: bytes that drip hold the memory of
/// all that came before them.
const PROGRESS_BYTES: usize = 16 * 1024;
/// Or this part of what was announced, which has its memory from the start.
const PROGRESS_PARTS: u64 = 16;
/// A whole body may take so many times that limit.
const WHOLE: u32 = 10;

/// The longest that the body of a refused request is read.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Reads a whole body.
pub(super) async fn read(body: &mut Incoming, intake: Intake<'_>) -> Result<Bytes, Refusal> {
    let refuse = |fault| payload::refusal(fault, intake.limit);
    let announced = announced(body);
    let mut gathered = Gathered::new(intake, announced)?;
    let mut pace = Pace::new(intake.patience, announced);
    loop {
        let next =
            timeout(pace.left(), body.frame()).await.map_err(|_| refuse(BodyFault::TooSlow))?;
        let Some(frame) = next else { break };
        let frame = frame.map_err(|error| refuse(BodyFault::from(error)))?;
        // Trailers of a request mean nothing here.
        let Ok(piece) = frame.into_data() else { continue };
        gathered.take(piece)?;
        pace.came(gathered.len());
    }
    Ok(gathered.finish())
}

/// How fast a body must come.
pub(super) struct Pace {
    limit: Duration,
    whole_by: Moment,
    /// What must come until [`next_by`](Self::next_by), counted from `from`.
    step: usize,
    next_by: Moment,
    from: usize,
}

impl Pace {
    pub(super) fn new(limit: Duration, announced: Option<u64>) -> Self {
        let now = lifecycle::monotonic();
        let part = announced.map_or(0, |length| length / PROGRESS_PARTS);
        let step = usize::try_from(part).unwrap_or(usize::MAX).max(PROGRESS_BYTES);
        Self { limit, whole_by: now + limit * WHOLE, step, next_by: now + limit, from: 0 }
    }

    pub(super) fn left(&self) -> Duration {
        self.next_by.min(self.whole_by) - lifecycle::monotonic()
    }

    pub(super) fn came(&mut self, length: usize) {
        if length - self.from >= self.step {
            self.from = length;
            self.next_by = lifecycle::monotonic() + self.limit;
        }
    }
}

/// Reads off what a refused request still sends, so that its client gets to read why: a socket
/// that is closed with unread bytes resets the connection. Nothing of it is kept. Returns whether
/// the end was reached.
pub(super) async fn read_off(body: &mut Incoming, headers: &HeaderMap) -> bool {
    if body.is_end_stream() {
        return true;
    }
    if headers.contains_key(EXPECT) {
        // This client sends its body only when told to go on.
        return false;
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

/// The length of a body that is still to come, where its client tells it.
pub(super) fn announced(body: &Incoming) -> Option<u64> {
    body.size_hint().exact()
}
