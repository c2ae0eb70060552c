//! From a request's prompt to the block keys that the router compares.
//!
//! Nothing here can fail a request: a prompt that cannot be rendered or tokenised gets keys over
//! its text, and the engine judges whether it is valid.

use std::borrow::Cow;
use std::sync::Arc;

use domain::{BlockUnit, KeyList, ModelId, Prompt};
use openai_api::{BodyView, Field, PromptField, RouteKind};
use serde_json::{Value, json};
use tokenization::{
    ChatRequest, KeySpace, ModelFolder, canonical_text, chat_of_messages, chat_of_responses,
};

use crate::answer::PromptEnd;
use crate::fleet::ModelView;

/// Bytes of prose in a token, about, for models without a tokenizer.
const BYTES_PER_TOKEN: usize = 4;

/// Longest text of a number or a flag; whatever is longer is neither.
const LONGEST_OPTION: usize = 64;

/// The prompt needs more tokenising than the caller has time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// A request's prompts as token ids.
struct Tokens {
    /// The first prompt's.
    ids: Vec<u32>,
    /// How many of them, from the first, keys may be made of.
    keyed: usize,
    /// Tokens of all prompts.
    count: usize,
}

impl Tokens {
    /// `None` of no prompt at all.
    fn of(prompts: impl IntoIterator<Item = Vec<u32>>) -> Option<Self> {
        let mut prompts = prompts.into_iter();
        let ids = prompts.next()?;
        let count = ids.len() + prompts.map(|p| p.len()).sum::<usize>();
        Some(Self { keyed: ids.len(), ids, count })
    }
}

/// What routing needs to know of the prompt: of several, the length of all and the keys of the
/// first; and where it ends, if an answer's keys can go on from there. At most `budget` bytes are
/// tokenised that were not before.
///
/// # Errors
/// The budget does not suffice.
pub(crate) fn prompt_of(
    view: &BodyView<'_>,
    model: Option<&ModelView>,
    region_secret: &[u8],
    budget: usize,
) -> Result<(Prompt, Option<PromptEnd>), TooLong> {
    let salt = view.cache_salt.as_deref();
    let space = match model {
        Some(model) => model.key_space(region_secret, salt),
        None => KeySpace::new(region_secret, &ModelId::new(&*view.model), None, salt),
    };
    let folder = model.and_then(|m| m.folder.as_deref());
    let chats = chats(view, folder);
    let tokens = match view.kind() {
        RouteKind::Completions => completion_tokens(view, folder, budget)?,
        RouteKind::Generate => given_tokens(view),
        _ => chat_tokens(&chats, folder, budget)?,
    };
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
    let end = match (&tokens, model) {
        (Some(tokens), Some(model)) => prompt_end(view, tokens, model, space, &keys),
        _ => None,
    };
    let text_bytes = if keys.is_empty() || model.is_some_and(|m| m.by_text) {
        let (text, more) = text_of(view, &chats);
        let unit = BlockUnit::TEXT;
        keys.push(KeyList { unit, keys: space.text_keys(&text, unit.size()).into() });
        text.len() + more
    } else {
        view.growing().len()
    };
    let count = tokens.map_or(text_bytes / BYTES_PER_TOKEN, |t| t.count);
    let prompt = Prompt { tokens: saturated(count), text_bytes: saturated(text_bytes), keys };
    Ok((prompt, end))
}

