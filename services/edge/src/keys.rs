//! From a request's prompt to the block keys that the router compares.
//!
//! Nothing here can fail a request: a prompt that cannot be rendered or tokenised gets keys over
//! its text, and the engine judges whether it is valid.

use std::borrow::Cow;
use std::sync::Arc;

use domain::{BlockKey, BlockUnit, KeyList, ModelId, Prompt};
use openai_api::{BodyView, Field, PromptField, RouteKind, TokenIds};
use serde_json::{Value, json};
use tokenization::{
    ChatRequest, KeySpace, KeyWriter, ModelFolder, canonical_text, chat_of_messages,
    chat_of_responses,
};
use tokio::sync::Semaphore;

use crate::answer::{PromptEnd, UnitEnd};
use crate::fleet::ModelView;
use crate::memory::Memory;

/// Bytes of prose in a token, about, for models without a tokenizer.
const BYTES_PER_TOKEN: usize = 4;

/// Prompts of so many bytes are keyed without a look at the memory: what is made of them is little
/// beside what else a request takes.
const UNCOUNTED_BYTES: usize = 64 * 1024;

/// What rendering and tokenising a prompt takes at once, in times its length: its values, what the
/// template is given of them, the text that it makes, and the tokens.
const TEXT_TIMES: usize = 6;

/// Bytes of a key, once in the list that grows and once in the one that is kept.
const KEY_BYTES: usize = 2 * size_of::<BlockKey>();

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
    Ids(Vec<TokenIds<'a>>),
    /// What cannot be held as values, is of no known shape, or goes on from what an engine keeps.
    Unread,
}

/// A request's prompts as tokens.
struct Tokens {
    /// The keys of the first prompt, in each token unit, and the tokens behind them.
    keys: Vec<(KeyList, Box<[u32]>)>,
    /// Tokens of all prompts.
    count: usize,
    /// Whether the keys go to the last of them.
    whole: bool,
}

/// What routing needs to know of a prompt.
#[derive(Default)]
pub(crate) struct KeyedPrompt {
    pub(crate) prompt: Option<Prompt>,
    /// Where it ends, if an answer's keys can go on from there.
    pub(crate) end: Option<PromptEnd>,
    /// What is reserved for its keys.
    pub(crate) memory: Memory,
}

/// What keys are made with.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) region_secret: &'a [u8],
    /// The memory for what is made of bodies.
    pub(crate) memory: &'a Arc<Semaphore>,
    /// Bytes that may be tokenised that were not before.
    pub(crate) budget: usize,
}

/// How keys of tokens are made.
#[derive(Clone, Copy)]
struct Keyer<'a> {
    model: Option<&'a ModelView>,
    space: KeySpace,
}

/// What routing needs to know of the prompt: of several, the length of all and the keys of the
/// first. A prompt that there is no memory to make keys of has none.
///
/// # Errors
/// The budget does not suffice.
pub(crate) fn prompt_of(
    view: &BodyView<'_>,
    model: Option<&ModelView>,
    means: Means<'_>,
) -> Result<KeyedPrompt, TooLong> {
    let Means { region_secret, memory, budget } = means;
    let salt = view.cache_salt.as_deref();
    let space = match model {
        Some(model) => model.key_space(region_secret, salt),
        None => KeySpace::new(region_secret, &ModelId::new(&*view.model), None, salt),
    };
    let Ok(mut memory) = Memory::reserved(needed(view, model), memory) else {
        return Ok(unkeyed(view));
    };
    let folder = model.and_then(|m| m.folder.as_deref());
    let keyer = Keyer { model, space };
    let asked = asked(view, folder);
    let tokens = match (&asked, folder) {
        (Asked::Ids(lists), _) => keyer.ids(lists),
        (Asked::Chat(chat, more), Some(folder)) => keyer.chat(chat, *more, folder, budget)?,
        (Asked::Texts(texts), Some(folder)) => keyer.texts(texts, view, folder, budget)?,
        (Asked::Unread, _) | (_, None) => None,
    };
    let count = tokens.as_ref().map(|tokens| tokens.count);
    let whole = tokens.as_ref().is_some_and(|tokens| tokens.whole);
    let (mut keys, tails): (Vec<_>, Vec<_>) =
        tokens.map(|tokens| tokens.keys).unwrap_or_default().into_iter().unzip();
    let end = model.filter(|_| whole).and_then(|m| prompt_end(view, m, space, &keys, tails));
    let text_bytes = if keys.is_empty() || model.is_some_and(|m| m.by_text) {
        let (list, bytes) = text_keys(view, &asked, space);
        keys.push(list);
        bytes
    } else {
        view.growing().len()
    };
    drop(asked);
    memory.shrink(keys.iter().map(|list| size_of_val(&*list.keys)).sum());
    let tokens = saturated(count.unwrap_or(text_bytes / BYTES_PER_TOKEN));
    let prompt = Prompt { tokens, text_bytes: saturated(text_bytes), keys };
    Ok(KeyedPrompt { prompt: Some(prompt), end, memory })
}

