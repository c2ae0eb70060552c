//! What was fed and not yet passed, searched and passed over in time linear in its bytes.

use memchr::memmem::Finder;

/// Bytes with a place in them.
#[derive(Debug, Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    /// Where what is not yet passed begins.
    at: usize,
    /// Bytes behind that place in which what is looked for does not begin.
    searched: usize,
    /// Bytes passed so far.
    passed: usize,
    /// Bytes copied, moved and looked at so far.
    #[cfg(test)]
    pub(super) work: usize,
}

impl Window {
    /// A window onto a body's first bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), ..Self::default() }
    }

    /// Adds what follows.
    pub(super) fn add(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        #[cfg(test)]
        {
            self.work += piece.len();
        }
    }

    /// Frees what was passed once it is as much as what is left, so that passing a byte moves one
    /// at most.
    pub(super) fn settle(&mut self) {
        let left = self.rest().len();
        if self.at >= left {
            self.bytes.drain(..std::mem::take(&mut self.at));
            #[cfg(test)]
            {
                self.work += left;
            }
        }
    }

    /// What is not yet passed.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Bytes passed so far.
    pub(super) fn passed(&self) -> usize {
        self.passed
    }

    pub(super) fn pass(&mut self, count: usize) {
        self.at += count;
        self.passed += count;
        self.searched = 0;
    }

    /// Passes all bytes at the front that are such.
    pub(super) fn pass_while(&mut self, such: impl Fn(u8) -> bool) {
        let rest = self.rest();
        let count = rest.iter().position(|&byte| !such(byte)).unwrap_or(rest.len());
        self.pass(count);
        #[cfg(test)]
        {
            self.work += count;
        }
    }

    /// Where something stands in the rest. What was searched for it before is not searched again.
    pub(super) fn find(&mut self, what: &Finder<'_>) -> Option<usize> {
        let (from, rest) = (self.searched, self.rest());
        let found = what.find(&rest[from..]).map(|at| from + at);
        #[cfg(test)]
        let looked_at = found.map_or(rest.len(), |at| at + what.needle().len()) - from;
        if found.is_none() {
            // The beginning of it may be there already.
            self.searched = (rest.len() + 1).saturating_sub(what.needle().len()).max(from);
        }
        #[cfg(test)]
        {
            self.work += looked_at;
        }
        found
    }

    /// Bytes that are held, passed or not.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes.len()
    }
}
