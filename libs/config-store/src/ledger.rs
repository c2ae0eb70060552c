//! Which changes are allowed: pure, and the same for every adapter.
//!
//! The ledger knows of every key its revision and size, not its content. A change is *admitted*
//! against the ledger and the changes admitted before it in the same group; once the group is
//! durable, it is *recorded*.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::entry::MAX_AUTHOR_BYTES;
use crate::{Change, Entry, Key, Precondition, Revision, StoreError};

/// Bounds of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one document. 256 KiB: the largest document has a few hundred lines.
    pub document_bytes: usize,
    /// Bytes of all documents and their keys. 256 MiB: a million API keys.
    pub total_bytes: u64,
    /// Deletions that are remembered for watches that go on. Only a watcher that missed more
    /// has to begin again.
    pub tombstones: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { document_bytes: 256 << 10, total_bytes: 256 << 20, tombstones: 4096 }
    }
}

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyState {
    revision: Revision,
    created: Revision,
    /// What it takes of the total; `None` when it is deleted.
    bytes: Option<u64>,
}

impl KeyState {
    fn of(entry: &Entry) -> Self {
        let bytes = entry.document.as_ref().map(|document| cost(&entry.key, document.bytes.len()));
        Self { revision: entry.revision, created: entry.created, bytes }
    }
}

fn cost(key: &Key, document: usize) -> u64 {
    (key.as_str().len() + document) as u64
}

/// Every key's place, the newest revision, and the deletions that are remembered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    limits: Limits,
    keys: HashMap<Key, KeyState>,
    tombstones: BTreeMap<Revision, Key>,
    revision: Revision,
    floor: Revision,
    total_bytes: u64,
}

/// A deletion that is no longer remembered. The key may have been made again since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub(crate) key: Key,
    pub(crate) revision: Revision,
}

/// Changes that were admitted and are not yet durable.
#[derive(Debug, Default)]
pub(crate) struct Group {
    entries: Vec<Entry>,
    newest: HashMap<Key, usize>,
    /// Change of the total.
    bytes: i64,
}

