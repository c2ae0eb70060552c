//! Forms with a file in them: the model is read from its part, the file is not kept.
//!
//! So much of a form is held that its model is known, and that a small one can be sent again. The
//! rest goes from the client's connection to the engine's.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use domain::ErrorCode;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use openai_api::{ApiError, FormModel, FormScanner};
use tokio::time::timeout;

use super::body::{self, Intake, Memory};
use crate::payload::{self, Payload};
use crate::refusal::Refusal;
use crate::timer::Timer;
use crate::upstream::{BodyFault, ClientPace, StreamedBody};

/// What is held of a form whose model is known.
const LOOK_AHEAD_BYTES: usize = 256 * 1024;

/// A form of which enough is known to send it on.
pub(super) struct Form {
    pub(super) model: FormModel,
    pub(super) payload: Payload,
    /// The memory of a form that is held whole.
    pub(super) memory: Memory,
}

/// What has come of a form.
struct Reading {
    held: VecDeque<Bytes>,
    bytes: usize,
    memory: Memory,
    scanner: FormScanner,
}

/// Reads a form until its model is known. Of one that goes on, `body` is taken.
pub(super) async fn read(
    body: &mut Option<Incoming>,
    headers: &HeaderMap,
    intake: Intake<'_>,
) -> Result<Form, Refusal> {
    let limit = intake.limit;
    let refuse = |fault: BodyFault| payload::refusal(fault, limit);
    let announced = body::announced(headers);
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(refuse(BodyFault::TooLarge));
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let scanner = FormScanner::new(kind).ok_or_else(no_form)?;
    let mut reading = Reading { held: VecDeque::new(), bytes: 0, memory: None, scanner };
    let mut pace = body::Pace::new(intake.patience);
    while let Some(incoming) = body {
        let next = timeout(pace.left(), incoming.frame()).await;
        let Some(frame) = next.map_err(|_| refuse(BodyFault::TooSlow))? else { break };
        let frame = frame.map_err(|_| refuse(BodyFault::Cut))?;
        let Ok(piece) = frame.into_data() else { continue };
        reading.take(piece, intake).map_err(|fault| fault.refusal(limit))?;
        pace.came(reading.bytes);
        if reading.bytes >= LOOK_AHEAD_BYTES
            && let Some(model) = reading.scanner.model().cloned()
            && let Some(rest) = body.take()
        {
            let payload = Payload::streamed(reading.into_stream(rest, announced, intake));
            return Ok(Form { model, payload, memory: None });
        }
    }
    reading.scanner.finish().map_err(|fault| refuse(fault.into()))?;
    let model = reading.scanner.model().cloned().ok_or_else(no_model)?;
    Ok(Form { model, payload: Payload::Held(joined(reading.held)), memory: reading.memory })
}

/// A fault of the body, or a refusal of another kind.
enum Fault {
    Body(BodyFault),
    Other(Refusal),
}

impl Fault {
    fn refusal(self, limit: usize) -> Refusal {
        match self {
            Fault::Body(fault) => payload::refusal(fault, limit),
            Fault::Other(refusal) => refusal,
        }
    }
}

impl Reading {
    fn take(&mut self, piece: Bytes, intake: Intake<'_>) -> Result<(), Fault> {
        self.bytes += piece.len();
        if self.bytes > intake.limit {
            return Err(Fault::Body(BodyFault::TooLarge));
        }
        body::reserve(&mut self.memory, self.bytes, intake.memory).map_err(Fault::Other)?;
        self.scanner.feed(&piece).map_err(|fault| Fault::Body(fault.into()))?;
        self.held.push_back(piece);
        Ok(())
    }

    fn into_stream(self, rest: Incoming, left: Option<u64>, intake: Intake<'_>) -> StreamedBody {
        StreamedBody {
            room: intake.limit - self.bytes,
            held: self.held,
            memory: self.memory,
            rest,
            left,
            scanner: self.scanner,
            pace: ClientPace::new(intake.patience),
            fault: std::sync::Arc::default(),
            timer: Timer::default(),
            ended: false,
        }
    }
}

fn joined(pieces: VecDeque<Bytes>) -> Bytes {
    let mut pieces = pieces.into_iter();
    let first = pieces.next().unwrap_or_default();
    if pieces.len() == 0 {
        return first;
    }
    let mut whole = BytesMut::from(first);
    pieces.for_each(|piece| whole.extend_from_slice(&piece));
    whole.freeze()
}

fn no_form() -> Refusal {
    let message = "this route takes multipart/form-data with a boundary; see `content-type`";
    ApiError::new(ErrorCode::InvalidRequest, message).into()
}

fn no_model() -> Refusal {
    let message = "'model' is missing; name the model to use in a field of the form";
    ApiError::new(ErrorCode::InvalidRequest, message).with_param("model").into()
}
