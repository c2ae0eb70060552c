//! `/admin/v1/events`: the audit log, which is the store's own history.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use config_store::{Entry, Revision, Scope};
use domain::desired::{ApiKey, Document, JoinToken};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::extract::Params;
use super::page::Limit;
use super::problem::{Code, Listing, Problem};

/// Longest wait for a change, in seconds: connections without a request for longer are closed.
const LONGEST_WAIT: u16 = 20;

/// Which changes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct EventQuery {
    /// Only changes after this revision, oldest first. If absent: the newest.
    #[param(minimum = 0)]
    after: Option<u64>,
    /// Changes at most.
    #[param(minimum = 1, maximum = 1000, default = 1000)]
    limit: Limit,
    /// With `after`: how long to wait for a change if there is none yet, in seconds.
    #[param(minimum = 0, maximum = 20, default = 0)]
    wait_seconds: u16,
}

/// One change of the desired state.
#[derive(Debug, Serialize, ToSchema)]
struct Event {
    /// Which change of the store it is.
    revision: u64,
    /// When, in milliseconds since 1970.
    at_ms: u64,
    /// Who: the name of the token.
    author: String,
    /// The kind of the document: `backends`, `keys`, …
    kind: String,
    /// Its id.
    id: String,
    /// `created`, `replaced` or `deleted`.
    action: &'static str,
    /// The document from then on, without hashes and keys. Absent for a deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    document: Option<Map<String, Value>>,
}

/// A part of the audit log.
#[derive(Debug, Serialize, ToSchema)]
struct Events {
    /// The changes, by revision.
    items: Vec<Event>,
    /// Where to go on: the `after` of the next request.
    next_after: u64,
    /// The oldest change that is still kept; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest: Option<u64>,
    /// The newest change.
    revision: u64,
}

impl Event {
    fn of(entry: &Entry) -> Self {
        let action = match entry.document {
            None => "deleted",
            Some(_) if entry.created == entry.revision => "created",
            Some(_) => "replaced",
        };
        Self {
            revision: entry.revision.0,
            at_ms: entry.at.0,
            author: entry.author.to_string(),
            kind: entry.key.kind().to_owned(),
            id: entry.key.name().to_owned(),
            action,
            document: entry.document.as_ref().and_then(|d| shown(entry.key.kind(), &d.bytes)),
        }
    }
}

/// A document as the log shows it: what is stored of a credential is left out.
fn shown(kind: &str, bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut fields: Map<String, Value> = serde_json::from_slice(bytes).ok()?;
    match kind {
        ApiKey::KIND => fields.retain(|name, _| name != "sha256"),
        JoinToken::KIND => fields.retain(|name, _| name != "public_key"),
        _ => {}
    }
    Some(fields)
}

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists changes of the desired state: who changed what when. To follow, ask again with
/// `after` = `next_after` and some `wait_seconds`.
#[utoipa::path(get, path = "/admin/v1/events", tag = "events", params(EventQuery),
    responses((status = 200, body = Events, description = "A part of the audit log"), Listing))]
async fn list(
    State(api): State<Arc<Api>>,
    Params(query): Params<EventQuery>,
) -> Result<Json<Events>, Problem> {
    if query.wait_seconds > LONGEST_WAIT {
        let detail = format!("at most {LONGEST_WAIT} is allowed");
        return Err(Problem::new(Code::InvalidParameter, detail).at("wait_seconds"));
    }
    let newest = api.store.revision();
    let limit = query.limit.get();
    let after = match query.after {
        None => Revision(newest.0.saturating_sub(limit as u64)),
        Some(after) if after > newest.0 => {
            let detail = format!("the store is at revision {newest}: `after` is of another one");
            return Err(Problem::new(Code::InvalidParameter, detail).at("after"));
        }
        Some(after) => Revision(after),
    };
    if after == newest && query.after.is_some() && query.wait_seconds > 0 {
        let mut changes = api.store.watch(Scope::All, after);
        let limit = Duration::from_secs(query.wait_seconds.into());
        let _ = tokio::time::timeout(limit, changes.next()).await;
    }
    let history = api.store.history(after, limit).await?;
    let next_after = history.changes.last().map_or(after, |entry| entry.revision).0;
    Ok(Json(Events {
        items: history.changes.iter().map(Event::of).collect(),
        next_after,
        oldest: history.oldest.map(|revision| revision.0),
        revision: api.store.revision().0,
    }))
}
