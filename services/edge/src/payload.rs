//! What an engine is to be sent, and whether it can be sent again.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use domain::ErrorCode;
use openai_api::{ApiError, FormFault};
use parking_lot::Mutex;

use crate::refusal::Refusal;
use crate::upstream::{BodyFault, Outgoing, Pieces, StreamedBody};

/// A request's body as the edge has it.
pub(crate) enum Payload {
    /// Whole: every engine can be sent it.
    Held(Pieces),
    /// Still coming: the first engine that takes it has all of it.
    Streamed(Streamed),
}

/// A body that can be sent once.
pub(crate) struct Streamed {
    body: Mutex<Option<Box<StreamedBody>>>,
    fault: Arc<OnceLock<BodyFault>>,
}

impl Streamed {
    /// The body, once.
    pub(crate) fn take(&self) -> Option<Outgoing> {
        self.body.lock().take().map(Outgoing::Streamed)
    }
}

impl Payload {
    pub(crate) fn streamed(body: StreamedBody) -> Self {
        let fault = Arc::clone(&body.fault);
        Self::Streamed(Streamed { body: Mutex::new(Some(Box::new(body))), fault })
    }

    /// Puts another text in the place of a range, which has come already.
    pub(crate) fn replace(&mut self, at: Range<usize>, with: &str) {
        match self {
            Payload::Held(pieces) => pieces.replace(at, with),
            Payload::Streamed(streamed) => {
                if let Some(body) = streamed.body.get_mut() {
                    let change = |left: u64| left + with.len() as u64 - at.len() as u64;
                    body.left = body.left.map(change);
                    body.held.replace(at, with);
                }
            }
        }
    }

    /// Whether no engine can be sent it any more.
    pub(crate) fn is_spent(&self) -> bool {
        match self {
            Payload::Held(_) => false,
            Payload::Streamed(streamed) => streamed.body.lock().is_none(),
        }
    }

    /// What was wrong with it while it was passed on.
    pub(crate) fn refusal(&self, limit: usize) -> Option<Refusal> {
        match self {
            Payload::Held(_) => None,
            Payload::Streamed(streamed) => streamed.fault.get().map(|fault| refusal(*fault, limit)),
        }
    }
}

/// What a client is told of a body that cannot be passed on.
pub(crate) fn refusal(fault: BodyFault, limit: usize) -> Refusal {
    let error = match fault {
        BodyFault::TooLarge => {
            let message = format!("the body is larger than {limit} bytes");
            ApiError::new(ErrorCode::RequestTooLarge, message)
        }
        BodyFault::TooSlow => {
            ApiError::new(ErrorCode::RequestTimeout, "the body did not arrive in time")
        }
        BodyFault::Gone => {
            let message = "the connection ended before the body did";
            ApiError::new(ErrorCode::ClientClosedRequest, message)
        }
        BodyFault::Malformed => {
            let message = "the body's framing is malformed; send it with its length, or in chunks";
            ApiError::new(ErrorCode::InvalidRequest, message)
        }
        BodyFault::Form(fault) => {
            let error = ApiError::new(ErrorCode::InvalidRequest, fault.to_string());
            match fault {
                FormFault::Twice => error.with_param("model"),
                FormFault::Malformed(_) => error,
            }
        }
    };
    Refusal::new(error)
}
