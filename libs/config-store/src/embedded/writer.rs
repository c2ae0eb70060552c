//! The thread that owns the journal.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::journal::{Journal, WriteFault};
use super::lock::Lock;
use super::open;
use crate::ledger::{Group, Ledger};
use crate::metrics::Metrics;
use crate::shared::{Fault, Shared};
use crate::{Change, Entry, History, Revision, StoreError, Timestamp};

/// Changes in one group. Beyond this, waiting longer for one sync gains nothing.
const GROUP: usize = 256;
/// Bytes of documents in one group.
const GROUP_BYTES: usize = 4 << 20;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the thread is asked for.
pub(super) enum Command {
    Commit(Change, Reply<Entry>),
    History(Revision, usize, Reply<History>),
    Repair(Fault, Reply<()>),
}

/// Owns what changes.
pub(super) struct Writer {
    pub(super) journal: Journal,
    pub(super) ledger: Ledger,
    pub(super) shared: Arc<Shared>,
    pub(super) folder: PathBuf,
    pub(super) metrics: Metrics,
    /// Given back when the journal is closed.
    pub(super) _lock: Lock,
}

/// Changes that will be written together, with those who wait for them.
#[derive(Default)]
struct Waiting {
    group: Group,
    bytes: usize,
    replies: Vec<Reply<Entry>>,
}

impl Writer {
    /// Serves until nobody can send any more.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        self.show();
        let mut waiting = Waiting::default();
        while let Some(command) = queue.blocking_recv() {
            self.take(&mut waiting, command);
            while waiting.replies.len() < GROUP && waiting.bytes < GROUP_BYTES {
                match queue.try_recv() {
                    Ok(command) => self.take(&mut waiting, command),
                    Err(_) => break,
                }
            }
            self.write(std::mem::take(&mut waiting));
            if self.journal.wants_compaction() {
                self.compact();
            }
            self.show();
        }
        // The index is closed here, before the lock is given back.
        self.shared.retire("the store is closed");
    }

    fn take(&mut self, waiting: &mut Waiting, command: Command) {
        match command {
            Command::Commit(change, reply) => {
                let bytes = change.document.as_ref().map_or(0, |document| document.bytes.len());
                match self.ledger.admit(&mut waiting.group, change) {
                    Ok(()) => {
                        waiting.bytes += bytes;
                        waiting.replies.push(reply);
                    }
                    // Whoever asked may have gone.
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            // What was handed in before is seen.
            Command::History(after, limit, reply) => {
                self.write(std::mem::take(waiting));
                let _ = reply.send(self.journal.history(after, limit));
            }
            Command::Repair(fault, reply) => {
                self.write(std::mem::take(waiting));
                let _ = reply.send(self.repair(&fault));
            }
        }
    }

    fn write(&mut self, waiting: Waiting) {
        let entries = waiting.group.entries();
        if entries.is_empty() {
            return;
        }
        let timer = self.metrics.sync_seconds.start_timer();
        let written = self.journal.append(entries);
        timer.observe_duration();
        if let Err(fault) = written {
            tracing::error!(error = ?fault, "changes could not be written to the journal");
            let errors = entries.iter().map(|_| error_of(&fault)).collect::<Vec<_>>();
            for (reply, error) in waiting.replies.into_iter().zip(errors) {
                let _ = reply.send(Err(error));
            }
            return;
        }
        let forgotten: Vec<_> = entries.iter().flat_map(|e| self.ledger.record(e)).collect();
        self.metrics.changes.inc_by(entries.len() as u64);
        let (revision, floor) = (self.ledger.revision(), self.ledger.floor());
        if let Err(fault) = self.shared.publish(entries, &forgotten, revision, floor)
            && let Err(error) = self.repair(&fault)
        {
            // The changes are durable; readers are told of the fault until it can be put right.
            tracing::error!(%error, "the index could not be made anew");
        }
        for (reply, entry) in waiting.replies.into_iter().zip(entries) {
            let _ = reply.send(Ok(entry.clone()));
        }
    }

    /// Makes the index anew, unless somebody else has had it done.
    fn repair(&self, fault: &Fault) -> Result<(), StoreError> {
        if fault.generation != self.shared.generation() {
            return Ok(());
        }
        // Its files are let go of before they are renamed.
        self.shared.retire(&fault.reason);
        let replay = self.journal.replay()?;
        let (id, revision) = (self.journal.id(), replay.ledger.revision());
        let reason = &fault.reason;
        let index =
            open::rebuild(&self.folder, id, &replay.states, revision, reason, &self.metrics);
        self.shared.replace(index);
        Ok(())
    }

    fn compact(&mut self) {
        match self.journal.compact(Timestamp::now()) {
            Ok(()) => self.metrics.compactions.inc(),
            Err(error) => tracing::error!(%error, "a new segment of the journal was not begun"),
        }
    }

    fn show(&self) {
        let metrics = &self.metrics;
        metrics.revision.set(self.ledger.revision().0.cast_signed());
        metrics.document_bytes.set(self.ledger.total_bytes().cast_signed());
        metrics.journal_bytes.set(self.journal.length().cast_signed());
        metrics.writable.set(i64::from(self.journal.is_writable()));
    }
}

fn error_of(fault: &WriteFault) -> StoreError {
    match fault {
        WriteFault::NotWritten(error) => {
            StoreError::NotWritten(std::io::Error::new(error.kind(), error.to_string()))
        }
        WriteFault::Broken(reason) => StoreError::Broken(reason.clone()),
    }
}
