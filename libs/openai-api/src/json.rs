//! A cursor over JSON text that checks it and finds where values stand, without building any.
//!
//! It takes what Python's `json.loads` takes: the JSON grammar plus the literals `NaN`,
//! `Infinity` and `-Infinity`, escapes of lone surrogates, numbers of any size. It does not
//! recurse; nesting is bounded by [`MAX_DEPTH`].

mod items;

use std::ops::Range;

pub use items::{Items, items};

/// Deepest nesting below one value. CPython up to 3.11 gives up at 1000; a body that needs more
/// is no request of anybody's.
const MAX_DEPTH: usize = 1024;

/// Why a text is not JSON, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Byte offset in the text.
    pub(crate) at: usize,
    /// What was expected or found there.
    pub(crate) what: &'static str,
}

/// A string literal: where its content stands and whether it holds escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StringSpan {
    /// The bytes between the quotes.
    pub(crate) inner: Range<usize>,
    /// Whether the content differs from what it means.
    pub(crate) escaped: bool,
}

/// A position in a JSON text.
pub(crate) struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    /// Where the last comma between members or items of a walked container stands.
    last_comma: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, last_comma: 0 }
    }

    /// A cursor that begins within a text; positions are still those in all of it.
    pub(crate) fn at(text: &'a [u8], at: usize) -> Self {
        Self { text, at, last_comma: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn last_comma(&self) -> usize {
        self.last_comma
    }

    /// The next byte that is not white space, left in place.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(&byte) = self.text.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    /// Passes the opening brace or bracket of a container.
    pub(crate) fn enter(&mut self, open: u8) -> Result<(), Malformed> {
        match self.peek() {
            Some(byte) if byte == open => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.expected(if open == b'{' {
                "expected an object"
            } else {
                "expected an array"
            })),
        }
    }

    /// The next key of the object that was entered, the cursor left at its value; `None` past
    /// the closing brace. `first` starts as true for every object.
    pub(crate) fn next_key(&mut self, first: &mut bool) -> Result<Option<StringSpan>, Malformed> {
        if !self.step(b'}', first, "expected ',' or '}'")? {
            return Ok(None);
        }
        self.key().map(Some)
    }

    /// Whether the array that was entered has another item, the cursor left at it.
    pub(crate) fn next_item(&mut self, first: &mut bool) -> Result<bool, Malformed> {
        self.step(b']', first, "expected ',' or ']'")
    }

    fn step(&mut self, close: u8, first: &mut bool, what: &'static str) -> Result<bool, Malformed> {
        match self.peek() {
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            Some(_) if *first => {
                *first = false;
                Ok(true)
            }
            Some(b',') => {
                self.last_comma = self.at;
                self.at += 1;
                Ok(true)
            }
            _ => Err(self.expected(what)),
        }
    }

    fn key(&mut self) -> Result<StringSpan, Malformed> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("expected a key in double quotes"));
        }
        let key = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.expected("expected ':'"));
        }
        self.at += 1;
        Ok(key)
    }

    /// Passes one whole value and tells where it stands.
    pub(crate) fn value(&mut self) -> Result<Range<usize>, Malformed> {
        self.peek();
        let start = self.at;
        self.skip_value()?;
        Ok(start..self.at)
    }

    /// Passes one whole value, checking all of it.
    pub(crate) fn skip_value(&mut self) -> Result<(), Malformed> {
        if !matches!(self.peek(), Some(b'{' | b'[')) {
            return self.scalar();
        }
        let mut open = Nesting::default();
        loop {
            if self.begin_value(&mut open)? {
                continue;
            }
            if self.after_value(&mut open)? {
                return Ok(());
            }
        }
    }

    fn scalar(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.literal(),
        }
    }

    /// Passes a scalar, an empty container, or the opening of a container. True in the last
    /// case, where another value must follow.
    fn begin_value(&mut self, open: &mut Nesting) -> Result<bool, Malformed> {
        let (close, is_object) = match self.peek() {
            Some(b'{') => (b'}', true),
            Some(b'[') => (b']', false),
            _ => return self.scalar().map(|()| false),
        };
        self.at += 1;
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(false);
        }
        open.push(is_object).map_err(|what| self.expected(what))?;
        if is_object {
            self.key()?;
        }
        Ok(true)
    }

    /// Closes what ends after a value. True when the outermost value is complete, false when
    /// another value must follow.
    fn after_value(&mut self, open: &mut Nesting) -> Result<bool, Malformed> {
        while let Some(in_object) = open.innermost() {
            match (self.peek(), in_object) {
                (Some(b','), true) => {
                    self.at += 1;
                    self.key()?;
                    return Ok(false);
                }
                (Some(b','), false) => {
                    self.at += 1;
                    return Ok(false);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    open.pop();
                }
                (_, true) => return Err(self.expected("expected ',' or '}'")),
                (_, false) => return Err(self.expected("expected ',' or ']'")),
            }
        }
        Ok(true)
    }

    /// Passes a string literal; the cursor stands at its opening quote.
    pub(crate) fn string(&mut self) -> Result<StringSpan, Malformed> {
        let start = self.at + 1;
        let mut escaped = false;
        self.at = start;
        loop {
            self.at += plain_prefix(&self.text[self.at..]);
            match self.text.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(StringSpan { inner: start..self.at - 1, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.expected("control character in a string")),
                None => return Err(self.expected("unterminated string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Malformed> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match self.text.get(self.at + 2..self.at + 6) {
                Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => {
                    self.at += 6;
                    Ok(())
                }
                _ => Err(self.expected("invalid \\u escape")),
            },
            _ => Err(self.expected("invalid escape")),
        }
    }

    fn number(&mut self) -> Result<(), Malformed> {
        if self.text[self.at] == b'-' {
            self.at += 1;
            if self.text[self.at..].starts_with(b"Infinity") {
                self.at += 8;
                return Ok(());
            }
        }
        match self.text.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.expected("expected a digit")),
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        self.digits();
        if self.at == start { Err(self.expected("expected a digit")) } else { Ok(()) }
    }

    fn literal(&mut self) -> Result<(), Malformed> {
        let rest = &self.text[self.at..];
        for word in ["true", "false", "null", "NaN", "Infinity"] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(());
            }
        }
        Err(self.expected("expected a value"))
    }

    /// Refuses anything but white space up to the end.
    pub(crate) fn end(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("data after the end of the object")),
        }
    }

    fn expected(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }
}

