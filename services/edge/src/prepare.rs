//! Everything that is read from a request's body, in one synchronous step, so that long bodies
//! can be worked on off the asynchronous threads.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::{ErrorCode, ModelId, Prompt};
use openai_api::{ApiError, BodyView, Field, RouteKind, with_include_usage};

use crate::answer::PromptEnd;
use crate::fleet::{FleetView, ModelView};
use crate::keys::{self, TooLong};
use crate::payload::Payload;
use crate::tenant::Tenant;

/// Longest name of a model that no backend lists. Names are kept in logs and traces, and a client
/// makes them as long as a body.
const MAX_UNKNOWN_MODEL_BYTES: usize = 256;

/// A request, ready to be routed and sent.
pub(crate) struct Prepared {
    pub(crate) model: ModelId,
    /// The model as the ready backends serve it, if one does.
    pub(crate) view: Option<Arc<ModelView>>,
    pub(crate) kind: RouteKind,
    pub(crate) stream: bool,
    /// Whether the engine is asked for a usage event that the client did not ask for.
    pub(crate) usage_injected: bool,
    /// The client's own bytes, with our fields spliced in.
    pub(crate) body: Payload,
    /// `None` for routes that go by load.
    pub(crate) prompt: Option<Prompt>,
    /// Where the prompt ends, if the keys of an answer can go on from there.
    pub(crate) prompt_end: Option<Arc<PromptEnd>>,
    /// Output tokens over all choices, if the client limits them.
    pub(crate) max_output_tokens: Option<u32>,
    /// The response that it goes on from, which one backend keeps.
    pub(crate) previous: Option<Box<str>>,
    /// What rendering, tokenising and hashing took.
    pub(crate) keys_took: Option<Duration>,
}

/// Why a body was not prepared.
#[derive(Debug)]
pub(crate) enum Unprepared {
    /// It needs more tokenising than there was time for.
    TooLong,
    /// It is malformed, or names a model that the tenant may not use.
    Refused(ApiError),
}

impl From<TooLong> for Unprepared {
    fn from(_: TooLong) -> Self {
        Self::TooLong
    }
}

/// Reads a body. Takes time in proportion to its length, most of it for what is tokenised:
/// `budget` bytes at most.
///
/// # Errors
/// [`Unprepared`].
pub(crate) fn prepare(
    body: &Bytes,
    kind: RouteKind,
    fleet: &FleetView,
    tenant: &Tenant,
    region_secret: &[u8],
    budget: usize,
) -> Result<Prepared, Unprepared> {
    let view = BodyView::parse(body, kind).map_err(|e| Unprepared::Refused(e.into()))?;
    let model = allowed_model(&view.model, fleet, tenant).map_err(Unprepared::Refused)?;
    let id = model.map_or_else(|| ModelId::new(&*view.model), |m| m.id.clone());
    let started = lifecycle::monotonic();
    let prompt = kind
        .is_prefix_routed()
        .then(|| keys::prompt_of(&view, model.map(Arc::as_ref), region_secret, budget))
        .transpose()?;
    let (prompt, prompt_end) = prompt.unzip();
    let prompt_end = prompt_end.flatten();
    let keys_took = prompt.is_some().then(|| lifecycle::monotonic() - started);
    Ok(Prepared {
        model: id,
        view: model.cloned(),
        kind,
        stream: view.stream && kind.is_prefix_routed(),
        usage_injected: view.can_inject_usage(),
        body: Payload::Held(with_include_usage(&view, body)),
        prompt,
        prompt_end: prompt_end.map(Arc::new),
        max_output_tokens: max_output_tokens(&view),
        previous: previous(&view),
        keys_took,
    })
}

/// A request whose body is not read but for the model it names.
///
/// # Errors
/// The tenant may not use the model, or nobody can have one of such a name.
pub(crate) fn unread(
    model: &str,
    body: Payload,
    fleet: &FleetView,
    tenant: &Tenant,
) -> Result<Prepared, ApiError> {
    let view = allowed_model(model, fleet, tenant)?;
    Ok(Prepared {
        model: view.map_or_else(|| ModelId::new(model), |m| m.id.clone()),
        view: view.cloned(),
        kind: RouteKind::ByLoad,
        stream: false,
        usage_injected: false,
        body,
        prompt: None,
        prompt_end: None,
        max_output_tokens: None,
        previous: None,
        keys_took: None,
    })
}

/// The model as it is served, if it is.
fn allowed_model<'a>(
    name: &str,
    fleet: &'a FleetView,
    tenant: &Tenant,
) -> Result<Option<&'a Arc<ModelView>>, ApiError> {
    if !tenant.may_use(name) {
        let message = "this key may not use the model; ask for one that /v1/models lists";
        return Err(ApiError::new(ErrorCode::ModelAccessDenied, message).with_param("model"));
    }
    let model = fleet.model(name);
    if model.is_none() && name.len() > MAX_UNKNOWN_MODEL_BYTES {
        let error = ApiError::new(ErrorCode::ModelNotFound, "no backend serves this model");
        return Err(error.with_param("model"));
    }
    Ok(model)
}

fn previous(view: &BodyView<'_>) -> Option<Box<str>> {
    match view.kind() {
        RouteKind::Responses => {
            let id = view.text(Field::PreviousResponseId)?;
            (!id.is_empty()).then(|| id.into())
        }
        _ => None,
    }
}

fn max_output_tokens(view: &BodyView<'_>) -> Option<u32> {
    let choices = view.n.unwrap_or(1).max(view.best_of.unwrap_or(1)).max(1);
    view.max_tokens.map(|limit| limit.saturating_mul(choices))
}