/// Bytes that are taken for a while to key a prompt, if these are many.
fn needed(view: &BodyView<'_>, model: Option<&ModelView>) -> usize {
    let length: usize = view.prompt_bytes().map(<[u8]>::len).sum();
    if length <= UNCOUNTED_BYTES {
        return 0;
    }
    let units = model.map(|m| m.token_units.as_slice()).unwrap_or_default();
    let keys = |unit: &BlockUnit, most: usize| most / unit.size().max(1) as usize * KEY_BYTES;
    let by_text = keys(&BlockUnit::TEXT, length);
    // No text has more tokens than bytes, mostly, and an id has a digit and a comma.
    let (for_text, tokens) =
        if has_ids(view) { (0, length / 2) } else { (TEXT_TIMES * length, length) };
    let most = model.map_or(0, |m| m.longest.min(tokens));
    by_text + for_text + units.iter().map(|unit| keys(unit, most)).sum::<usize>()
}

/// Whether a prompt is meant as token ids, or lists of them.
fn has_ids(view: &BodyView<'_>) -> bool {
    let mut bytes = view.growing().bytes().filter(|byte| !byte.is_ascii_whitespace());
    match view.kind() {
        RouteKind::Generate => true,
        RouteKind::Completions => bytes.next() == Some(b'[') && bytes.next() != Some(b'"'),
        _ => false,
    }
}

/// A prompt of which only the length is known.
fn unkeyed(view: &BodyView<'_>) -> KeyedPrompt {
    let bytes = view.growing().len();
    let tokens = saturated(bytes / BYTES_PER_TOKEN);
    let prompt = Prompt { tokens, text_bytes: saturated(bytes), keys: Vec::new() };
    KeyedPrompt { prompt: Some(prompt), ..KeyedPrompt::default() }
}