/// How many leading bytes stand for themselves in a string: neither quote, backslash nor
/// control character. Eight bytes at a time, as prompts are long.
fn plain_prefix(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = text[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*eight);
        let special = below_space(word) | equal_to(word, b'"') | equal_to(word, b'\\');
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    at + text[at..].iter().position(special).unwrap_or(text.len() - at)
}

/// One in every byte.
const ONES: u64 = u64::MAX / 255;
/// The highest bit of every byte.
const HIGHS: u64 = ONES << 7;

/// Marks the bytes below 0x20 with their highest bit. The lowest mark is exact; marks above it
/// may be false, as the subtraction borrows.
const fn below_space(word: u64) -> u64 {
    word.wrapping_sub(ONES * 0x20) & !word & HIGHS
}

/// Marks the bytes equal to `byte`, in the same way.
const fn equal_to(word: u64, byte: u8) -> u64 {
    let zero_where_equal = word ^ (ONES * byte as u64);
    zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & HIGHS
}

/// The open containers of a value: one bit each, set for objects.
struct Nesting {
    objects: [u64; MAX_DEPTH / 64],
    depth: usize,
}

impl Default for Nesting {
    fn default() -> Self {
        Self { objects: [0; MAX_DEPTH / 64], depth: 0 }
    }
}

impl Nesting {
    fn push(&mut self, object: bool) -> Result<(), &'static str> {
        if self.depth == MAX_DEPTH {
            return Err("nested too deeply");
        }
        let (word, bit) = (self.depth / 64, self.depth % 64);
        self.objects[word] = self.objects[word] & !(1 << bit) | u64::from(object) << bit;
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) {
        self.depth -= 1;
    }

    fn innermost(&self) -> Option<bool> {
        let top = self.depth.checked_sub(1)?;
        Some(self.objects[top / 64] >> (top % 64) & 1 == 1)
    }
}

/// Values in a JSON text, containers and keys included, where there are at most `most`.
pub(crate) fn count_values(text: &str, most: usize) -> Option<usize> {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b',' | b':' | b'[' | b'{') => {
                values += 1;
                if values > most {
                    return None;
                }
            }
            _ => {}
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests;
