//! From a request's prompt to the block keys that the router compares.
//!
//! Nothing here can fail a request: a prompt that cannot be rendered or tokenised gets keys over
//! its text, and the engine judges whether it is valid.

use std::borrow::Cow;

use domain::{BlockUnit, KeyList, ModelId, Prompt};
use openai_api::{BodyView, Field, PromptField, RouteKind};
use serde_json::Value;
use tokenization::{ChatRequest, KeySpace, ModelFolder, canonical_text};

use crate::fleet::ModelView;

/// Bytes of prose in a token, about, for models without a tokenizer.
const BYTES_PER_TOKEN: usize = 4;

/// A prompt as token ids.
struct Tokens {
    ids: Vec<u32>,
    /// How many of them, from the first, keys may be made of.
    keyed: usize,
}

impl Tokens {
    fn all(ids: Vec<u32>) -> Self {
        Self { keyed: ids.len(), ids }
    }
}

/// What routing needs to know of the prompt: of several, of the first.
pub(crate) fn prompt_of(
    view: &BodyView<'_>,
    model: Option<&ModelView>,
    region_secret: &[u8],
) -> Prompt {
    let name = ModelId::new(&*view.model);
    let space = KeySpace::new(region_secret, &name, None, view.cache_salt.as_deref());
    let value = || (view.kind() == RouteKind::Chat).then(|| view.value()).flatten();
    let chat = value();
    let tokens = tokens_of(view, chat.as_ref(), model);
    let mut keys = Vec::new();
    if let (Some(tokens), Some(model)) = (&tokens, model) {
        let keyed = &tokens.ids[..tokens.keyed.min(tokens.ids.len())];
        keys.extend(
            model
                .token_units
                .iter()
                .map(|&unit| KeyList { unit, keys: space.keys(keyed, unit.size()).into() }),
        );
    }
    let text_bytes = if keys.is_empty() || model.is_some_and(|m| m.by_text) {
        let text = text_of(view, chat);
        let unit = BlockUnit::TEXT;
        keys.push(KeyList { unit, keys: space.text_keys(&text, unit.size()).into() });
        text.len()
    } else {
        prompt_bytes(view)
    };
    let count = tokens.map_or(text_bytes / BYTES_PER_TOKEN, |t| t.ids.len());
    Prompt { tokens: saturated(count), text_bytes: saturated(text_bytes), keys }
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn prompt_bytes(view: &BodyView<'_>) -> usize {
    let field = if view.kind() == RouteKind::Chat { Field::Messages } else { Field::Prompt };
    view.raw(field).map_or(0, str::len)
}

/// The bytes that stand for a prompt without a tokenizer.
fn text_of(view: &BodyView<'_>, chat: Option<Value>) -> Vec<u8> {
    match view.kind() {
        RouteKind::Chat => {
            chat.map_or_else(|| view.prompt_bytes(), |value| canonical_text(&value, true))
        }
        _ => match view.prompt() {
            PromptField::Text(text) => text.into_owned().into_bytes(),
            PromptField::Texts(texts) => texts.into_iter().next().unwrap_or_default().into_bytes(),
            _ => view.prompt_bytes(),
        },
    }
}

fn tokens_of(
    view: &BodyView<'_>,
    chat: Option<&Value>,
    model: Option<&ModelView>,
) -> Option<Tokens> {
    let folder = model.and_then(|m| m.folder.as_deref());
    match view.kind() {
        RouteKind::Chat => chat_tokens(chat?, folder?),
        _ => completion_tokens(view, folder),
    }
}

fn chat_tokens(body: &Value, folder: &ModelFolder) -> Option<Tokens> {
    let request = ChatRequest::from_body(body).ok()?;
    let prompt = folder.tokenize_chat(&request).ok()?;
    Some(Tokens { keyed: prompt.keyed_tokens, ids: prompt.tokens })
}

fn completion_tokens(view: &BodyView<'_>, folder: Option<&ModelFolder>) -> Option<Tokens> {
    let text: Cow<'_, str> = match view.prompt() {
        PromptField::Tokens(ids) => return Some(Tokens::all(ids)),
        PromptField::TokenLists(lists) => return lists.into_iter().next().map(Tokens::all),
        PromptField::Text(text) => text,
        PromptField::Texts(texts) => texts.into_iter().next()?.into(),
        PromptField::None | PromptField::Unreadable => return None,
    };
    let add_special_tokens = view.raw(Field::AddSpecialTokens) != Some("false");
    folder?.tokenize_text(&text, add_special_tokens).ok().map(Tokens::all)
}

#[cfg(test)]
mod tests;
