//! `/admin/v1/status`: everything at a glance.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use replication::Role;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::problem::{Listing, Problem};

/// The control plane of a region.
#[derive(Debug, Serialize, ToSchema)]
struct Status {
    /// The version of telemetry.
    version: &'static str,
    /// The desired state.
    store: Store,
    /// The observed state.
    fleet: Seen,
    /// The services of the region.
    members: Members,
}

/// The store of the desired state.
#[derive(Debug, Serialize, ToSchema)]
struct Store {
    /// Which store: revisions of different ones cannot be compared.
    id: String,
    /// Its last change.
    revision: u64,
}

/// The engines as they were seen.
#[derive(Debug, Serialize, ToSchema)]
struct Seen {
    /// Grows with every change of what was seen.
    revision: u64,
    /// Engines by state.
    backends: BTreeMap<&'static str, usize>,
}

/// The live services.
#[derive(Debug, Serialize, ToSchema)]
struct Members {
    /// Which start of telemetry the list is of.
    term: u64,
    /// Which list of that start.
    number: u64,
    /// The services.
    items: Vec<Member>,
}

/// One service.
#[derive(Debug, Serialize, ToSchema)]
struct Member {
    /// The operator's name for it.
    id: String,
    /// Which start of it.
    incarnation: u64,
    /// `edge` or `router`.
    role: &'static str,
    /// Where other services connect to it; empty for one that nobody connects to.
    address: String,
}

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(status))
}

/// Shows the store, the engines by state, and the live services.
#[utoipa::path(get, path = "/admin/v1/status", tag = "status",
    responses((status = 200, body = Status, description = "The control plane"), Listing))]
async fn status(State(api): State<Arc<Api>>) -> Result<Json<Status>, Problem> {
    let (fleet, list) = (api.fleet.borrow().clone(), api.members.borrow().clone());
    let mut backends = BTreeMap::new();
    for backend in &fleet.backends {
        *backends.entry(backend.state.as_str()).or_insert(0) += 1;
    }
    let member = |member: &replication::Member| Member {
        id: member.process.id.to_string(),
        incarnation: member.process.incarnation.0,
        role: match member.role {
            Role::Edge => "edge",
            Role::Router => "router",
        },
        address: member.address.to_string(),
    };
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION"),
        store: Store { id: api.store.id().to_string(), revision: api.store.revision().0 },
        fleet: Seen { revision: fleet.revision, backends },
        members: Members {
            term: list.epoch.term,
            number: list.epoch.number,
            items: list.members.iter().map(member).collect(),
        },
    }))
}
