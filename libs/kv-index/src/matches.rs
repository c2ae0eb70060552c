//! The reusable result buffer of a match.

use crate::types::{Matched, Slot};

/// The ranks that hold a prefix, ordered by slot. Keep one and pass it to every match: after
/// the first few calls a match allocates nothing.
#[derive(Default, Debug)]
pub struct Matches {
    pub(crate) found: Vec<Matched>,
}

impl Matches {
    /// The ranks with at least one matched block.
    pub fn iter(&self) -> std::slice::Iter<'_, Matched> {
        self.found.iter()
    }

    /// The result for one rank; `None` if it holds nothing of the prefix.
    pub fn get(&self, slot: Slot) -> Option<&Matched> {
        let at = self.found.binary_search_by_key(&slot.index, |m| m.slot.index).ok()?;
        self.found.get(at).filter(|m| m.slot == slot)
    }

    /// Forgets the results, keeps the memory.
    pub fn clear(&mut self) {
        self.found.clear();
    }
}

impl<'a> IntoIterator for &'a Matches {
    type Item = &'a Matched;
    type IntoIter = std::slice::Iter<'a, Matched>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
