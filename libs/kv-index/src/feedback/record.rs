//! How far a rank's beliefs can be trusted.

/// Reports in a row, with no silence between, after which a rank counts as one that reports.
const REPORTS: u32 = 4;

/// Unreported answers in a row after which it no longer does.
const SILENCES: u32 = 24;

/// Requests in a row that found nothing of what was believed, after which the whole cache is taken
/// to be empty. One alone says little: requests for the log-probabilities of a prompt do not look
/// into the cache.
const EMPTY: u32 = 8;

/// Requests over which the confirmed share of beliefs is averaged.
const SHARE_MEMORY: f64 = 32.0;

/// Of beliefs, in requests' worth, that an average must rest on.
const SHARE_SAMPLES: u32 = 32;

/// Confirmed share below which beliefs are no longer taken at their word, and above which they are
/// again.
const DISTRUST_BELOW: f64 = 0.5;
const TRUST_ABOVE: f64 = 0.75;

/// What reports have shown of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MirrorTrust {
    /// The engine does not tell what it found.
    #[default]
    Unreported,
    /// It tells, and the mirror is corrected by it.
    Confirmed,
    /// It tells, and in spite of all correction the mirror is wrong: beliefs count for as much as
    /// was confirmed lately.
    Distrusted,
}

/// The record of one rank.
#[derive(Default)]
pub(super) struct Record {
    mirror_trust: MirrorTrust,
    reports: u32,
    silences: u32,
    empty: u32,
    believed: f64,
    confirmed: f64,
    samples: u32,
    gap: f64,
}

impl Record {
    pub(super) fn mirror_trust(&self) -> MirrorTrust {
        self.mirror_trust
    }

    /// The part of a belief that is to be counted on, 0 to 1.
    pub(super) fn trust(&self) -> f64 {
        match self.mirror_trust {
            MirrorTrust::Distrusted => self.share(),
            MirrorTrust::Unreported | MirrorTrust::Confirmed => 1.0,
        }
    }

    fn share(&self) -> f64 {
        if self.believed > 0.0 { self.confirmed / self.believed } else { 1.0 }
    }

    /// Blocks believed less blocks found, as a share of the prompt's, averaged.
    pub(super) fn gap(&self) -> f64 {
        self.gap
    }

    /// A report came: so many blocks of a prompt were believed to be there, so many were.
    pub(super) fn told(&mut self, believed: u32, found: u32, prompt: u32) {
        let gap = (f64::from(believed) - f64::from(found)) / f64::from(prompt.max(1));
        self.gap += (gap - self.gap) / SHARE_MEMORY;
        self.silences = 0;
        self.reports = (self.reports + 1).min(REPORTS);
        self.note_empty(believed, found);
        if believed > 0 {
            let keep = 1.0 - 1.0 / SHARE_MEMORY;
            self.believed = self.believed * keep + f64::from(believed);
            self.confirmed = self.confirmed * keep + f64::from(found.min(believed));
            self.samples = (self.samples + 1).min(SHARE_SAMPLES);
        }
        self.mirror_trust = match self.mirror_trust {
            MirrorTrust::Unreported if self.reports < REPORTS => MirrorTrust::Unreported,
            MirrorTrust::Distrusted if self.share() <= TRUST_ABOVE => MirrorTrust::Distrusted,
            _ if self.samples == SHARE_SAMPLES && self.share() < DISTRUST_BELOW => {
                MirrorTrust::Distrusted
            }
            _ => MirrorTrust::Confirmed,
        };
    }

    /// An answer came without a report. Some engines leave out a zero, so it counts only where
    /// something had been believed. Returns whether the rank no longer counts as one that reports.
    pub(super) fn kept_silent(&mut self, believed: u32) -> bool {
        if believed == 0 {
            return false;
        }
        if self.mirror_trust == MirrorTrust::Unreported {
            self.reports = 0;
            return true;
        }
        self.note_empty(believed, 0);
        self.silences += 1;
        let silent = self.silences >= SILENCES;
        if silent {
            *self = Self::default();
        }
        silent
    }

    fn note_empty(&mut self, believed: u32, found: u32) {
        if found > 0 {
            self.empty = 0;
        } else if believed > 0 {
            self.empty += 1;
        }
    }

    /// Whether the cache is taken to have been emptied; says so once.
    pub(super) fn take_emptied(&mut self) -> bool {
        let emptied = self.empty >= EMPTY;
        if emptied {
            self.empty = 0;
        }
        emptied
    }
}
