//! A tenant: who shares limits, and what it may use.

use std::collections::HashSet;
use std::sync::Arc;

use domain::{ModelId, Moment, TenantId};

use crate::limits::{Concurrency, Permit, RateExceeded, RateState, RequestRate};

/// One tenant with its live limits.
#[derive(Debug)]
pub(crate) struct Tenant {
    id: TenantId,
    rate: Option<RequestRate>,
    concurrency: Arc<Concurrency>,
    models: Option<HashSet<ModelId>>,
    debug_headers: bool,
}

impl Tenant {
    pub(crate) fn new(
        id: TenantId,
        requests_per_minute: Option<u32>,
        max_concurrency: Option<u32>,
        models: Option<HashSet<ModelId>>,
        debug_headers: bool,
    ) -> Self {
        Self {
            id,
            rate: requests_per_minute.map(RequestRate::new),
            concurrency: Concurrency::new(max_concurrency),
            models,
            debug_headers,
        }
    }

    pub(crate) fn unlimited(id: TenantId) -> Self {
        Self::new(id, None, None, None, false)
    }

    pub(crate) fn id(&self) -> &TenantId {
        &self.id
    }

    /// Opens a request, if one more may be open.
    pub(crate) fn open(&self) -> Option<Permit> {
        self.concurrency.try_open()
    }

    /// Counts a request against the rate; `None` when there is no rate.
    pub(crate) fn take(&self, now: Moment) -> Result<Option<RateState>, RateExceeded> {
        self.rate.as_ref().map(|rate| rate.take(now)).transpose()
    }

    pub(crate) fn may_use(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Whether answers may tell which backend was chosen and why.
    pub(crate) fn debug_headers(&self) -> bool {
        self.debug_headers
    }

    #[cfg(test)]
    pub(crate) fn open_requests(&self) -> u32 {
        self.concurrency.open()
    }
}
