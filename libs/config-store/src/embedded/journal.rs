//! The journal: what makes a change durable, and the log of who made it.
//!
//! It is a row of segments, `journal-<base>.log`. Each begins with all states as of its base
//! revision and goes on with the changes since, so the newest alone is the whole store, and
//! those before it are only the audit log. A segment is written under another name, synced, and
//! renamed; then the one before is sealed. Changes are appended in groups, and a group is
//! written only after the one before it was synced: so only the last group can be torn.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::files::{UNFINISHED, base_of, fault, io_fault, name_of, save_torn, write_segment};
use super::record::{self, FORMAT, Place, Record, SegmentHead};
use super::segment::{Replay, SegmentFault, replay};
use crate::{Entry, History, Limits, Revision, StoreError, StoreId, Timestamp};

/// A segment is followed by another when it has this many times the size of its snapshot, so
/// that writing snapshots costs at most a third on top of writing changes.
const GROWTH: u64 = 4;

/// Sizes of a journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    /// Smaller segments are not followed by another.
    pub(crate) segment_bytes: u64,
    /// Older segments that are kept.
    pub(crate) archives: usize,
}

/// The newest segment, open to be appended to, and the names of those before.
pub(crate) struct Journal {
    disk: Box<dyn Disk>,
    rules: Rules,
    id: StoreId,
    base: Revision,
    /// That of the last change.
    revision: Revision,
    place: Place,
    file: Box<dyn DiskFile>,
    /// Bytes of the newest segment; all of them are synced.
    length: u64,
    /// The length at which a new segment is begun.
    compact_at: u64,
    /// Bases of the older segments, oldest first.
    archives: VecDeque<Revision>,
    /// Why nothing may be written any more.
    broken: Option<String>,
}

/// Bytes at the end of the journal that a crash left half written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    pub(crate) file: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) reason: &'static str,
}

/// A journal as it was found.
pub(crate) struct Opened {
    pub(crate) journal: Journal,
    pub(crate) replay: Replay,
    pub(crate) torn: Option<Torn>,
}

/// Why a group was not written.
#[derive(Debug)]
pub(crate) enum WriteFault {
    /// The journal is as before.
    NotWritten(io::Error),
    /// It is unknown what the disk holds.
    Broken(String),
}

impl Journal {
    /// Opens the journal of a folder, or begins one with the given id. Everything that is read
    /// here is synced before this returns: a process that was killed may have left it in memory.
    pub(crate) fn open(
        disk: Box<dyn Disk>,
        rules: Rules,
        fresh: StoreId,
        now: Timestamp,
    ) -> Result<Opened, StoreError> {
        let io = |name: &str, action| io_fault(&*disk, name, action);
        let names = disk.list().map_err(io("", "listed"))?;
        if names.iter().any(|name| name == UNFINISHED) {
            disk.remove(UNFINISHED).map_err(io(UNFINISHED, "removed"))?;
        }
        let mut bases: VecDeque<_> = names.iter().filter_map(|name| base_of(name)).collect();
        bases.make_contiguous().sort_unstable();
        let base = bases.pop_back().unwrap_or_else(|| {
            tracing::info!(store.path = %disk.path("").display(), "a new journal is begun");
            Revision::ZERO
        });
        if !names.iter().any(|name| *name == name_of(base)) {
            let head = head(fresh, base, Revision::ZERO, 0, now);
            write_segment(&*disk, head, &[]).map_err(|fault| match fault {
                WriteFault::NotWritten(e) => io(UNFINISHED, "written")(e),
                WriteFault::Broken(reason) => StoreError::Broken(reason),
            })?;
        }
        Self::resume(disk, rules, base, bases)
    }

