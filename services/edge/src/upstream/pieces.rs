//! A body that is all here, in pieces: where a field was edited, what stands around it is the
//! client's own bytes, and no copy of them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

/// Bytes in pieces, sent one after the other. A clone has the same bytes, not a copy of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    /// None of them is empty.
    all: Arc<[Bytes]>,
    /// How many were sent.
    sent: usize,
}

impl Pieces {
    /// The next one. With the last, the body is let go.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let next = self.all.get(self.sent).cloned()?;
        self.sent += 1;
        if self.sent == self.all.len() {
            *self = Self::default();
        }
        Some(next)
    }

    /// Bytes that were not sent.
    pub(crate) fn len(&self) -> u64 {
        self.all[self.sent..].iter().map(|piece| piece.len() as u64).sum()
    }

    /// Puts a text in the place of a range of what was not sent.
    pub(crate) fn replace(&mut self, at: Range<usize>, with: &str) {
        let mut pieces = self.part(0..at.start);
        pieces.push(Bytes::copy_from_slice(with.as_bytes()));
        pieces.extend(self.part(at.end..usize::MAX));
        *self = pieces.into();
    }

    fn part(&self, range: Range<usize>) -> Vec<Bytes> {
        let mut from = 0;
        let within = |piece: &Bytes| {
            let clamped = |at: usize| at.saturating_sub(from).min(piece.len());
            let part = piece.slice(clamped(range.start)..clamped(range.end));
            from += piece.len();
            part
        };
        self.all[self.sent..].iter().map(within).collect()
    }
}

impl From<Vec<Bytes>> for Pieces {
    fn from(mut pieces: Vec<Bytes>) -> Self {
        pieces.retain(|piece| !piece.is_empty());
        Self { all: pieces.into(), sent: 0 }
    }
}

impl From<Bytes> for Pieces {
    fn from(whole: Bytes) -> Self {
        if whole.is_empty() { Self::default() } else { Self { all: Arc::new([whole]), sent: 0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(mut pieces: Pieces) -> String {
        let mut text = String::new();
        while let Some(piece) = pieces.next() {
            assert!(!piece.is_empty());
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        assert_eq!(pieces.len(), 0);
        text
    }

    #[test]
    fn a_range_is_replaced_wherever_the_pieces_end() {
        let whole = "0123456789";
        for cuts in [vec![], vec![5], vec![0, 3, 3, 7], vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10]] {
            let ends = cuts.iter().copied().chain([whole.len()]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let cut = || starts.clone().zip(ends.clone()).map(|(a, b)| Bytes::from(&whole[a..b]));
            for (start, end) in [(0, 0), (3, 7), (4, 5), (0, 10), (10, 10), (2, 10)] {
                let mut pieces = Pieces::from(cut().collect::<Vec<_>>());
                assert_eq!(text(pieces.clone()), whole);
                pieces.replace(start..end, "new");
                let expected = format!("{}new{}", &whole[..start], &whole[end..]);
                assert_eq!(pieces.len(), expected.len() as u64);
                assert_eq!(text(pieces), expected);
            }
        }
        assert_eq!(text(Pieces::from(Bytes::new())), "");
    }

    #[test]
    fn a_body_is_let_go_with_its_last_piece() {
        struct Owner(Arc<[u8; 6]>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &*self.0
            }
        }
        let held = Arc::new(*b"abcdef");
        let mut pieces = Pieces::from(Bytes::from_owner(Owner(Arc::clone(&held))));
        pieces.replace(2..3, "x");
        for left in [4, 3, 0] {
            let piece = pieces.next().unwrap();
            assert_eq!(pieces.len(), left);
            drop(piece);
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
