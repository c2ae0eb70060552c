//! A tenant: who shares limits, and what it may use.

use std::collections::HashSet;
use std::sync::Arc;

use domain::{ModelId, Moment, TenantId};

use crate::guard::Policies;
use crate::limits::{Concurrency, Permit, RateExceeded, RateState, RequestRate};

/// What is wanted of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantSpec {
    pub(crate) id: TenantId,
    /// No limit where absent.
    pub(crate) requests_per_minute: Option<u32>,
    /// No limit where absent.
    pub(crate) max_concurrency: Option<u32>,
    /// All where absent.
    pub(crate) models: Option<HashSet<ModelId>>,
    /// Whether answers may tell which backend was chosen and why.
    pub(crate) debug_headers: bool,
    /// What becomes of fields that are the operator's.
    pub(crate) fields: Policies,
}

impl TenantSpec {
    pub(crate) fn unlimited(id: TenantId, fields: Policies) -> Self {
        let (requests_per_minute, max_concurrency, models) = (None, None, None);
        Self { id, requests_per_minute, max_concurrency, models, debug_headers: false, fields }
    }
}

/// One tenant with its live counters.
#[derive(Debug)]
pub(crate) struct Tenant {
    spec: TenantSpec,
    rate: Option<RequestRate>,
    /// Shared with earlier forms of the tenant: what is open stays counted.
    concurrency: Arc<Concurrency>,
}

impl Tenant {
    pub(crate) fn new(spec: TenantSpec) -> Self {
        let rate = spec.requests_per_minute.map(RequestRate::new);
        Self { rate, concurrency: Arc::default(), spec }
    }

    /// The tenant in another form: what is open, and what was used of the rate, counts on.
    pub(crate) fn becoming(&self, spec: TenantSpec, now: Moment) -> Self {
        let rate = spec.requests_per_minute.map(|limit| match &self.rate {
            Some(before) => before.with_limit(limit, now),
            None => RequestRate::new(limit),
        });
        Self { rate, concurrency: Arc::clone(&self.concurrency), spec }
    }

    pub(crate) fn id(&self) -> &TenantId {
        &self.spec.id
    }

    pub(crate) fn spec(&self) -> &TenantSpec {
        &self.spec
    }

    /// Opens a request, if one more may be open.
    pub(crate) fn open(&self) -> Option<Permit> {
        self.concurrency.try_open(self.spec.max_concurrency)
    }

    /// Counts a request against the rate; `None` when there is no rate.
    pub(crate) fn take(&self, now: Moment) -> Result<Option<RateState>, RateExceeded> {
        self.rate.as_ref().map(|rate| rate.take(now)).transpose()
    }

    /// What becomes of its fields that are the operator's.
    pub(crate) fn fields(&self) -> &Policies {
        &self.spec.fields
    }

    pub(crate) fn may_use(&self, model: &str) -> bool {
        self.spec.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Whether answers may tell which backend was chosen and why.
    pub(crate) fn debug_headers(&self) -> bool {
        self.spec.debug_headers
    }

    #[cfg(test)]
    pub(crate) fn open_requests(&self) -> u32 {
        self.concurrency.open()
    }
}