    fn resume(
        disk: Box<dyn Disk>,
        rules: Rules,
        base: Revision,
        archives: VecDeque<Revision>,
    ) -> Result<Opened, StoreError> {
        let name = name_of(base);
        let io = |action| io_fault(&*disk, &name, action);
        let bytes = Bytes::from(disk.read(&name).map_err(io("read"))?);
        let replay = replay(&bytes, rules.limits, |_| ()).map_err(|f| fault(&*disk, &name, f))?;
        check_is_newest(&*disk, &name, base, &replay)?;
        let mut file = disk.open(&name).map_err(io("opened"))?;
        let (end, length) = (replay.end, bytes.len() as u64);
        let torn =
            replay.torn.map(|reason| Torn { file: name.clone(), from: end, to: length, reason });
        if torn.is_some() {
            save_torn(&*disk, &bytes.slice(usize::try_from(end).unwrap_or(0)..));
            file.truncate(end).map_err(io("cut off"))?;
        }
        file.sync().map_err(io("synced"))?;
        disk.sync_names().map_err(io_fault(&*disk, "", "synced"))?;
        let journal = Self {
            id: replay.head.id,
            base,
            revision: replay.ledger.revision(),
            place: Place::of_segment(replay.head.id, base),
            file,
            length: end,
            compact_at: compact_at(&rules, replay.snapshot_end),
            archives,
            broken: None,
            disk,
            rules,
        };
        Ok(Opened { journal, replay, torn })
    }

    /// The store that this is the journal of.
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// Bytes of the newest segment.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether changes are taken.
    pub(crate) fn is_writable(&self) -> bool {
        self.broken.is_none()
    }

    /// Older segments that are kept.
    #[cfg(test)]
    pub(crate) fn archived(&self) -> usize {
        self.archives.len()
    }

