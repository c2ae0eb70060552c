//! Reading single values where a cursor stands.

use domain::Usage;

use crate::json::{Cursor, Malformed};

/// A cursor with the few readings that are needed here.
pub(super) struct Reader<'a> {
    pub(super) text: &'a [u8],
    pub(super) cursor: Cursor<'a>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, cursor: Cursor::new(text) }
    }

    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        self.cursor.skip_value()
    }

    /// Calls `visit` for each member, at its value, which `visit` must pass. Another value than
    /// an object has no members.
    pub(super) fn object(
        &mut self,
        mut visit: impl FnMut(&[u8], &mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.cursor.peek() != Some(b'{') {
            return self.skip();
        }
        self.cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = self.cursor.next_key(&mut first)? {
            let text = self.text;
            visit(&text[key.inner], self)?;
        }
        Ok(())
    }

    /// Calls `visit` at each item, which it must pass. Another value than an array has no items.
    pub(super) fn items(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if self.cursor.peek() != Some(b'[') {
            return self.skip();
        }
        self.cursor.enter(b'[')?;
        let mut first = true;
        while self.cursor.next_item(&mut first)? {
            visit(self)?;
        }
        Ok(())
    }

    /// Passes a value and tells whether Python would call it true: not null, false, zero or
    /// empty.
    pub(super) fn is_truthy(&mut self) -> Result<bool, Malformed> {
        let raw = self.cursor.value()?;
        Ok(is_truthy(&self.text[raw]))
    }

    pub(super) fn count(&mut self) -> Result<Option<u64>, Malformed> {
        let raw = self.cursor.value()?;
        let digits = std::str::from_utf8(&self.text[raw]).unwrap_or_default();
        // Cohere counts in floats.
        Ok(digits.strip_suffix(".0").unwrap_or(digits).parse().ok())
    }

    /// A string's bytes between the quotes, as they stand; of another value none.
    pub(super) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let raw = self.cursor.value()?;
        Ok(match &self.text[raw] {
            [b'"', inner @ .., b'"'] => inner,
            _ => &[],
        })
    }

    /// A usage object of any of the APIs. One without a count of the prompt tells at most how many
    /// tokens were put out.
    ///
    /// Chat and completions count `prompt_tokens`, Responses `input_tokens`, both with what was
    /// cached. Messages count what was read from the cache and written to it beside
    /// `input_tokens`.
    pub(super) fn usage(&mut self) -> Result<Counts, Malformed> {
        let mut usage = Usage::default();
        let (mut prompt, mut output, mut beside) = (None, None, 0);
        self.object(|key, reader| {
            match key {
                b"prompt_tokens" | b"input_tokens" => prompt = reader.count()?,
                b"completion_tokens" | b"output_tokens" => output = reader.count()?,
                b"prompt_tokens_details" | b"input_tokens_details" => {
                    reader.object(|key, reader| {
                        if key == b"cached_tokens" {
                            usage.cached_tokens = reader.count()?;
                            return Ok(());
                        }
                        reader.skip()
                    })?;
                }
                b"cache_read_input_tokens" => {
                    usage.cached_tokens = reader.count()?;
                    beside += usage.cached_tokens.unwrap_or(0);
                }
                // Cohere's.
                b"cached_tokens" => usage.cached_tokens = reader.count()?,
                b"tokens" => reader.object(|key, reader| {
                    match key {
                        b"input_tokens" => prompt = reader.count()?,
                        b"output_tokens" => output = reader.count()?,
                        _ => reader.skip()?,
                    }
                    Ok(())
                })?,
                b"cache_creation_input_tokens" => beside += reader.count()?.unwrap_or(0),
                _ => reader.skip()?,
            }
            Ok(())
        })?;
        usage.completion_tokens = output.unwrap_or(0);
        let total = |count: u64| Usage { prompt_tokens: count.saturating_add(beside), ..usage };
        Ok(Counts { usage: prompt.map(total), output })
    }
}

/// What a usage object says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) usage: Option<Usage>,
    /// Output tokens, where they are told.
    pub(super) output: Option<u64>,
}

pub(super) fn is_truthy(value: &[u8]) -> bool {
    match value {
        b"null" | b"false" | b"0" | b"\"\"" | b"[]" | b"{}" => false,
        [b'[' | b'{', inner @ .., _] => !inner.trim_ascii().is_empty(),
        _ => true,
    }
}
