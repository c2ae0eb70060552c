//! A journal with its ledger, as the writer drives it, and what it should hold.

use std::collections::HashMap;

use bytes::Bytes;

use super::sim_disk::SimDisk;
use crate::embedded::journal::{Journal, Opened, Rules, Torn, WriteFault};
use crate::ledger::{Group, Ledger};
use crate::{
    Change, Document, Entry, Key, Limits, Precondition, Revision, SchemaVersion, StoreError,
    StoreId, Timestamp,
};

/// States by key: what a store is at some revision.
pub(super) type States = HashMap<Key, Entry>;

pub(super) const RULES: Rules = Rules {
    limits: Limits { document_bytes: 1 << 16, total_bytes: 1 << 20, tombstones: 2 },
    segment_bytes: 700,
    archives: 1,
};

pub(super) fn change(name: &str, document: Option<&str>) -> Change {
    let schema = SchemaVersion { major: 1, minor: 0 };
    Change {
        key: Key::new("a", name).unwrap(),
        expected: Precondition::Any,
        document: document
            .map(|text| Document { schema, bytes: Bytes::copy_from_slice(text.as_bytes()) }),
        author: "test".into(),
        at: Timestamp(1),
    }
}

/// What the writer thread holds, without the thread.
pub(super) struct Driver {
    pub(super) journal: Journal,
    pub(super) ledger: Ledger,
    pub(super) states: States,
    pub(super) torn: Option<Torn>,
}

impl Driver {
    pub(super) fn open(disk: &SimDisk) -> Result<Self, StoreError> {
        Self::open_with(disk, RULES)
    }

    pub(super) fn open_with(disk: &SimDisk, rules: Rules) -> Result<Self, StoreError> {
        let id = StoreId([7; 16]);
        let opened = Journal::open(Box::new(disk.clone()), rules, id, Timestamp(0))?;
        let Opened { journal, replay, torn } = opened;
        Ok(Self { journal, ledger: replay.ledger, states: replay.states, torn })
    }

    /// The changes that can be made of these, as a group that is not written.
    pub(super) fn plan(&self, changes: &[(&str, Option<&str>)]) -> Vec<Entry> {
        let mut group = Group::default();
        for (name, document) in changes {
            // A deletion of what is absent is left out.
            let _ = self.ledger.admit(&mut group, change(name, *document));
        }
        group.entries().to_vec()
    }

    /// Makes a group durable.
    pub(super) fn write(&mut self, entries: &[Entry]) -> Result<(), WriteFault> {
        self.journal.append(entries)?;
        for entry in entries {
            let forgotten = self.ledger.record(entry);
            self.states.insert(entry.key.clone(), entry.clone());
            for gone in forgotten {
                self.states.remove(&gone.key);
            }
        }
        Ok(())
    }

    pub(super) fn compact(&mut self) -> Result<(), StoreError> {
        if self.journal.wants_compaction() { self.journal.compact(Timestamp(2)) } else { Ok(()) }
    }

    pub(super) fn revision(&self) -> Revision {
        self.ledger.revision()
    }
}
