//! Reading a request's body within its bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::{ErrorCode, Moment};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use openai_api::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::gateway::BODY_STEP;
use crate::payload;
use crate::refusal::Refusal;
use crate::upstream::BodyFault;

/// So much more has to come within the limit between two pieces: bytes that drip hold the memory of
/// all that came before them.
const PROGRESS_BYTES: usize = 16 * 1024;
/// A whole body may take so many times that limit.
const WHOLE: u32 = 10;

/// The longest that the body of a refused request is read.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// When to come back if there was no memory for the body.
const NO_ROOM_WAIT: Duration = Duration::from_secs(1);

/// Part of the memory for bodies, given back when dropped.
pub(super) type Memory = Option<OwnedSemaphorePermit>;

/// The bounds within which a body is read.
#[derive(Clone, Copy)]
pub(super) struct Intake<'a> {
    /// The memory for all of them.
    pub(super) memory: &'a Arc<Semaphore>,
    /// Its greatest length.
    pub(super) limit: usize,
    /// How long it may make no progress.
    pub(super) patience: Duration,
}

/// Reads a whole body.
pub(super) async fn read(
    body: &mut Incoming,
    headers: &HeaderMap,
    intake: Intake<'_>,
) -> Result<(Bytes, Memory), Refusal> {
    let limit = intake.limit;
    let refuse = |fault| payload::refusal(fault, limit);
    if announced(headers).is_some_and(|length| length > limit as u64) {
        return Err(refuse(BodyFault::TooLarge));
    }
    let mut memory = None;
    let mut whole = Bytes::new();
    let mut joined = BytesMut::new();
    let mut pace = Pace::new(intake.patience);
    loop {
        let next =
            timeout(pace.left(), body.frame()).await.map_err(|_| refuse(BodyFault::TooSlow))?;
        let Some(frame) = next else { break };
        let frame = frame.map_err(|_| refuse(BodyFault::Cut))?;
        // Trailers of a request mean nothing here.
        let Ok(piece) = frame.into_data() else { continue };
        let length = whole.len() + joined.len() + piece.len();
        if length > limit {
            return Err(refuse(BodyFault::TooLarge));
        }
        reserve(&mut memory, length, intake.memory)?;
        pace.came(length);
        // A body in one piece, as most are, is not copied.
        if whole.is_empty() && joined.is_empty() {
            whole = piece;
        } else {
            if joined.is_empty() {
                // Room for all that was announced at once: growing step by step would hold up to
                // three times of it. What does not come is never touched, and takes no memory.
                let room = announced(headers).unwrap_or(0).max(length as u64);
                joined.reserve(usize::try_from(room).unwrap_or(length).min(limit));
                joined.extend_from_slice(&std::mem::take(&mut whole));
            }
            joined.extend_from_slice(&piece);
        }
    }
    Ok((if joined.is_empty() { whole } else { joined.freeze() }, memory))
}

/// How fast a body must come.
pub(super) struct Pace {
    limit: Duration,
    whole_by: Moment,
    /// When the next [`PROGRESS_BYTES`] must be there, counted from so many.
    next_by: Moment,
    from: usize,
}

impl Pace {
    pub(super) fn new(limit: Duration) -> Self {
        let now = lifecycle::monotonic();
        Self { limit, whole_by: now + limit * WHOLE, next_by: now + limit, from: 0 }
    }

    pub(super) fn left(&self) -> Duration {
        self.next_by.min(self.whole_by) - lifecycle::monotonic()
    }

    pub(super) fn came(&mut self, length: usize) {
        if length - self.from >= PROGRESS_BYTES {
            self.from = length;
            self.next_by = lifecycle::monotonic() + self.limit;
        }
    }
}

/// Makes sure that memory for `length` bytes is reserved.
pub(super) fn reserve(
    memory: &mut Memory,
    length: usize,
    all: &Arc<Semaphore>,
) -> Result<(), Refusal> {
    let held = memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let wanted = length.div_ceil(BODY_STEP).saturating_sub(held);
    let wanted = u32::try_from(wanted).map_err(|_| no_room())?;
    if wanted == 0 {
        return Ok(());
    }
    let more = Arc::clone(all).try_acquire_many_owned(wanted).map_err(|_| no_room())?;
    match memory {
        Some(held) => held.merge(more),
        None => *memory = Some(more),
    }
    Ok(())
}

/// Reads off what a refused request still sends, so that its client gets to read why: a socket
/// that is closed with unread bytes resets the connection. Returns whether the end was reached.
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

pub(super) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn no_room() -> Refusal {
    let message = "the gateway holds too many requests; try again shortly";
    Refusal::new(ApiError::new(ErrorCode::Overloaded, message)).retry_after(Some(NO_ROOM_WAIT))
}
