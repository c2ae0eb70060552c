//! How many requests an engine runs at once, learned from its own counts.
//!
//! No engine tells its limit, and the one in its settings is not always what binds: blocks may run
//! out before. But while requests wait in reading after reading, those that run are as many as
//! there can be.

use domain::LoadSample;

/// Readings in a row with somebody waiting that show the limit. In fewer, requests may just have
/// come, or one long prompt may have held the step's tokens.
const READINGS: u32 = 3;

/// The estimate for one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ceiling {
    /// Readings in a row in which requests waited, and the most that ran in one of them.
    row: u32,
    most: u32,
    learned: Option<u32>,
}

impl Ceiling {
    /// Takes a reading.
    pub(super) fn observe(&mut self, sample: &LoadSample) {
        if self.learned.is_some_and(|learned| sample.running > learned) {
            self.learned = None;
        }
        if sample.waiting == 0 {
            (self.row, self.most) = (0, 0);
            return;
        }
        self.row = self.row.saturating_add(1);
        self.most = self.most.max(sample.running);
        if self.row >= READINGS && self.most > 0 {
            self.learned = Some(self.most);
        }
    }

    /// Requests that run at once at most; `None` while that is not known.
    pub(super) fn requests(&self) -> Option<u32> {
        self.learned
    }
}
