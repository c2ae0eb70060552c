//! The usage of an answer that is not streamed, read in passing.

use bytes::Bytes;
use domain::Usage;
use openai_api::{Grammar, usage_of_response};

/// Larger answers (long lists of embeddings or log probabilities) are not read.
const MAX_BYTES: usize = 1024 * 1024;

/// Keeps the pieces of a small answer until its end. They are shared, not copied.
pub(super) struct UsageTap {
    grammar: Grammar,
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl UsageTap {
    pub(super) fn new(grammar: Grammar) -> Self {
        Self { grammar, pieces: Vec::new(), bytes: 0 }
    }

    /// How the answer is written.
    pub(super) fn grammar(&self) -> Grammar {
        self.grammar
    }

    pub(super) fn observe(&mut self, piece: &Bytes) {
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes <= MAX_BYTES {
            self.pieces.push(piece.clone());
        } else {
            self.pieces = Vec::new();
        }
    }

    /// The usage and the answer, once all of it was observed.
    pub(super) fn end(&mut self) -> (Option<Usage>, Option<Bytes>) {
        let whole = match std::mem::take(&mut self.pieces).as_slice() {
            [] => return (None, None),
            [whole] => whole.clone(),
            pieces => Bytes::from(pieces.concat()),
        };
        (usage_of_response(&whole), Some(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_over_pieces() {
        let mut tap = UsageTap::new(Grammar::Choices);
        for piece in [r#"{"choices":[],"usage":{"prompt_to"#, r#"kens":7,"completion_tokens":3}}"#]
        {
            tap.observe(&Bytes::from_static(piece.as_bytes()));
        }
        let usage = tap.end().0.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (7, 3));
    }

    #[test]
    fn a_large_answer_is_not_kept() {
        let mut tap = UsageTap::new(Grammar::Choices);
        for _ in 0..3 {
            tap.observe(&Bytes::from(vec![b' '; MAX_BYTES / 2]));
        }
        assert!(tap.pieces.is_empty());
        assert_eq!(tap.end(), (None, None));
    }
}
