//! Forms with a file in them: the model is read from its part, the file is not kept.
//!
//! So much of a form is held that its model is known, and that a small one can be sent again. The
//! rest goes from the client's connection to the engine's.

use domain::ErrorCode;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use openai_api::{ApiError, FormModel, FormScanner};
use tokio::time::timeout;

use super::body::{self, Pace};
use super::intake::{Gathered, Intake};
use crate::payload::{self, Payload};
use crate::refusal::Refusal;
use crate::timer::Timer;
use crate::upstream::{BodyFault, ClientPace, StreamedBody};

/// What is held of a form whose model is known.
const LOOK_AHEAD_BYTES: usize = 256 * 1024;
/// With the piece that brings the last of it.
const HELD_BYTES: u64 = LOOK_AHEAD_BYTES as u64 + 64 * 1024;

/// A form of which enough is known to send it on.
pub(super) struct Form {
    pub(super) model: FormModel,
    pub(super) payload: Payload,
}

/// Reads a form until its model is known. Of one that goes on, `body` is taken.
pub(super) async fn read(
    body: &mut Option<Incoming>,
    headers: &HeaderMap,
    intake: Intake<'_>,
) -> Result<Form, Refusal> {
    let refuse = |fault: BodyFault| payload::refusal(fault, intake.limit);
    let announced = body.as_ref().and_then(body::announced);
    if announced.is_some_and(|length| length > intake.limit as u64) {
        return Err(refuse(BodyFault::TooLarge));
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut scanner = FormScanner::new(kind).ok_or_else(no_form)?;
    let ahead = announced.map(|length| length.min(HELD_BYTES));
    let mut held = Gathered::new(intake, ahead)?;
    let mut pace = Pace::new(intake.patience, ahead);
    while let Some(incoming) = body {
        let next = timeout(pace.left(), incoming.frame()).await;
        let Some(frame) = next.map_err(|_| refuse(BodyFault::TooSlow))? else { break };
        let frame = frame.map_err(|error| refuse(BodyFault::from(error)))?;
        let Ok(piece) = frame.into_data() else { continue };
        held.take(piece.clone())?;
        scanner.feed(&piece).map_err(|fault| refuse(fault.into()))?;
        pace.came(held.len());
        if held.len() >= LOOK_AHEAD_BYTES
            && let Some(model) = scanner.model().cloned()
            && let Some(rest) = body.take()
        {
            let payload = Payload::streamed(stream(held, scanner, rest, announced, intake));
            return Ok(Form { model, payload });
        }
    }
    scanner.finish().map_err(|fault| refuse(fault.into()))?;
    let model = scanner.model().cloned().ok_or_else(no_model)?;
    Ok(Form { model, payload: Payload::Held(held.finish().into()) })
}

fn stream(
    held: Gathered<'_>,
    scanner: FormScanner,
    rest: Incoming,
    left: Option<u64>,
    intake: Intake<'_>,
) -> StreamedBody {
    let room = intake.limit - held.len();
    StreamedBody {
        held: held.finish().into(),
        rest,
        left,
        room,
        scanner,
        pace: ClientPace::new(intake.patience),
        fault: std::sync::Arc::default(),
        timer: Timer::default(),
        ended: false,
    }
}

fn no_form() -> Refusal {
    let message = "this route takes multipart/form-data with a boundary; see `content-type`";
    ApiError::new(ErrorCode::InvalidRequest, message).into()
}

fn no_model() -> Refusal {
    let message = "'model' is missing; name the model to use in a field of the form";
    ApiError::new(ErrorCode::InvalidRequest, message).with_param("model").into()
}
