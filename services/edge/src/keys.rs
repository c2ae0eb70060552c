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

/// What a request asks about, as far as it is read.
enum Asked<'a> {
    /// A conversation as a chat, in whatever API it is written; and the bytes of text that the
    /// other conversations of the same request have.
    Chat(Value, usize),
    /// Plain text, or several; never none.
    Texts(Vec<Cow<'a, str>>),
    /// Token ids, or several lists of them.
    Ids(Vec<Vec<u32>>),
    /// What cannot be held as values, is of no known shape, or goes on from what an engine keeps.
    Unread,
}

/// A request's prompts as token ids.
struct Tokens<'a> {
    /// The first prompt's.
    ids: Cow<'a, [u32]>,
    /// How many of them, from the first, keys may be made of.
    keyed: usize,
    /// Tokens of all prompts.
    count: usize,
}

impl<'a> Tokens<'a> {
    /// `None` of no prompt at all.
    fn of(prompts: impl IntoIterator<Item = Cow<'a, [u32]>>) -> Option<Self> {
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
    let asked = asked(view, folder);
    let tokens = match (&asked, folder) {
        (Asked::Ids(lists), _) => Tokens::of(lists.iter().map(|ids| Cow::from(ids.as_slice()))),
        (Asked::Chat(chat, more), Some(folder)) => chat_tokens(chat, *more, folder, budget)?,
        (Asked::Texts(texts), Some(folder)) => text_tokens(texts, view, folder, budget)?,
        (Asked::Unread, _) | (_, None) => None,
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
        let (text, more) = text_of(view, &asked);
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
    tokens: &Tokens<'_>,
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

/// Reads a request, once.
fn asked<'a>(view: &BodyView<'a>, folder: Option<&ModelFolder>) -> Asked<'a> {
    let habits = || folder.map(ModelFolder::habits).unwrap_or_default();
    let chat = match view.kind() {
        RouteKind::Completions => return completion(view),
        RouteKind::Generate => {
            return given_ids(view).map_or(Asked::Unread, |ids| Asked::Ids(vec![ids]));
        }
        RouteKind::ChatBatch => {
            let first = view.value().and_then(first_conversation);
            return first.map_or(Asked::Unread, |(chat, more)| Asked::Chat(chat, more));
        }
        RouteKind::Chat => view.value(),
        RouteKind::Messages => view.value().and_then(|body| chat_of_messages(&body, habits())),
        RouteKind::Responses => view.value().and_then(|body| chat_of_responses(&body)),
        _ => None,
    };
    chat.map_or(Asked::Unread, |chat| Asked::Chat(chat, 0))
}

fn completion<'a>(view: &BodyView<'a>) -> Asked<'a> {
    match view.prompt() {
        PromptField::Tokens(ids) => Asked::Ids(vec![ids]),
        PromptField::TokenLists(lists) => Asked::Ids(lists),
        PromptField::Text(text) => Asked::Texts(vec![text]),
        PromptField::Texts(texts) => Asked::Texts(texts),
        PromptField::None | PromptField::Unreadable => Asked::Unread,
    }
}

/// Of the lists that `messages` holds, the first as a chat, and how many bytes of text the others
/// have. These are not rendered: with each of them the template would read all that they share.
fn first_conversation(mut body: Value) -> Option<(Value, usize)> {
    let Value::Array(lists) = body.get_mut("messages")?.take() else { return None };
    let mut lists = lists.into_iter();
    body["messages"] = lists.next()?;
    let text = |messages: Value| canonical_text(&json!({ "messages": messages }), true).len();
    Some((body, lists.map(text).sum()))
}

/// The bytes that stand for a prompt without a tokenizer: of several, the first one's, and how
/// many bytes the others have.
fn text_of(view: &BodyView<'_>, asked: &Asked<'_>) -> (Vec<u8>, usize) {
    match asked {
        Asked::Chat(chat, more) => (canonical_text(chat, true), *more),
        Asked::Texts(texts) => {
            let (first, others) = texts.split_first().map_or(("", &[][..]), |(f, o)| (&**f, o));
            (first.as_bytes().to_vec(), others.iter().map(|text| text.len()).sum())
        }
        Asked::Ids(_) | Asked::Unread => (view.prompt_bytes(), 0),
    }
}

/// The tokens of a chat; those of other conversations by their length.
fn chat_tokens(
    chat: &Value,
    more: usize,
    folder: &ModelFolder,
    budget: usize,
) -> Result<Option<Tokens<'static>>, TooLong> {
    let rendered = ChatRequest::from_body(chat).and_then(|request| folder.render(&request));
    let Ok(rendered) = rendered else { return Ok(None) };
    within(budget, folder, [&*rendered.text])?;
    let Ok(prompt) = folder.tokenize_rendered(&rendered) else { return Ok(None) };
    let count = prompt.tokens.len() + more.div_ceil(BYTES_PER_TOKEN);
    Ok(Some(Tokens { keyed: prompt.keyed_tokens, ids: prompt.tokens.into(), count }))
}

/// A prompt of token ids alone. With other parts, blocks have keys of their own in the engine.
fn given_ids(view: &BodyView<'_>) -> Option<Vec<u32>> {
    let is_given = |field| view.raw(field).is_some_and(|raw| raw != "null");
    if is_given(Field::Features) || is_given(Field::ContentParts) {
        return None;
    }
    serde_json::from_str(view.raw(Field::TokenIds)?).ok()
}

fn text_tokens(
    texts: &[Cow<'_, str>],
    view: &BodyView<'_>,
    folder: &ModelFolder,
    budget: usize,
) -> Result<Option<Tokens<'static>>, TooLong> {
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
    Ok(prompts.ok().and_then(|prompts| Tokens::of(prompts.into_iter().map(Cow::from))))
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