    /// Makes a group of changes durable.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), WriteFault> {
        self.append_records(entries.iter().cloned().map(Record::Entry))?;
        self.revision = entries.last().map_or(self.revision, |entry| entry.revision);
        Ok(())
    }

    fn append_records(&mut self, records: impl Iterator<Item = Record>) -> Result<(), WriteFault> {
        if let Some(reason) = &self.broken {
            return Err(WriteFault::Broken(reason.clone()));
        }
        let mut bytes = Vec::new();
        for record in records {
            let offset = self.length + bytes.len() as u64;
            record::write(&mut bytes, self.place.at(offset), self.length, &record);
        }
        if let Err(error) = self.file.write_at(&bytes, self.length) {
            // What was written of it must not stand before the next group.
            return match self.file.truncate(self.length).and_then(|()| self.file.sync()) {
                Ok(()) => Err(WriteFault::NotWritten(error)),
                Err(after) => Err(self.break_off(format!("{error}; then: {after}"))),
            };
        }
        if let Err(error) = self.file.sync() {
            // The kernel may have dropped the pages and call the next sync a success.
            return Err(self.break_off(format!("the journal could not be synced: {error}")));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn break_off(&mut self, reason: String) -> WriteFault {
        self.broken = Some(reason.clone());
        WriteFault::Broken(reason)
    }

    /// Everything in the newest segment, read anew.
    pub(crate) fn replay(&self) -> Result<Replay, StoreError> {
        self.replay_segment(self.base, |_| ())
    }

    fn replay_segment(
        &self,
        base: Revision,
        on_change: impl FnMut(&Entry),
    ) -> Result<Replay, StoreError> {
        let name = name_of(base);
        let mut bytes =
            Bytes::from(self.disk.read(&name).map_err(io_fault(&*self.disk, &name, "read"))?);
        if base == self.base {
            // A group that could not be synced may stand behind.
            bytes.truncate(usize::try_from(self.length).unwrap_or(usize::MAX));
        }
        let damaged = |f| fault(&*self.disk, &name, f);
        let replay = replay(&bytes, self.rules.limits, on_change).map_err(damaged)?;
        match replay.torn {
            Some(reason) if base == self.base => Err(damaged(SegmentFault::Damaged {
                offset: replay.end,
                reason: reason.to_owned(),
                in_changes: true,
            })),
            _ => Ok(replay),
        }
    }

    /// Whether the newest segment has grown so that another should be begun.
    pub(crate) fn wants_compaction(&self) -> bool {
        self.broken.is_none() && self.length >= self.compact_at
    }

    /// Begins a new segment with the states of now. On an error before that segment has its
    /// name, the old one is gone on with and this is tried again later.
    pub(crate) fn compact(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.compact_at = self.length + self.rules.segment_bytes;
        let replay = self.replay()?;
        let (base, floor) = (replay.ledger.revision(), replay.ledger.floor());
        if base == self.base {
            return Ok(());
        }
        let mut states: Vec<_> = replay.states.into_values().collect();
        states.sort_unstable_by_key(|entry| entry.revision);
        let head = head(self.id, base, floor, states.len(), now);
        let (file, length) = match write_segment(&*self.disk, head, &states) {
            Ok(written) => written,
            Err(WriteFault::NotWritten(error)) => {
                return Err(io_fault(&*self.disk, UNFINISHED, "written")(error));
            }
            // The new segment may or may not be found after a crash: a change in either could
            // be overlooked.
            Err(WriteFault::Broken(reason)) => {
                self.break_off(reason.clone());
                return Err(StoreError::Broken(reason));
            }
        };
        if let Err(fault) = self.append_records(std::iter::once(Record::Sealed(base))) {
            // Only the check that no segment was lost misses its mark.
            tracing::warn!(error = ?fault, "the older segment of the journal was not sealed");
        }
        self.broken = None;
        self.archives.push_back(self.base);
        (self.base, self.file, self.length) = (base, file, length);
        self.place = Place::of_segment(self.id, base);
        self.compact_at = compact_at(&self.rules, length);
        self.drop_archives();
        Ok(())
    }

    fn drop_archives(&mut self) {
        while self.archives.len() > self.rules.archives {
            let Some(base) = self.archives.pop_front() else { break };
            if let Err(error) = self.disk.remove(&name_of(base)) {
                let file = self.disk.path(&name_of(base));
                tracing::warn!(store.file = %file.display(), %error, "not removed");
            }
        }
    }

    /// A page of the changes in all segments that are kept.
    pub(crate) fn history(&self, after: Revision, limit: usize) -> Result<History, StoreError> {
        let bases: Vec<_> = self.archives.iter().copied().chain([self.base]).collect();
        let first = bases.iter().rposition(|base| *base <= after).unwrap_or(0);
        let mut changes = Vec::new();
        for base in &bases[first..] {
            if changes.len() >= limit {
                break;
            }
            self.replay_segment(*base, |entry| {
                if entry.revision > after && changes.len() < limit {
                    changes.push(entry.clone());
                }
            })?;
        }
        let oldest = (self.revision > bases[0]).then(|| bases[0].next());
        Ok(History { changes, oldest })
    }
}

fn compact_at(rules: &Rules, snapshot: u64) -> u64 {
    rules.segment_bytes.max(snapshot.saturating_mul(GROWTH))
}

fn head(id: StoreId, base: Revision, floor: Revision, states: usize, at: Timestamp) -> SegmentHead {
    let states = u32::try_from(states).unwrap_or(u32::MAX);
    SegmentHead { format: FORMAT, id, base, floor, states, at }
}

fn check_is_newest(
    disk: &dyn Disk,
    name: &str,
    base: Revision,
    replay: &Replay,
) -> Result<(), StoreError> {
    let path = disk.path(name);
    if replay.head.base != base {
        return Err(StoreError::Damaged {
            path,
            offset: 0,
            reason: format!("it is the segment of revision {}", replay.head.base),
            advice: format!("Name it {} again", name_of(replay.head.base)),
        });
    }
    let Some(next) = replay.sealed else { return Ok(()) };
    let missing = disk.path(&name_of(next));
    Err(StoreError::Damaged {
        path,
        offset: replay.end,
        reason: format!("{} follows it and is missing", missing.display()),
        advice: "Restore that file, or the whole folder, from a backup".to_owned(),
    })
}
