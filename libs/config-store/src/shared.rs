//! What readers see: the table with its revision behind one lock, and the watches.
//!
//! A watch holds no queue. It keeps the revision it has come to and asks the table for the first
//! state after it; a key's older states are not in the table any more. So a slow reader skips
//! states instead of piling them up, and cannot miss the newest.

use std::sync::Arc;

use futures_util::stream;
use parking_lot::RwLock;
use tokio::sync::watch;

use domain::{BoxFuture, BoxStream};

use crate::ledger::Forgotten;
use crate::table::{FailedTable, Table, TableFault};
use crate::{Entry, Key, Listing, Revision, Scope, StoreError};

/// A table that failed, and which one it was.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) generation: u64,
    pub(crate) reason: String,
}

/// Makes a table anew after it failed.
pub(crate) trait Repair: Send + Sync + 'static {
    /// Returns once the table may be read again.
    fn repair(&self, fault: Fault) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// The table and where it stands.
struct State {
    table: Box<dyn Table>,
    revision: Revision,
    floor: Revision,
    /// Counts the tables.
    generation: u64,
}

impl State {
    /// What a read found, with the table that it failed on.
    fn fault<T>(&self, found: Result<T, TableFault>) -> Result<T, Fault> {
        found.map_err(|TableFault(reason)| Fault { generation: self.generation, reason })
    }
}

/// The readable half of a store.
pub(crate) struct Shared {
    state: RwLock<State>,
    /// The newest revision; `None` once the store is closed.
    newest: watch::Sender<Option<Revision>>,
}

impl Shared {
    pub(crate) fn new(table: Box<dyn Table>, revision: Revision, floor: Revision) -> Self {
        Self {
            state: RwLock::new(State { table, revision, floor, generation: 0 }),
            newest: watch::Sender::new(Some(revision)),
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.state.read().revision
    }

    /// Shows durable changes to every reader. A table that does not take them is not read again
    /// until it is replaced: a watch must not pass over what is missing there.
    pub(crate) fn publish(
        &self,
        entries: &[Entry],
        forgotten: &[Forgotten],
        revision: Revision,
        floor: Revision,
    ) -> Result<(), Fault> {
        let applied = {
            let mut state = self.state.write();
            state.revision = revision;
            state.floor = floor;
            let applied = state.table.apply(entries, forgotten);
            let applied = state.fault(applied);
            if let Err(fault) = &applied {
                state.table = Box::new(FailedTable(fault.reason.clone()));
            }
            applied
        };
        self.announce();
        applied
    }

    /// Puts a table that stands at the present revision in place of one that failed.
    pub(crate) fn replace(&self, table: Box<dyn Table>) {
        {
            let mut state = self.state.write();
            state.table = table;
            state.generation += 1;
        }
        self.announce();
    }

    /// Takes the table out of use, so that its files can be set aside.
    pub(crate) fn retire(&self, reason: &str) {
        self.state.write().table = Box::new(FailedTable(reason.to_owned()));
    }

    /// Which table is in use.
    pub(crate) fn generation(&self) -> u64 {
        self.state.read().generation
    }

    fn announce(&self) {
        let revision = self.revision();
        self.newest.send_modify(|newest| {
            if newest.is_some() {
                *newest = Some(revision);
            }
        });
    }

    /// Ends every watch.
    pub(crate) fn close(&self) {
        self.newest.send_replace(None);
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Option<Entry>, Fault> {
        let state = self.state.read();
        let entry = state.fault(state.table.get(key))?;
        Ok(entry.filter(|entry| entry.document.is_some()))
    }

    pub(crate) fn list(&self, scope: &Scope) -> Result<Listing, Fault> {
        let state = self.state.read();
        let mut entries = state.fault(state.table.list(scope))?;
        entries.retain(|entry| entry.document.is_some());
        Ok(Listing { revision: state.revision, entries })
    }

    /// The next state for a watch, or how far it has come without one.
    fn step(&self, scope: &Scope, after: Revision) -> Result<Step, Fault> {
        let state = self.state.read();
        let begun = after > Revision::ZERO;
        if begun && !(state.floor..=state.revision).contains(&after) {
            return Ok(Step::CannotResume(StoreError::CannotResume {
                after,
                oldest: state.floor,
                newest: state.revision,
            }));
        }
        Ok(match state.fault(state.table.after(scope, after))? {
            Some(entry) => Step::Next(entry),
            None => Step::Rest(state.revision),
        })
    }
}

enum Step {
    Next(Entry),
    Rest(Revision),
    CannotResume(StoreError),
}

/// A watch and how far it has come.
struct Watcher<R> {
    shared: Arc<Shared>,
    newest: watch::Receiver<Option<Revision>>,
    repair: R,
    scope: Scope,
    after: Revision,
    over: bool,
}

/// A stream of the states after a revision.
pub(crate) fn watch(
    shared: &Arc<Shared>,
    repair: impl Repair,
    scope: Scope,
    after: Revision,
) -> BoxStream<'static, Result<Entry, StoreError>> {
    let watcher = Watcher {
        shared: shared.clone(),
        newest: shared.newest.subscribe(),
        repair,
        scope,
        after,
        over: false,
    };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let item = watcher.next().await?;
        Some((item, watcher))
    }))
}

impl<R: Repair> Watcher<R> {
    async fn next(&mut self) -> Option<Result<Entry, StoreError>> {
        while !self.over {
            // Marked as seen before the table is asked, so that a change in between wakes again.
            let closed = self.newest.borrow_and_update().is_none();
            if closed {
                return None;
            }
            match self.shared.step(&self.scope, self.after) {
                Ok(Step::Next(entry)) => {
                    self.after = entry.revision;
                    return Some(Ok(entry));
                }
                Ok(Step::Rest(revision)) => {
                    self.after = revision;
                    self.newest.changed().await.ok()?;
                }
                Ok(Step::CannotResume(error)) => return self.end(error),
                Err(fault) => {
                    if let Err(error) = self.repair.repair(fault).await {
                        return self.end(error);
                    }
                }
            }
        }
        None
    }

    fn end(&mut self, error: StoreError) -> Option<Result<Entry, StoreError>> {
        self.over = true;
        Some(Err(error))
    }
}
