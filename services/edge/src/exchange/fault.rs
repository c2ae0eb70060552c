//! The ways in which an answer goes wrong, and what is said of each.

use domain::{ErrorCode, FailureClass};

use super::sse::EngineError;
use crate::metrics::Outcome;

/// A way for an answer to go wrong.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub(super) class: FailureClass,
    pub(super) code: ErrorCode,
    pub(super) outcome: Outcome,
    /// What the client is told.
    pub(super) message: &'static str,
}

impl Fault {
    pub(super) const fn cut() -> Self {
        Self {
            class: FailureClass::Interrupted,
            code: ErrorCode::UpstreamInterrupted,
            outcome: Outcome::UpstreamEof,
            message: "the engine's answer broke off; what came before is not all of it",
        }
    }

    pub(super) const fn timeout() -> Self {
        Self {
            class: FailureClass::Timeout,
            code: ErrorCode::Timeout,
            outcome: Outcome::Timeout,
            message: "the engine took too long to go on; what came before is not all of it",
        }
    }

    pub(super) const fn shutdown() -> Self {
        Self {
            class: FailureClass::Interrupted,
            code: ErrorCode::UpstreamInterrupted,
            outcome: Outcome::Shutdown,
            message: "the gateway is shutting down; what came before is not all of it",
        }
    }

    /// The engine said itself that it failed.
    pub(super) const fn of_error(error: EngineError) -> Self {
        let class = match error {
            EngineError::Client => FailureClass::ClientError,
            EngineError::Server => FailureClass::ServerError,
        };
        Self {
            class,
            code: ErrorCode::UpstreamInterrupted,
            outcome: Outcome::UpstreamErrorEvent,
            message: "the engine failed",
        }
    }
}
