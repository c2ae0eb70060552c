//! Reading single values out of JSON text that is known to be well formed.

use std::borrow::Cow;

use super::{MOST_VALUES, PromptField, TokenIds};
use crate::json::{Cursor, Malformed, StringSpan, items};

/// A switch inside an options object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flag {
    /// Absent or null.
    #[default]
    Unset,
    /// Given.
    Set(bool),
    /// Given as something that is no truth value.
    Odd,
}

impl Flag {
    pub(super) fn known(self) -> Option<bool> {
        match self {
            Flag::Set(value) => Some(value),
            Flag::Unset | Flag::Odd => None,
        }
    }

    fn of(raw: &str) -> Self {
        match boolean(raw) {
            Some(value) => Flag::Set(value),
            None if raw == "null" => Flag::Unset,
            None => Flag::Odd,
        }
    }
}

/// `stream_options` as far as it is understood.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamOptions {
    /// Absent, null or an object: a key can be set in it.
    pub(super) is_editable: bool,
    pub(super) include_usage: Flag,
    pub(super) continuous_usage: Flag,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { is_editable: true, include_usage: Flag::Unset, continuous_usage: Flag::Unset }
    }
}

/// What a string literal means; `None` if it is no valid text (a lone surrogate).
pub(crate) fn unescape<'a>(text: &'a str, span: &StringSpan) -> Option<Cow<'a, str>> {
    if !span.escaped {
        return Some(Cow::Borrowed(&text[span.inner.clone()]));
    }
    let literal = &text[span.inner.start - 1..span.inner.end + 1];
    serde_json::from_str::<String>(literal).ok().map(Cow::Owned)
}

/// The text of a string value.
pub(super) fn text(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.starts_with('"') {
        return None;
    }
    let span = Cursor::new(raw.as_bytes()).string().ok()?;
    unescape(raw, &span)
}

/// A truth value, with the coercions pydantic makes for the engines: 0 and 1, and the usual
/// words in any case.
pub(super) fn boolean(raw: &str) -> Option<bool> {
    match raw {
        "true" => return Some(true),
        "false" => return Some(false),
        _ => {}
    }
    if let Some(word) = text(raw) {
        return match word.to_ascii_lowercase().as_str() {
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            _ => None,
        };
    }
    match raw.parse::<f64>().ok()? {
        1.0 => Some(true),
        0.0 => Some(false),
        _ => None,
    }
}

/// A count: an integer, a float without a fraction, or a string of digits. Too large a number
/// gives the largest; a negative one gives none.
pub(super) fn count(raw: &str) -> Option<u32> {
    let word = text(raw);
    let digits = word.as_deref().unwrap_or(raw).trim();
    if let Ok(number) = digits.parse::<u64>() {
        return Some(u32::try_from(number).unwrap_or(u32::MAX));
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse::<f64>().ok()?;
    // `as` saturates, which is what is wanted of a number out of range.
    (number.is_infinite() || number.fract() == 0.0).then_some(number as u32)
}

/// `max_tokens` and `n` of sampling parameters. Of a key given twice the last counts, as in Python.
pub(super) fn sampling(raw: &str) -> (Option<u32>, Option<u32>) {
    let (mut max_tokens, mut choices) = (None, None);
    let mut walk = || -> Result<(), Malformed> {
        let mut cursor = Cursor::new(raw.as_bytes());
        cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            let name = unescape(raw, &key);
            let value = cursor.value()?;
            match name.as_deref() {
                Some("max_tokens") => max_tokens = count(&raw[value]),
                Some("n") => choices = count(&raw[value]),
                _ => {}
            }
        }
        Ok(())
    };
    // Parameters of another shape are for the engine to refuse.
    let _ = walk();
    (max_tokens, choices)
}

/// Whether the value is `[]`.
pub(super) fn is_empty_array(raw: &str) -> bool {
    raw.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|inner| inner.trim().is_empty())
}

/// The switches of `stream_options`. Of a key given twice the last counts, as in Python.
pub(super) fn stream_options(raw: &str) -> StreamOptions {
    let mut options = StreamOptions::default();
    if raw == "null" {
        return options;
    }
    if !raw.starts_with('{') || walk_stream_options(raw, &mut options).is_err() {
        options.is_editable = false;
    }
    options
}

fn walk_stream_options(raw: &str, options: &mut StreamOptions) -> Result<(), Malformed> {
    let mut cursor = Cursor::new(raw.as_bytes());
    cursor.enter(b'{')?;
    let mut first = true;
    while let Some(key) = cursor.next_key(&mut first)? {
        let name = unescape(raw, &key);
        let value = cursor.value()?;
        match name.as_deref() {
            Some("include_usage") => options.include_usage = Flag::of(&raw[value]),
            Some("continuous_usage_stats") => options.continuous_usage = Flag::of(&raw[value]),
            _ => {}
        }
    }
    Ok(())
}

/// The prompt of a completions request. Of more than [`MOST_VALUES`] prompts none is read.
pub(super) fn prompt(raw: &str) -> PromptField<'_> {
    if raw == "null" {
        return PromptField::None;
    }
    let Some(first) = items(raw).map(|mut items| items.next()) else {
        return text(raw).map_or(PromptField::Unreadable, PromptField::Text);
    };
    let read = match first.and_then(|item| item.bytes().next()) {
        Some(b'"') => prompts(raw, text).map(PromptField::Texts),
        Some(b'0'..=b'9') => Some(PromptField::Tokens(TokenIds::new(raw))),
        Some(b'[') => prompts(raw, |ids| Some(TokenIds::new(ids))).map(PromptField::TokenLists),
        _ => None,
    };
    read.unwrap_or(PromptField::Unreadable)
}

/// Several prompts, if all can be read and they are not too many.
fn prompts<'a, T>(raw: &'a str, read: impl Fn(&'a str) -> Option<T>) -> Option<Vec<T>> {
    let mut prompts = Vec::new();
    for item in items(raw)? {
        if prompts.len() == MOST_VALUES {
            return None;
        }
        prompts.push(read(item)?);
    }
    Some(prompts)
}
