//! The newest state of each key, found by key and by revision.

use std::collections::{BTreeMap, HashMap};

use crate::ledger::Forgotten;
use crate::{Entry, Key, Revision, Scope};

/// A table cannot be read or written any more.
#[derive(Debug)]
pub(crate) struct TableFault(pub(crate) String);

/// States by key and by revision. Deletions are states too.
pub(crate) trait Table: Send + Sync {
    /// The state of a key.
    fn get(&self, key: &Key) -> Result<Option<Entry>, TableFault>;

    /// All states of a scope, by key.
    fn list(&self, scope: &Scope) -> Result<Vec<Entry>, TableFault>;

    /// The first state of a scope after a revision.
    fn after(&self, scope: &Scope, revision: Revision) -> Result<Option<Entry>, TableFault>;

    /// Puts states in place of older ones of their keys, and removes deletions that are forgotten
    /// if they are still the state of their keys.
    fn apply(&mut self, entries: &[Entry], forgotten: &[Forgotten]) -> Result<(), TableFault>;
}

/// The newest state for each key of a list in which later ones replace earlier ones.
pub(crate) fn newest(entries: &[Entry]) -> HashMap<&Key, &Entry> {
    entries.iter().map(|entry| (&entry.key, entry)).collect()
}

/// A table in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryTable {
    entries: BTreeMap<Key, Entry>,
    revisions: BTreeMap<Revision, Key>,
}

impl MemoryTable {
    /// A table of these states.
    pub(crate) fn holding<'a>(states: impl Iterator<Item = &'a Entry>) -> Self {
        let mut table = Self::default();
        for entry in states {
            table.revisions.insert(entry.revision, entry.key.clone());
            table.entries.insert(entry.key.clone(), entry.clone());
        }
        table
    }
}

impl Table for MemoryTable {
    fn get(&self, key: &Key) -> Result<Option<Entry>, TableFault> {
        Ok(self.entries.get(key).cloned())
    }

    fn list(&self, scope: &Scope) -> Result<Vec<Entry>, TableFault> {
        Ok(self.entries.values().filter(|entry| scope.covers(&entry.key)).cloned().collect())
    }

    fn after(&self, scope: &Scope, revision: Revision) -> Result<Option<Entry>, TableFault> {
        let mut later = self.revisions.range(revision.next()..).map(|(_, key)| key);
        Ok(later.find(|key| scope.covers(key)).and_then(|key| self.entries.get(key)).cloned())
    }

    fn apply(&mut self, entries: &[Entry], forgotten: &[Forgotten]) -> Result<(), TableFault> {
        for (key, entry) in newest(entries) {
            if let Some(before) = self.entries.insert(key.clone(), entry.clone()) {
                self.revisions.remove(&before.revision);
            }
            self.revisions.insert(entry.revision, key.clone());
        }
        for Forgotten { key, revision } in forgotten {
            if self.entries.get(key).is_some_and(|entry| entry.revision == *revision) {
                self.entries.remove(key);
                self.revisions.remove(revision);
            }
        }
        Ok(())
    }
}

/// Stands where a table failed: every read says so.
#[derive(Debug)]
pub(crate) struct FailedTable(pub(crate) String);

impl FailedTable {
    fn fault<T>(&self) -> Result<T, TableFault> {
        Err(TableFault(self.0.clone()))
    }
}

impl Table for FailedTable {
    fn get(&self, _: &Key) -> Result<Option<Entry>, TableFault> {
        self.fault()
    }

    fn list(&self, _: &Scope) -> Result<Vec<Entry>, TableFault> {
        self.fault()
    }

    fn after(&self, _: &Scope, _: Revision) -> Result<Option<Entry>, TableFault> {
        self.fault()
    }

    fn apply(&mut self, _: &[Entry], _: &[Forgotten]) -> Result<(), TableFault> {
        self.fault()
    }
}