/// Where a prompt ends that has one answer and is keyed to its last token.
fn prompt_end(
    view: &BodyView<'_>,
    model: &ModelView,
    space: KeySpace,
    keys: &[KeyList],
    tails: Vec<Box<[u32]>>,
) -> Option<PromptEnd> {
    let folder = Arc::clone(model.folder.as_ref()?);
    let one_answer = view.n.unwrap_or(1).max(view.best_of.unwrap_or(1)) <= 1;
    if !one_answer {
        return None;
    }
    let units = keys.iter().zip(tails).map(|(list, tail)| UnitEnd::new(list, tail)).collect();
    PromptEnd::new(folder, space, units, view.max_tokens)
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

/// The keys of the text that stands for a prompt without a tokenizer, of several that of the first
/// one; and how many bytes all have.
fn text_keys(view: &BodyView<'_>, asked: &Asked<'_>, space: KeySpace) -> (KeyList, usize) {
    let unit = BlockUnit::TEXT;
    let (keys, bytes) = match asked {
        Asked::Chat(chat, more) => {
            let text = canonical_text(chat, true);
            (space.text_keys(&text, unit.size()), text.len() + more)
        }
        Asked::Texts(texts) => {
            let first = texts.first().map_or(&b""[..], |text| text.as_bytes());
            (space.text_keys(first, unit.size()), texts.iter().map(|text| text.len()).sum())
        }
        Asked::Ids(_) | Asked::Unread => {
            let length = view.prompt_bytes().map(<[u8]>::len).sum();
            let mut writer = space.text_writer(unit.size()).expecting(length);
            view.prompt_bytes().for_each(|piece| writer.write(piece));
            (writer.finish().0, length)
        }
    };
    (KeyList { unit, keys: keys.into() }, bytes)
}

impl Keyer<'_> {
    fn units(&self) -> &[BlockUnit] {
        self.model.map(|model| model.token_units.as_slice()).unwrap_or_default()
    }

    /// Tokens of which the longest prompt may have keys.
    fn longest(&self) -> usize {
        self.model.map_or(0, |model| model.longest)
    }

    /// Tokens that are there, of which the first may have keys, as a part of all.
    fn tokens(&self, ids: &[u32], keyed: usize, count: usize) -> Tokens {
        let keyed = &ids[..keyed.min(ids.len()).min(self.longest())];
        let list = |&unit: &BlockUnit| {
            let keys = self.space.keys(keyed, unit.size());
            let tail = keyed[keys.len() * unit.size() as usize..].into();
            (KeyList { unit, keys: keys.into() }, tail)
        };
        let keys = self.units().iter().map(list).collect();
        Tokens { keys, count, whole: keyed.len() >= count }
    }

    /// Token ids, keyed as they are read. `None` if they are none, or no lists at all.
    fn ids(&self, lists: &[TokenIds<'_>]) -> Option<Tokens> {
        let (first, others) = lists.split_first()?;
        let expected = first.at_most() * size_of::<u32>();
        let writer = |&unit: &BlockUnit| {
            (unit, self.space.token_writer(unit.size(), self.longest()).expecting(expected))
        };
        let mut writers: Vec<_> = self.units().iter().map(writer).collect();
        let keyed = first.read(|id| {
            for (_, writer) in &mut writers {
                writer.write_token(id);
            }
        })?;
        let mut count = keyed;
        for list in others {
            count += list.read(|_| ())?;
        }
        let list = |(unit, writer): (BlockUnit, KeyWriter)| {
            let (keys, tail) = writer.finish();
            (KeyList { unit, keys: keys.into() }, tail)
        };
        let whole = count <= keyed.min(self.longest());
        Some(Tokens { keys: writers.into_iter().map(list).collect(), count, whole })
    }

    /// The tokens of a chat; those of other conversations by their length.
    fn chat(
        &self,
        chat: &Value,
        more: usize,
        folder: &ModelFolder,
        budget: usize,
    ) -> Result<Option<Tokens>, TooLong> {
        let rendered = ChatRequest::from_body(chat).and_then(|request| folder.render(&request));
        let Ok(rendered) = rendered else { return Ok(None) };
        within(budget, folder, [&*rendered.text])?;
        let Ok(prompt) = folder.tokenize_rendered(&rendered) else { return Ok(None) };
        let count = prompt.tokens.len() + more.div_ceil(BYTES_PER_TOKEN);
        Ok(Some(self.tokens(&prompt.tokens, prompt.keyed_tokens, count)))
    }

    /// The tokens of plain text.
    fn texts(
        &self,
        texts: &[Cow<'_, str>],
        view: &BodyView<'_>,
        folder: &ModelFolder,
        budget: usize,
    ) -> Result<Option<Tokens>, TooLong> {
        within(budget, folder, texts.iter().map(Cow::as_ref))?;
        let is_short = |raw: &&str| raw.len() <= LONGEST_OPTION;
        let given = |field| {
            view.raw(field).filter(is_short).and_then(|raw| serde_json::from_str::<Value>(raw).ok())
        };
        let options = json!({
            "add_special_tokens": given(Field::AddSpecialTokens),
            "truncate_prompt_tokens": given(Field::TruncatePromptTokens),
        });
        let tokens = |text: &Cow<'_, str>| folder.tokenize_prompt(&options, text).ok();
        let Some((first, others)) = texts.split_first() else { return Ok(None) };
        let Some(ids) = tokens(first) else { return Ok(None) };
        let mut count = ids.len();
        for text in others {
            let Some(ids) = tokens(text) else { return Ok(None) };
            count += ids.len();
        }
        Ok(Some(self.tokens(&ids, ids.len(), count)))
    }
}

/// A prompt of token ids alone. With other parts, blocks have keys of their own in the engine.
fn given_ids<'a>(view: &BodyView<'a>) -> Option<TokenIds<'a>> {
    let is_given = |field| view.raw(field).is_some_and(|raw| raw != "null");
    if is_given(Field::Features) || is_given(Field::ContentParts) {
        return None;
    }
    view.raw(Field::TokenIds).map(TokenIds::new)
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
