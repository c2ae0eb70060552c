//! The adapter in memory: for tests, and for a process that keeps nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use domain::{BoxFuture, BoxStream};
use parking_lot::Mutex;

use crate::ledger::{Group, Ledger};
use crate::shared::{Fault, Repair, Shared, watch};
use crate::table::MemoryTable;
use crate::{
    Change, ConfigStore, Entry, History, Key, Limits, Listing, Revision, Scope, StoreError, StoreId,
};

/// Changes that are kept for [`ConfigStore::history`].
const HISTORY: usize = 4096;

/// A store that ends with its process.
pub struct MemoryStore {
    id: StoreId,
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
}

struct Writer {
    ledger: Ledger,
    history: VecDeque<Entry>,
}

impl MemoryStore {
    /// An empty store.
    ///
    /// # Errors
    /// The system has no random source.
    pub fn new(limits: Limits) -> Result<Self, StoreError> {
        let ledger = Ledger::new(limits, Revision::ZERO, Revision::ZERO);
        let table = Box::<MemoryTable>::default();
        Ok(Self {
            id: StoreId::draw()?,
            shared: Arc::new(Shared::new(table, Revision::ZERO, Revision::ZERO)),
            writer: Mutex::new(Writer { ledger, history: VecDeque::new() }),
        })
    }

    fn make(&self, change: Change) -> Result<Entry, StoreError> {
        let mut writer = self.writer.lock();
        let mut group = Group::default();
        writer.ledger.admit(&mut group, change)?;
        let entry = group.entries()[0].clone();
        let forgotten = writer.ledger.record(&entry);
        if writer.history.len() == HISTORY {
            writer.history.pop_front();
        }
        writer.history.push_back(entry.clone());
        let (revision, floor) = (writer.ledger.revision(), writer.ledger.floor());
        self.shared.publish(group.entries(), &forgotten, revision, floor).map_err(fault)?;
        Ok(entry)
    }
}

/// A table in memory does not fail.
struct NoRepair;

impl Repair for NoRepair {
    fn repair(&self, found: Fault) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { Err(fault(found)) })
    }
}

fn fault(fault: Fault) -> StoreError {
    StoreError::Index(fault.reason)
}

impl ConfigStore for MemoryStore {
    fn id(&self) -> StoreId {
        self.id
    }

    fn revision(&self) -> Revision {
        self.shared.revision()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move { self.shared.get(key).map_err(fault) })
    }

    fn commit(&self, change: Change) -> BoxFuture<'_, Result<Entry, StoreError>> {
        Box::pin(async move { self.make(change) })
    }

    fn list(&self, scope: Scope) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(async move { self.shared.list(&scope).map_err(fault) })
    }

    fn watch(
        &self,
        scope: Scope,
        after: Revision,
    ) -> BoxStream<'static, Result<Entry, StoreError>> {
        watch(&self.shared, NoRepair, scope, after)
    }

    fn history(&self, after: Revision, limit: usize) -> BoxFuture<'_, Result<History, StoreError>> {
        let writer = self.writer.lock();
        let later = writer.history.iter().filter(|entry| entry.revision > after);
        let changes = later.take(limit).cloned().collect();
        let oldest = writer.history.front().map(|entry| entry.revision);
        Box::pin(async move { Ok(History { changes, oldest }) })
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.shared.close();
    }
}
