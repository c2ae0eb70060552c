//! The words of the project as types: ids, block keys, the observed fleet, the routing
//! conversation between edge and router, and the one list of error codes.
//!
//! Nothing here knows a runtime, a network or a clock. Time is a [`Moment`] that the caller
//! passes in, so that the same code runs in a service and under a virtual clock.
//!
//! - [`ids`]: who and what (`TenantId`, `ModelId`, `BackendId`, `RankId`, `LeaseId`)
//! - [`block`]: block keys and the unit they are counted in
//! - [`desired`]: the desired state, as documents
//! - [`fleet`]: the observed state of the backends
//! - [`routing`]: Route, Decision, reports, and the [`RoutingClient`] port
//! - [`error`]: the error codes that every dialect maps from
//! - [`moment`]: monotonic time as a value

pub mod block;
pub mod desired;
pub mod error;
pub mod fleet;
pub mod ids;
pub mod moment;
pub mod routing;

pub use block::{BlockKey, BlockUnit, KeyList};
pub use error::ErrorCode;
pub use fleet::{
    Backend, BackendState, Base, CacheConfig, EngineKind, EvidenceLevel, Fleet, LoadSample,
    PrefillCounters, RankState, ServedModel,
};
pub use ids::{BackendId, Incarnation, LeaseId, ModelId, RankId, RequestId, TenantId};
pub use moment::Moment;
pub use routing::{
    BoxFuture, BoxStream, Candidate, Decision, DecisionReason, Evidence, FailureClass, Prompt,
    RejectReason, Rejected, Report, Route, RoutingClient, ScoreParts, Usage,
};
