//! Limits, and those of single routes and models in their place.

use std::time::Duration;

use domain::ModelId;

use crate::config::Timeouts;
use crate::endpoint::Endpoint;

/// The limits of every request.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    body_limit_bytes: usize,
    timeouts: Timeouts,
    exceptions: Vec<Exception>,
}

/// Limits of a route, a model, or a model on a route.
#[derive(Clone, Debug)]
pub(crate) struct Exception {
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) model: Option<ModelId>,
    /// Only without a model, which the body names.
    pub(crate) body_limit_bytes: Option<usize>,
    pub(crate) first_token: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) total: Option<Duration>,
}

impl Terms {
    pub(crate) fn new(body_limit_bytes: usize, timeouts: Timeouts) -> Self {
        Self { body_limit_bytes, timeouts, exceptions: Vec::new() }
    }

    /// Adds one, which counts for more than those before it.
    pub(crate) fn push(&mut self, exception: Exception) {
        self.exceptions.push(exception);
    }

    /// Largest body of a route.
    pub(crate) fn body_limit_bytes(&self, endpoint: Endpoint) -> usize {
        let of_route = self.exceptions.iter().rev().filter(|e| e.holds(endpoint, None));
        of_route.filter_map(|e| e.body_limit_bytes).next().unwrap_or(self.body_limit_bytes)
    }

    /// How long a request's phases may take.
    pub(crate) fn timeouts(&self, endpoint: Endpoint, model: &ModelId) -> Timeouts {
        let mut timeouts = self.timeouts;
        for exception in self.exceptions.iter().filter(|e| e.holds(endpoint, Some(model))) {
            timeouts.first_token = exception.first_token.unwrap_or(timeouts.first_token);
            timeouts.idle = exception.idle.unwrap_or(timeouts.idle);
            timeouts.total = exception.total.unwrap_or(timeouts.total);
        }
        timeouts
    }
}

impl Exception {
    fn holds(&self, endpoint: Endpoint, model: Option<&ModelId>) -> bool {
        let right = |of: &ModelId| model == Some(of);
        self.endpoint.is_none_or(|of| of == endpoint) && self.model.as_ref().is_none_or(right)
    }
}
