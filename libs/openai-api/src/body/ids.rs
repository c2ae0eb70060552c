//! Token ids of a prompt, read as they stand. A list of them takes up to twice the memory of its
//! text, so none is made.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{SeqAccess, Visitor};
use serde_json::Deserializer;

/// A list that is meant as token ids.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenIds<'a>(&'a str);

impl<'a> TokenIds<'a> {
    /// The list whose JSON text this is.
    pub fn new(raw: &'a str) -> Self {
        Self(raw)
    }

    /// Tells `each` of the ids, in order, and returns how many there are. `None` if the text is not
    /// a list of ids and nothing else; some of them may have been told by then.
    pub fn read(self, each: impl FnMut(u32)) -> Option<usize> {
        let mut json = Deserializer::from_str(self.0);
        let count = json.deserialize_seq(Each(each)).ok()?;
        json.end().ok().map(|()| count)
    }

    /// No fewer ids than there are.
    pub fn at_most(self) -> usize {
        // A digit and a comma each, within brackets.
        self.0.len() / 2
    }
}

impl fmt::Debug for TokenIds<'_> {
    /// Tokens of prompts are shown to nobody.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIds").finish_non_exhaustive()
    }
}

struct Each<F>(F);

impl<'de, F: FnMut(u32)> Visitor<'de> for Each<F> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of token ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut ids: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some(id) = ids.next_element()? {
            (self.0)(id);
            count += 1;
        }
        Ok(count)
    }
}
