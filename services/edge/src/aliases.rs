//! Other names for models: the operator's aliases, each for one model or for several by weight,
//! and the model that stands in for what nobody serves.
//!
//! The engine sees the model's own name. Of several models a conversation keeps its own, on every
//! edge, as long as the model is served; when one goes, only its conversations move.

use std::collections::HashMap;

use domain::block::mix;
use domain::{Backend, ModelId};
use openai_api::{BodyView, Field, items};
use serde::Deserialize;

use crate::fleet::FleetView;

/// Bytes of a text prompt by which its conversation is known.
const TEXT_BYTES: usize = 64;
/// Items of a list without a user's turn by which it is known.
const ITEMS: usize = 64;

/// All aliases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aliases {
    by_name: HashMap<Box<str>, Alias>,
    /// In the order of the config file.
    order: Vec<Box<str>>,
    fallback: Option<ModelId>,
}

/// What one alias stands for.
#[derive(Clone, Debug)]
pub(crate) struct Alias {
    /// The models with their weights, which are above zero.
    pub(crate) targets: Vec<(ModelId, u32)>,
}

impl Aliases {
    pub(crate) fn new(aliases: Vec<(Box<str>, Alias)>, fallback: Option<ModelId>) -> Self {
        let order = aliases.iter().map(|(name, _)| name.clone()).collect();
        Self { by_name: aliases.into_iter().collect(), order, fallback }
    }

    /// The aliases of which a model is served, each with all such models.
    pub(crate) fn served<'a>(
        &'a self,
        fleet: &'a FleetView,
    ) -> impl Iterator<Item = (&'a str, Vec<&'a ModelId>)> {
        self.order.iter().filter_map(|name| {
            let targets = &self.by_name.get(name)?.targets;
            let served: Vec<_> = targets
                .iter()
                .map(|(model, _)| model)
                .filter(|model| fleet.model(model.as_str()).is_some())
                .collect();
            (!served.is_empty()).then_some((&**name, served))
        })
    }

    /// The model that a request for `asked` goes to, if that is another one. Of several, `keeper`
    /// has to serve it, if one has what the request goes on from. `conversation` tells
    /// conversations apart, and is asked for only where it matters; `may_use` whether the tenant
    /// may use the model that stands in.
    pub(crate) fn resolve(
        &self,
        asked: &str,
        (fleet, keeper): (&FleetView, Option<&Backend>),
        conversation: impl FnOnce() -> u64,
        may_use: impl Fn(&str) -> bool,
    ) -> Option<&ModelId> {
        let is_served = |model: &ModelId| fleet.model(model.as_str()).is_some();
        let may_go_on = |model: &ModelId| keeper.is_none_or(|backend| backend.serves(model));
        let is_open = |model: &ModelId| is_served(model) && may_go_on(model);
        let chosen = self.by_name.get(asked).map(|alias| alias.choose(is_open, conversation));
        let stands = match chosen {
            Some(model) => is_served(model),
            None => fleet.model(asked).is_some(),
        };
        let fallback = self
            .fallback
            .as_ref()
            .filter(|model| !stands && is_served(model) && may_use(model.as_str()));
        fallback.or(chosen)
    }
}

impl Alias {
    /// One of the models that are open to it, by weight; if none is, the first.
    fn choose(
        &self,
        is_open: impl Fn(&ModelId) -> bool,
        conversation: impl FnOnce() -> u64,
    ) -> &ModelId {
        let open: Vec<_> = self.targets.iter().filter(|(model, _)| is_open(model)).collect();
        match open.as_slice() {
            [] => &self.targets[0].0,
            [(only, _)] => only,
            several => {
                let conversation = conversation();
                // Each draws a waiting time of its own from the conversation; the shortest wins
                // (weighted rendezvous hashing).
                let draw = |(model, weight): &(ModelId, u32)| {
                    let hash = mix(conversation ^ digest(model.as_str().as_bytes()));
                    let unit = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
                    -unit.ln() / f64::from(*weight)
                };
                let first = several.iter().min_by(|a, b| draw(a).total_cmp(&draw(b)));
                first.map_or(&self.targets[0].0, |(model, _)| model)
            }
        }
    }
}

/// What FNV-1a starts with.
const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    digest_on(EMPTY, bytes)
}

/// The same, of bytes that come after others.
fn digest_on(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What is the same in all turns of a conversation, and seldom in two: the session where it is
/// named, else how the prompt begins, up to the first turn of the user. No more of it is read.
pub(crate) fn conversation(view: &BodyView<'_>) -> u64 {
    if let Some(session) = view.text(Field::SessionId) {
        return digest(session.as_bytes());
    }
    let mut hash = EMPTY;
    for field in [Field::System, Field::Instructions] {
        hash = digest_on(hash, view.raw(field).unwrap_or_default().as_bytes());
    }
    let prompt = view.growing();
    let Some(items) = items(prompt) else {
        return digest_on(hash, &prompt.as_bytes()[..prompt.len().min(TEXT_BYTES)]);
    };
    for item in items.take(ITEMS) {
        hash = digest_on(hash, item.as_bytes());
        if is_user(item) {
            break;
        }
    }
    hash
}

fn is_user(item: &str) -> bool {
    #[derive(Deserialize)]
    struct Turn<'a> {
        #[serde(borrow)]
        role: Option<&'a str>,
    }
    serde_json::from_str::<Turn<'_>>(item).is_ok_and(|turn| turn.role == Some("user"))
}

#[cfg(test)]
mod tests;
