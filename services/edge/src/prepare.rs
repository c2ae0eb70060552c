//! Everything that is read from a request's body, in one synchronous step, so that long bodies
//! can be worked on off the asynchronous threads.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::{Backend, ErrorCode, ModelId, Prompt};
use openai_api::{ApiError, BodyView, Field, FormModel, RouteKind, Splice};
use tokio::sync::Semaphore;

use crate::aliases::{self, Aliases, digest};
use crate::answer::PromptEnd;
use crate::fleet::{FleetView, ModelView};
use crate::guard;
use crate::keys::{self, KeyedPrompt, Means, TooLong};
use crate::memory::{self, Full, Memory};
use crate::payload::Payload;
use crate::tenant::Tenant;
use crate::upstream::Pieces;

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
    /// Whether the model is another one than was asked for.
    pub(crate) replaced: bool,
    /// The response that it goes on from, which one backend keeps.
    pub(crate) previous: Option<Box<str>>,
    /// What rendering, tokenising and hashing took.
    pub(crate) keys_took: Option<Duration>,
    /// The memory that the keys are counted in.
    pub(crate) _keys_memory: Memory,
}

/// Why a body was not prepared.
#[derive(Debug)]
pub(crate) enum Unprepared {
    /// It needs more tokenising than there was time for.
    TooLong,
    /// It is malformed, or names a model that the tenant may not use.
    Refused(ApiError),
    /// There is no memory for the edited body.
    Full,
}

impl From<Full> for Unprepared {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

impl From<TooLong> for Unprepared {
    fn from(_: TooLong) -> Self {
        Self::TooLong
    }
}

/// What a request is prepared with.
pub(crate) struct Desk<'a> {
    pub(crate) fleet: &'a FleetView,
    pub(crate) tenant: &'a Tenant,
    pub(crate) aliases: &'a Aliases,
    pub(crate) region_secret: &'a [u8],
    /// The memory for what is made of bodies.
    pub(crate) memory: &'a Arc<Semaphore>,
    /// The backend that keeps what the request goes on from, once that is known.
    pub(crate) keeper: Option<&'a Backend>,
}

/// Reads a body. Takes time in proportion to its length, most of it for what is tokenised:
/// `budget` bytes at most.
///
/// # Errors
/// [`Unprepared`].
pub(crate) fn prepare(
    body: Bytes,
    kind: RouteKind,
    desk: &Desk<'_>,
    budget: usize,
) -> Result<Prepared, Unprepared> {
    let view = BodyView::parse(&body, kind).map_err(|e| Unprepared::Refused(e.into()))?;
    let policies = desk.tenant.fields();
    let removals = guard::check(&view, policies).map_err(Unprepared::Refused)?;
    if let Some(pieces) = removals.without((&view, &body), policies) {
        // What is taken out must not be read either, and is let go.
        let stripped = memory::joined(&pieces, desk.memory)?;
        drop((removals, view));
        drop((pieces, body));
        return prepare(stripped, kind, desk, budget);
    }
    let talk = || aliases::conversation(&view) ^ digest(desk.tenant.id().as_str().as_bytes());
    let (id, model, replaced) = model_for(&view.model, desk, talk).map_err(Unprepared::Refused)?;
    let started = lifecycle::monotonic();
    let means = Means { region_secret: desk.region_secret, memory: desk.memory, budget };
    let keyed = kind
        .is_prefix_routed()
        .then(|| keys::prompt_of(&view, model.map(Arc::as_ref), means))
        .transpose()?;
    let keys_took = keyed.is_some().then(|| lifecycle::monotonic() - started);
    let KeyedPrompt { prompt, end, memory } = keyed.unwrap_or_default();
    let sent = id.clone();
    Ok(Prepared {
        model: id,
        view: model.cloned(),
        kind,
        stream: view.stream && kind.is_prefix_routed(),
        usage_injected: view.can_inject_usage(),
        body: Payload::Held(edited(&view, &body, replaced.then_some(&sent))),
        prompt,
        prompt_end: end.map(Arc::new),
        max_output_tokens: max_output_tokens(&view),
        replaced,
        previous: previous(&view),
        keys_took,
        _keys_memory: memory,
    })
}

/// The body as the engine gets it.
fn edited(view: &BodyView<'_>, body: &Bytes, model: Option<&ModelId>) -> Pieces {
    let mut splice = Splice::new(view).include_usage();
    if let Some(model) = model {
        splice = splice.set_text(Field::Model, model.as_str());
    }
    if splice.is_empty() { body.clone().into() } else { splice.pieces(body).into() }
}

/// A form of which the model is known. Of several models by one alias each form draws its own.
///
/// # Errors
/// The tenant may not use the model, or nobody can have one of such a name.
pub(crate) fn unread_form(
    named: FormModel,
    mut body: Payload,
    desk: &Desk<'_>,
    request: &str,
) -> Result<Prepared, ApiError> {
    let (id, _, replaced) = model_for(&named.name, desk, || digest(request.as_bytes()))?;
    if replaced {
        body.replace(named.at, id.as_str());
    }
    Ok(unread(id.as_str(), body, desk.fleet))
}

/// A request whose body is not read, for a model.
pub(crate) fn unread(model: &str, body: Payload, fleet: &FleetView) -> Prepared {
    let view = fleet.model(model);
    Prepared {
        model: view.map_or_else(|| ModelId::new(model), |m| m.id.clone()),
        view: view.cloned(),
        kind: RouteKind::ByLoad,
        stream: false,
        usage_injected: false,
        body,
        prompt: None,
        prompt_end: None,
        max_output_tokens: None,
        replaced: false,
        previous: None,
        keys_took: None,
        _keys_memory: Memory::default(),
    }
}

/// The model that a request for `asked` goes to, as it is served if it is, and whether that is
/// another one.
fn model_for<'a>(
    asked: &str,
    desk: &Desk<'a>,
    conversation: impl FnOnce() -> u64,
) -> Result<(ModelId, Option<&'a Arc<ModelView>>, bool), ApiError> {
    let Desk { fleet, tenant, aliases, keeper, .. } = desk;
    if !tenant.may_use(asked) {
        let message = "this key may not use the model; ask for one that /v1/models lists";
        return Err(ApiError::new(ErrorCode::ModelAccessDenied, message).with_param("model"));
    }
    if let Some(other) =
        aliases.resolve(asked, (fleet, *keeper), conversation, |name| tenant.may_use(name))
    {
        return Ok((other.clone(), fleet.model(other.as_str()), true));
    }
    match fleet.model(asked) {
        Some(model) => Ok((model.id.clone(), Some(model), false)),
        None if asked.len() > MAX_UNKNOWN_MODEL_BYTES => {
            let error = ApiError::new(ErrorCode::ModelNotFound, "no backend serves this model");
            Err(error.with_param("model"))
        }
        None => Ok((ModelId::new(asked), None, false)),
    }
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