/// Where a prompt ends that has one answer and is keyed to its last token.
fn prompt_end(
    view: &BodyView<'_>,
    tokens: &Tokens,
    model: &ModelView,
    space: KeySpace,
    keys: &[KeyList],
) -> Option<PromptEnd> {
    let folder = Arc::clone(model.folder.as_ref()?);
    let one_answer = view.n.unwrap_or(1).max(view.best_of.unwrap_or(1)) <= 1;
    if !one_answer || tokens.keyed < tokens.count {
        return None;
    }
    PromptEnd::new(folder, space, &tokens.ids, keys, view.max_tokens)
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The conversations of a request as chats, in whatever API it is written. None where they cannot
/// be held as values, are of no known shape, or go on from what an engine keeps.
fn chats(view: &BodyView<'_>, folder: Option<&ModelFolder>) -> Vec<Value> {
    let habits = || folder.map(ModelFolder::habits).unwrap_or_default();
    let chat = match view.kind() {
        RouteKind::Chat => view.value(),
        RouteKind::ChatBatch => return view.value().map(conversations).unwrap_or_default(),
        RouteKind::Messages => view.value().and_then(|body| chat_of_messages(&body, habits())),
        RouteKind::Responses => view.value().and_then(|body| chat_of_responses(&body)),
        _ => None,
    };
    chat.into_iter().collect()
}

/// One chat for each of the lists that `messages` holds.
fn conversations(mut body: Value) -> Vec<Value> {
    let Some(Value::Array(lists)) = body.get_mut("messages").map(Value::take) else {
        return Vec::new();
    };
    let with = |messages: Value| {
        let mut chat = body.clone();
        chat["messages"] = messages;
        chat
    };
    lists.into_iter().map(with).collect()
}

/// The bytes that stand for a prompt without a tokenizer: of several, the first one's, and how
/// many bytes the others have.
fn text_of(view: &BodyView<'_>, chats: &[Value]) -> (Vec<u8>, usize) {
    if let [first, others @ ..] = chats {
        let more = others.iter().map(|chat| canonical_text(chat, true).len()).sum();
        return (canonical_text(first, true), more);
    }
    match (view.kind(), view.prompt()) {
        (RouteKind::Completions, PromptField::Text(text)) => (text.into_owned().into_bytes(), 0),
        (RouteKind::Completions, PromptField::Texts(texts)) => {
            let mut texts = texts.into_iter();
            let first = texts.next().unwrap_or_default();
            (first.into_bytes(), texts.map(|t| t.len()).sum())
        }
        _ => (view.prompt_bytes(), 0),
    }
}

fn chat_tokens(
    chats: &[Value],
    folder: Option<&ModelFolder>,
    budget: usize,
) -> Result<Option<Tokens>, TooLong> {
    let Some(folder) = folder.filter(|_| !chats.is_empty()) else { return Ok(None) };
    let render = |chat| ChatRequest::from_body(chat).and_then(|request| folder.render(&request));
    let Ok(rendered) = chats.iter().map(render).collect::<Result<Vec<_>, _>>() else {
        return Ok(None);
    };
    within(budget, folder, rendered.iter().map(|rendered| &*rendered.text))?;
    let prompts = rendered.iter().map(|rendered| folder.tokenize_rendered(rendered));
    let Ok(mut prompts) = prompts.collect::<Result<Vec<_>, _>>() else { return Ok(None) };
    let count = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let first = prompts.swap_remove(0);
    Ok(Some(Tokens { keyed: first.keyed_tokens, ids: first.tokens, count }))
}

/// A prompt of token ids alone. With other parts, blocks have keys of their own in the engine.
fn given_tokens(view: &BodyView<'_>) -> Option<Tokens> {
    let is_given = |field| view.raw(field).is_some_and(|raw| raw != "null");
    if is_given(Field::Features) || is_given(Field::ContentParts) {
        return None;
    }
    Tokens::of([serde_json::from_str(view.raw(Field::TokenIds)?).ok()?])
}

fn completion_tokens(
    view: &BodyView<'_>,
    folder: Option<&ModelFolder>,
    budget: usize,
) -> Result<Option<Tokens>, TooLong> {
    let texts: Vec<Cow<'_, str>> = match view.prompt() {
        PromptField::Tokens(ids) => return Ok(Tokens::of([ids])),
        PromptField::TokenLists(lists) => return Ok(Tokens::of(lists)),
        PromptField::Text(text) => vec![text],
        PromptField::Texts(texts) => texts.into_iter().map(Cow::Owned).collect(),
        PromptField::None | PromptField::Unreadable => return Ok(None),
    };
    let Some(folder) = folder else { return Ok(None) };
    within(budget, folder, texts.iter().map(Cow::as_ref))?;
    let is_short = |raw: &&str| raw.len() <= LONGEST_OPTION;
    let given = |field| {
        view.raw(field).filter(is_short).and_then(|raw| serde_json::from_str::<Value>(raw).ok())
    };
    let options = json!({
        "add_special_tokens": given(Field::AddSpecialTokens),
        "truncate_prompt_tokens": given(Field::TruncatePromptTokens),
    });
    let prompts: Result<Vec<Vec<u32>>, _> =
        texts.iter().map(|text| folder.tokenize_prompt(&options, text)).collect();
    Ok(prompts.ok().and_then(Tokens::of))
}

fn within<'a>(
    budget: usize,
    folder: &ModelFolder,
    texts: impl IntoIterator<Item = &'a str> + Clone,
) -> Result<(), TooLong> {
    // Short texts need no look at the cache.
    let bytes: usize = texts.clone().into_iter().map(str::len).sum();
    if bytes > budget
        && texts.into_iter().map(|t| folder.estimate_uncached_bytes(t)).sum::<usize>() > budget
    {
        return Err(TooLong);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
