//! The adapter on a local disk: a journal, and an index of it.
//!
//! ```text
//! lock                  held while the store is open
//! journal-….log         segments of the journal; the newest is the store, the others its past
//! torn.bytes            what was cut off the journal last, if anything ever was
//! index/                a sled database, made anew from the journal when it is not as it should be
//! index.aside/          an index that was damaged or knew more than the journal
//! ```
//!
//! One thread owns the journal. It takes the changes that wait, writes them as one group, syncs
//! once, and then shows them to readers and answers those who wait. Readers read the index.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use domain::{BoxFuture, BoxStream};
use tokio::sync::{mpsc, oneshot};

use crate::metrics::Metrics;
use crate::shared::{Fault, Repair, Shared, watch};
use crate::{
    Change, ConfigStore, Entry, History, Key, Limits, Listing, Revision, Scope, StoreError,
    StoreId, Timestamp,
};

mod disk;
mod files;
mod index;
mod journal;
mod lock;
mod open;
mod record;
mod segment;
mod writer;

use writer::Command;

/// Changes that wait for the writer. Past that, `commit` waits for a place.
const QUEUE: usize = 1024;
/// 4 MiB: some ten thousand changes, read again in a few tens of milliseconds.
const SEGMENT_BYTES: u64 = 4 << 20;
/// 64 MiB of audit log.
const ARCHIVES: usize = 16;

/// Where a store is and how large it may get.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// The folder. It is made if it is missing; its files are readable by their owner alone.
    pub folder: PathBuf,
    /// Bounds of the content.
    pub limits: Limits,
    /// Size at which a segment of the journal is followed by another.
    pub segment_bytes: u64,
    /// Older segments that are kept as the audit log.
    pub archives: usize,
}

impl EmbeddedConfig {
    /// The defaults, in a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            limits: Limits::default(),
            segment_bytes: SEGMENT_BYTES,
            archives: ARCHIVES,
        }
    }
}

/// A store in a folder of this machine. Dropping it waits for the changes that were handed to
/// it, then lets go of the folder.
pub struct EmbeddedStore {
    id: StoreId,
    shared: Arc<Shared>,
    /// Taken when the store is dropped.
    commands: Option<mpsc::Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// Opens the store of a folder, or makes one. Reads the newest segment of the journal and
    /// all of the index: some tens of milliseconds. It blocks; call it before serving.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Missing`], [`StoreError::Damaged`],
    /// [`StoreError::Newer`], [`StoreError::Io`]. Nothing is lost by any of them.
    pub fn open(config: EmbeddedConfig, metrics: Metrics) -> Result<Self, StoreError> {
        open::prepare(&config.folder)?;
        let lock = lock::Lock::take(&config.folder.join("lock"))?;
        let disk = Box::new(disk::Folder::new(&config.folder));
        open::refuse_lost_journal(&config.folder, &*disk)?;
        let rules = journal::Rules {
            limits: config.limits,
            segment_bytes: config.segment_bytes,
            archives: config.archives,
        };
        let opened = journal::Journal::open(disk, rules, StoreId::draw()?, Timestamp::now())?;
        Self::start(opened, &config.folder, lock, metrics)
    }

    fn start(
        opened: journal::Opened,
        folder: &Path,
        lock: lock::Lock,
        metrics: Metrics,
    ) -> Result<Self, StoreError> {
        let journal::Opened { journal, replay, torn } = opened;
        if let Some(torn) = torn {
            metrics.torn_bytes.inc_by(torn.to - torn.from);
            tracing::warn!(
                store.file = %folder.join(&torn.file).display(),
                from = torn.from,
                to = torn.to,
                reason = torn.reason,
                "dropped a change that was cut off when it was written: it was never acknowledged, \
                 unless the disk lost it since; its bytes are in torn.bytes"
            );
        }
        let ledger = replay.ledger;
        let (revision, floor) = (ledger.revision(), ledger.floor());
        let index = open::index(folder, journal.id(), &replay.states, revision, &metrics);
        let id = journal.id();
        let shared = Arc::new(Shared::new(index, revision, floor));
        let (commands, queue) = mpsc::channel(QUEUE);
        let writer = writer::Writer {
            journal,
            ledger,
            shared: shared.clone(),
            folder: folder.to_owned(),
            metrics,
            _lock: lock,
        };
        let thread = std::thread::Builder::new()
            .name("config-store".to_owned())
            .spawn(move || writer.run(queue))
            .map_err(|source| StoreError::Io {
                path: folder.to_owned(),
                action: "served by a thread",
                source,
            })?;
        Ok(Self { id, shared, commands: Some(commands), thread: Some(thread) })
    }

    fn commands(&self) -> Commands {
        Commands(self.commands.as_ref().map(mpsc::Sender::downgrade))
    }

    /// Reads, and once more if the index had to be made anew.
    async fn read<T>(
        &self,
        read: impl Fn(&Shared) -> Result<T, Fault> + Send,
    ) -> Result<T, StoreError> {
        match read(&self.shared) {
            Ok(found) => Ok(found),
            Err(fault) => {
                self.commands().repair(fault).await?;
                read(&self.shared).map_err(|fault| StoreError::Index(fault.reason))
            }
        }
    }
}

/// The way to the writer, for those who must not keep it alive.
struct Commands(Option<mpsc::WeakSender<Command>>);

impl Commands {
    async fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Command,
    ) -> Result<T, StoreError> {
        let sender = self.0.as_ref().and_then(mpsc::WeakSender::upgrade);
        let sender = sender.ok_or(StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        sender.send(command(reply)).await.map_err(|_| StoreError::Closed)?;
        drop(sender);
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

impl Repair for Commands {
    fn repair(&self, fault: Fault) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.send(|reply| Command::Repair(fault, reply)))
    }
}

impl ConfigStore for EmbeddedStore {
    fn id(&self) -> StoreId {
        self.id
    }

    fn revision(&self) -> Revision {
        self.shared.revision()
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(self.read(move |shared| shared.get(key)))
    }

    fn commit(&self, change: Change) -> BoxFuture<'_, Result<Entry, StoreError>> {
        let commands = self.commands();
        Box::pin(async move { commands.send(|reply| Command::Commit(change, reply)).await })
    }

    fn list(&self, scope: Scope) -> BoxFuture<'_, Result<Listing, StoreError>> {
        Box::pin(self.read(move |shared| shared.list(&scope)))
    }

    fn watch(
        &self,
        scope: Scope,
        after: Revision,
    ) -> BoxStream<'static, Result<Entry, StoreError>> {
        watch(&self.shared, self.commands(), scope, after)
    }

    fn history(&self, after: Revision, limit: usize) -> BoxFuture<'_, Result<History, StoreError>> {
        let commands = self.commands();
        Box::pin(async move { commands.send(|reply| Command::History(after, limit, reply)).await })
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        // The writer ends when nobody can send to it any more.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the writer was reported where it happened.
            let _ = thread.join();
        }
        self.shared.close();
    }
}

#[cfg(test)]
mod tests;
