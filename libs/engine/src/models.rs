//! An engine's `/v1/models`: the names it serves, each with the engine's own JSON kept whole.

use std::collections::{HashMap, HashSet};

use domain::{Base, ModelId, ServedModel};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::EngineError;

/// Entries kept of one list. An engine serves a model and its adapters; each costs a pool and some
/// hundred series.
pub const MAX_MODELS: usize = 500;

/// Longest name of a model, in bytes: it is a label of all those series.
pub const MAX_ID_BYTES: usize = 256;

/// What an engine serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelList {
    /// The models, in the engine's order, each name once.
    pub models: Vec<ServedModel>,
    /// Entries that could not be read.
    pub undecoded: u32,
    /// Entries whose name is too long or no printable text, or that were too many.
    pub left_out: u32,
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    #[serde(default)]
    max_model_len: Option<serde_json::Value>,
    #[serde(default)]
    meta: Option<serde_json::Value>,
    #[serde(default)]
    owned_by: Option<serde_json::Value>,
    #[serde(default)]
    root: Option<serde_json::Value>,
    #[serde(default)]
    parent: Option<serde_json::Value>,
}

/// Where an entry says that it comes from.
#[derive(Default)]
struct Origin {
    /// What was loaded for it: the same for all names of one model.
    root: Option<String>,
    /// The model that an adapter lies over.
    parent: Option<String>,
}

impl Entry {
    /// vLLM's `max_model_len`, or the context of one slot that llama.cpp tells as `meta.n_ctx`.
    fn context_tokens(&self) -> Option<u32> {
        let meta = self.meta.as_ref().and_then(|meta| meta.get("n_ctx"));
        let tokens = self.max_model_len.as_ref().filter(|value| !value.is_null()).or(meta)?;
        u32::try_from(tokens.as_u64()?).ok().filter(|tokens| *tokens > 0)
    }
}

/// Reads a model list.
///
/// # Errors
/// [`EngineError::Models`] if it is no JSON object with an array `data`. An entry without a
/// usable `id` is only counted.
pub fn parse(json: &[u8]) -> Result<ModelList, EngineError> {
    let list: List<'_> =
        serde_json::from_slice(json).map_err(|fault| EngineError::Models(fault.to_string()))?;
    let mut read = ModelList::default();
    let mut seen = HashSet::new();
    let mut origins = Vec::new();
    for raw in list.data {
        match entry(raw) {
            Some((model, _)) if seen.contains(&model.id) => {}
            Some((model, origin))
                if read.models.len() < MAX_MODELS && is_name(model.id.as_str()) =>
            {
                seen.insert(model.id.clone());
                read.models.push(model);
                origins.push(origin);
            }
            Some(_) => read.left_out = read.left_out.saturating_add(1),
            None => read.undecoded = read.undecoded.saturating_add(1),
        }
    }
    find_bases(&mut read.models, &origins);
    Ok(read)
}

/// Whether a name can be a label and part of a log line: short, and nothing in it that is not seen.
fn is_name(id: &str) -> bool {
    let hidden = |c: char| {
        let code = u32::from(c);
        matches!(code, 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff)
    };
    id.len() <= MAX_ID_BYTES && !id.chars().any(|c| c.is_control() || hidden(c))
}

fn entry(raw: &RawValue) -> Option<(ServedModel, Origin)> {
    let entry: Entry = serde_json::from_str(raw.get()).ok()?;
    let max_model_len = entry.context_tokens();
    let text = |value: Option<serde_json::Value>| {
        value?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let origin = Origin { root: text(entry.root), parent: text(entry.parent) };
    let model = ServedModel {
        id: ModelId::new(entry.id),
        max_model_len,
        listing: raw.get().into(),
        parity: None,
        base: None,
    };
    (!model.id.as_str().is_empty()).then_some((model, origin))
}

/// vLLM lists each of a model's names with the same `root`, and an adapter with a `parent`, which
/// is one of these names. All of them share one cache, which counts under the first name.
fn find_bases(models: &mut [ServedModel], origins: &[Origin]) {
    let mut first_of_root: HashMap<&str, ModelId> = HashMap::new();
    let mut models_by_name: HashMap<String, ModelId> = HashMap::new();
    for (model, origin) in models.iter_mut().zip(origins).filter(|(_, o)| o.parent.is_none()) {
        let first = match &origin.root {
            Some(root) => first_of_root.entry(root).or_insert_with(|| model.id.clone()).clone(),
            None => model.id.clone(),
        };
        if first != model.id {
            model.base = Some(Base { model: first.clone(), adapter: false });
        }
        models_by_name.insert(model.id.as_str().to_owned(), first);
    }
    for (model, origin) in models.iter_mut().zip(origins) {
        let base = origin.parent.as_ref().and_then(|parent| models_by_name.get(parent));
        if let Some(base) = base.filter(|base| **base != model.id) {
            model.base = Some(Base { model: base.clone(), adapter: true });
        }
    }
}

/// Who owns the first model, as the engine says.
pub(crate) fn owner(json: &[u8]) -> Option<String> {
    let list: List<'_> = serde_json::from_slice(json).ok()?;
    let entry: Entry = serde_json::from_str(list.data.first()?.get()).ok()?;
    entry.owned_by?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