impl Group {
    /// The changes by revision.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Ledger {
    /// The ledger of a store at `revision` that has forgotten deletions up to `floor`; its keys
    /// are still to be recorded.
    pub(crate) fn new(limits: Limits, revision: Revision, floor: Revision) -> Self {
        Self {
            limits,
            keys: HashMap::new(),
            tombstones: BTreeMap::new(),
            revision,
            floor,
            total_bytes: 0,
        }
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// The oldest revision that a watch can go on after.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// Bytes of all keys and documents.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Checks a change and adds it to the group.
    pub(crate) fn admit(&self, group: &mut Group, change: Change) -> Result<(), StoreError> {
        self.check_form(&change)?;
        let present = match group.newest.get(&change.key) {
            Some(&at) => Some(KeyState::of(&group.entries[at])),
            None => self.keys.get(&change.key).copied(),
        };
        let live = present.filter(|state| state.bytes.is_some());
        let fits = match change.expected {
            Precondition::Any => change.document.is_some() || live.is_some(),
            Precondition::Absent => change.document.is_some() && live.is_none(),
            Precondition::At(revision) => live.is_some_and(|s| s.revision == revision),
        };
        if !fits {
            let Change { key, expected, .. } = change;
            return Err(StoreError::Conflict { key, expected, actual: live.map(|s| s.revision) });
        }
        let revision = Revision(self.revision.0 + group.entries.len() as u64 + 1);
        let entry = Entry {
            revision,
            created: live.map_or(revision, |s| s.created),
            key: change.key,
            at: change.at,
            author: change.author,
            document: change.document,
            extra: Bytes::new(),
        };
        let before = live.and_then(|s| s.bytes).unwrap_or(0);
        let after = KeyState::of(&entry).bytes.unwrap_or(0);
        let bytes = group.bytes + after.cast_signed() - before.cast_signed();
        // What does not grow is always allowed: it is how room is made.
        if after > before && self.total_bytes.saturating_add_signed(bytes) > self.limits.total_bytes
        {
            return Err(StoreError::Full { limit: self.limits.total_bytes });
        }
        group.bytes = bytes;
        group.newest.insert(entry.key.clone(), group.entries.len());
        group.entries.push(entry);
        Ok(())
    }

    fn check_form(&self, change: &Change) -> Result<(), StoreError> {
        let limit = self.limits.document_bytes;
        if change.document.as_ref().is_some_and(|document| document.bytes.len() > limit) {
            let reason = format!("at most {limit} bytes are allowed");
            return Err(StoreError::Invalid { what: "document", reason });
        }
        if change.author.len() > MAX_AUTHOR_BYTES {
            let reason = format!("at most {MAX_AUTHOR_BYTES} bytes are allowed");
            return Err(StoreError::Invalid { what: "author", reason });
        }
        Ok(())
    }

    /// Enters a durable state. Returns the deletions that are forgotten from now on.
    pub(crate) fn record(&mut self, entry: &Entry) -> Vec<Forgotten> {
        self.revision = self.revision.max(entry.revision);
        let state = KeyState::of(entry);
        self.total_bytes += state.bytes.unwrap_or(0);
        if let Some(before) = self.keys.insert(entry.key.clone(), state) {
            self.total_bytes -= before.bytes.unwrap_or(0);
            self.tombstones.remove(&before.revision);
        }
        if entry.document.is_none() {
            self.tombstones.insert(entry.revision, entry.key.clone());
        }
        let mut forgotten = Vec::new();
        while self.tombstones.len() > self.limits.tombstones {
            let Some((revision, key)) = self.tombstones.pop_first() else { break };
            self.keys.remove(&key);
            self.floor = revision;
            forgotten.push(Forgotten { key, revision });
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use crate::{Document, SchemaVersion, Timestamp};

    use super::*;

    fn change(name: &str, expected: Precondition, document: Option<&'static [u8]>) -> Change {
        let schema = SchemaVersion { major: 1, minor: 0 };
        Change {
            key: Key::new("a", name).unwrap(),
            expected,
            document: document.map(|b| Document { schema, bytes: Bytes::from_static(b) }),
            author: "test".into(),
            at: Timestamp(0),
        }
    }

    fn ledger(limits: Limits) -> Ledger {
        Ledger::new(limits, Revision::ZERO, Revision::ZERO)
    }

    #[test]
    fn changes_of_one_group_see_those_before_them() {
        let mut ledger = ledger(Limits::default());
        let mut group = Group::default();
        ledger.admit(&mut group, change("k", Precondition::Absent, Some(b"1"))).unwrap();
        let again = ledger.admit(&mut group, change("k", Precondition::Absent, Some(b"2")));
        assert!(matches!(again, Err(StoreError::Conflict { actual: Some(Revision(1)), .. })));
        ledger.admit(&mut group, change("k", Precondition::At(Revision(1)), None)).unwrap();
        ledger.admit(&mut group, change("k", Precondition::Absent, Some(b"3"))).unwrap();
        let created: Vec<_> = group.entries().iter().map(|e| e.created.0).collect();
        assert_eq!(created, [1, 1, 3]);
        for entry in group.entries() {
            assert!(ledger.record(entry).is_empty());
        }
        assert_eq!((ledger.revision(), ledger.total_bytes()), (Revision(3), 4));
    }

    #[test]
    fn a_group_that_is_dropped_leaves_nothing() {
        let ledger = ledger(Limits::default());
        ledger.admit(&mut Group::default(), change("k", Precondition::Any, Some(b"1"))).unwrap();
        assert_eq!(ledger.revision(), Revision::ZERO);
        let mut group = Group::default();
        ledger.admit(&mut group, change("k", Precondition::Absent, Some(b"1"))).unwrap();
        assert_eq!(group.entries()[0].revision, Revision(1));
    }

    #[test]
    fn a_full_store_takes_only_what_does_not_grow_it() {
        let mut ledger = ledger(Limits { total_bytes: 8, ..Limits::default() });
        let mut group = Group::default();
        ledger.admit(&mut group, change("k", Precondition::Any, Some(b"12345"))).unwrap();
        let more = ledger.admit(&mut group, change("l", Precondition::Any, Some(b"")));
        assert!(matches!(more, Err(StoreError::Full { limit: 8 })));
        ledger.admit(&mut group, change("k", Precondition::Any, Some(b"54321"))).unwrap();
        ledger.admit(&mut group, change("k", Precondition::Any, None)).unwrap();
        ledger.admit(&mut group, change("l", Precondition::Any, Some(b"12345"))).unwrap();
        group.entries().iter().for_each(|entry| drop(ledger.record(entry)));
        assert_eq!(ledger.total_bytes(), 8);
    }

    #[test]
    fn the_oldest_deletions_are_forgotten_and_raise_the_floor() {
        let mut ledger = ledger(Limits { tombstones: 1, ..Limits::default() });
        let mut group = Group::default();
        for name in ["k", "l"] {
            ledger.admit(&mut group, change(name, Precondition::Any, Some(b"1"))).unwrap();
            ledger.admit(&mut group, change(name, Precondition::Any, None)).unwrap();
        }
        let forgotten: Vec<_> = group.entries().iter().flat_map(|e| ledger.record(e)).collect();
        let key = Key::new("a", "k").unwrap();
        assert_eq!(forgotten, [Forgotten { key, revision: Revision(2) }]);
        assert_eq!(ledger.floor(), Revision(2));
    }
}
