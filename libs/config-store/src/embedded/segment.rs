//! Reading one segment: a snapshot, then the changes since.

use std::collections::HashMap;

use bytes::Bytes;

use super::record::{self, FIRST, Framed, MAGIC, Place, Record, SegmentHead, Unreadable};
use crate::ledger::{Ledger, Limits};
use crate::{Entry, Key, Revision};

/// What a segment holds.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) head: SegmentHead,
    /// Where the next record goes.
    pub(crate) end: u64,
    /// Where the snapshot ends.
    pub(crate) snapshot_end: u64,
    pub(crate) ledger: Ledger,
    /// The newest state of each key, deletions that are remembered included.
    pub(crate) states: HashMap<Key, Entry>,
    /// The base of the next segment, if there is one.
    pub(crate) sealed: Option<Revision>,
    /// Why the bytes from `end` on were not read, if there are any.
    pub(crate) torn: Option<&'static str>,
}

/// Why a segment cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SegmentFault {
    /// Bytes that had been synced are not what they were.
    Damaged { offset: u64, reason: String, in_changes: bool },
    /// A later version wrote it.
    Newer(String),
}

/// Reads a segment and shows every change of it, oldest first. What a crash tore off at its end
/// is left out; damage anywhere else is a fault.
pub(crate) fn replay(
    bytes: &Bytes,
    limits: Limits,
    mut on_change: impl FnMut(&Entry),
) -> Result<Replay, SegmentFault> {
    let mut reader = Reader { bytes, place: FIRST, offset: 0 };
    let head = reader.head()?;
    let mut replay = Replay {
        end: 0,
        snapshot_end: 0,
        ledger: Ledger::new(limits, head.base, head.floor),
        states: HashMap::with_capacity(head.states as usize),
        sealed: None,
        torn: None,
        head,
    };
    for _ in 0..replay.head.states {
        let entry = reader.state()?;
        replay.take(entry);
    }
    replay.snapshot_end = reader.offset;
    while !reader.is_at_end() && replay.torn.is_none() {
        match reader.next() {
            Ok(record) => replay.follow(record, &reader, &mut on_change)?,
            Err(Unreadable::Newer(found)) => return Err(SegmentFault::Newer(found)),
            Err(Unreadable::Broken(reason)) => match reader.synced_after() {
                Some(later) => return Err(reader.damaged_before(later, reason)),
                None => replay.torn = Some(reason),
            },
        }
    }
    replay.end = reader.offset;
    Ok(replay)
}

impl Replay {
    fn take(&mut self, entry: Entry) {
        for forgotten in self.ledger.record(&entry) {
            self.states.remove(&forgotten.key);
        }
        self.states.insert(entry.key.clone(), entry);
    }

    fn follow(
        &mut self,
        framed: Framed,
        reader: &Reader<'_>,
        on_change: &mut impl FnMut(&Entry),
    ) -> Result<(), SegmentFault> {
        let offset = reader.offset - framed.length as u64;
        let damaged = |reason: String| SegmentFault::Damaged { offset, reason, in_changes: true };
        if self.sealed.is_some() {
            return Err(damaged("a record follows the last one".to_owned()));
        }
        match framed.record {
            Record::Entry(entry) if entry.revision == self.ledger.revision().next() => {
                on_change(&entry);
                self.take(entry);
            }
            Record::Entry(entry) => {
                let (found, before) = (entry.revision, self.ledger.revision());
                return Err(damaged(format!("revision {found} follows revision {before}")));
            }
            Record::Sealed(next) => self.sealed = Some(next),
            Record::Segment(_) => return Err(damaged("a segment begins there".to_owned())),
        }
        Ok(())
    }
}

/// Goes through the records of one segment.
struct Reader<'a> {
    bytes: &'a Bytes,
    place: Place,
    offset: u64,
}

impl Reader<'_> {
    fn is_at_end(&self) -> bool {
        self.offset >= self.bytes.len() as u64
    }

    fn at(&self, offset: u64) -> Bytes {
        self.bytes.slice(usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len())..)
    }

    fn next(&mut self) -> Result<Framed, Unreadable> {
        let framed = record::read(&self.at(self.offset), self.place.at(self.offset))?;
        if framed.durable > self.offset {
            return Err(Unreadable::Broken("the record claims more than stands before it"));
        }
        self.offset += framed.length as u64;
        Ok(framed)
    }

    /// The next record of the part that was synced before the segment got its name.
    fn synced(&mut self) -> Result<Record, SegmentFault> {
        let offset = self.offset;
        self.next().map(|framed| framed.record).map_err(|unreadable| match unreadable {
            Unreadable::Newer(found) => SegmentFault::Newer(found),
            Unreadable::Broken(reason) => {
                let reason = format!("{reason}, in the states that the segment begins with");
                SegmentFault::Damaged { offset, reason, in_changes: false }
            }
        })
    }

    fn head(&mut self) -> Result<SegmentHead, SegmentFault> {
        match self.synced()? {
            Record::Segment(head) => {
                self.place = Place::of_segment(head.id, head.base);
                Ok(head)
            }
            _ => Err(misplaced(0, "another record stands in place of the first")),
        }
    }

    fn state(&mut self) -> Result<Entry, SegmentFault> {
        let offset = self.offset;
        match self.synced()? {
            Record::Entry(entry) => Ok(entry),
            _ => Err(misplaced(offset, "another record stands in place of a state")),
        }
    }

    /// The offset of a later record that was written when the bytes here had been synced.
    fn synced_after(&self) -> Option<u64> {
        let mut from = self.offset + 1;
        loop {
            let rest = self.at(from);
            from += rest.windows(MAGIC.len()).position(|window| window == MAGIC)? as u64;
            let candidate = self.at(from);
            let synced = |durable| durable > self.offset && durable <= from;
            if record::durable_of(&candidate).is_some_and(synced)
                && !matches!(
                    record::read(&candidate, self.place.at(from)),
                    Err(Unreadable::Broken(_))
                )
            {
                return Some(from);
            }
            from += 1;
        }
    }

    fn damaged_before(&self, later: u64, reason: &str) -> SegmentFault {
        let reason = format!("{reason}, and a whole record follows at byte {later}");
        SegmentFault::Damaged { offset: self.offset, reason, in_changes: true }
    }
}

fn misplaced(offset: u64, reason: &str) -> SegmentFault {
    SegmentFault::Damaged { offset, reason: reason.to_owned(), in_changes: false }
}
