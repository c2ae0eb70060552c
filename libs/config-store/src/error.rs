//! What can go wrong, and what to do then.

use std::io;
use std::path::PathBuf;

use crate::{Key, Precondition, Revision};

/// A change, a read or an opening failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The key is not at the revision that the change expects. Read it again and decide anew.
    #[error("{key} is {}, the change expects {expected}", standing(.actual))]
    Conflict {
        /// What was to be changed.
        key: Key,
        /// What the change expects.
        expected: Precondition,
        /// The revision of its present state; `None` where there is none.
        actual: Option<Revision>,
    },
    /// A key, an author or a document is not of the form that is kept.
    #[error("{what}: {reason}")]
    Invalid {
        /// Which part.
        what: &'static str,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// All documents together would pass the limit. Deleting some makes room.
    #[error("the store is full: its documents may have {limit} bytes together")]
    Full {
        /// The limit in bytes.
        limit: u64,
    },
    /// A watch cannot go on from there: deletions since then are forgotten, or that revision
    /// was never reached here. Watch from the beginning, or list and watch from the list.
    #[error("a watch cannot go on after revision {after}: {oldest} to {newest} are possible")]
    CannotResume {
        /// Where the watch was to go on.
        after: Revision,
        /// The oldest revision that a watch can go on after.
        oldest: Revision,
        /// The newest.
        newest: Revision,
    },
    /// A stored document has a schema that this version does not know, or is not of its form.
    #[error("{key}: the document cannot be read: {reason}")]
    Document {
        /// Whose document.
        key: Key,
        /// Why.
        reason: String,
    },
    /// Nothing was changed, as the journal could not be written. Later changes may succeed.
    #[error("the change was not made, the journal cannot be written: {0}")]
    NotWritten(#[source] io::Error),
    /// The disk failed in a way that leaves open what it holds. Until the store is opened again
    /// it is read only. The failed change may be there then, or not.
    #[error("the store takes no more changes until the process is started again: {0}")]
    Broken(String),
    /// The index failed, and the journal cannot be read to make another. Changes are still taken.
    #[error("the index of the store failed: {0}")]
    Index(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// Another process has the store open.
    #[error("{} is in use by another process{}", .path.display(), process(.holder))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// What the holder wrote about itself: its process id.
        holder: String,
    },
    /// The journal is damaged where a crash alone cannot have damaged it. Nothing was changed.
    #[error("{} is damaged at byte {offset}: {reason}. {advice}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first byte that cannot be read.
        offset: u64,
        /// What was found there.
        reason: String,
        /// What can be done.
        advice: String,
    },
    /// The folder was a store's, and has no journal any more. Nothing was changed.
    #[error(
        "{} has no journal, yet it has {trace}: the journal was moved or removed. Put its files \
         (journal-*.log) back, or restore the folder from a backup; for a new, empty store name an \
         empty folder", .folder.display()
    )]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// What tells that there was one.
        trace: String,
    },
    /// The journal was written by a later version.
    #[error("{} was written by a later version ({found}): use that version", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The system refused something.
    #[error("{} cannot be {action}: {source}", .path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What was to be done with it.
        action: &'static str,
        /// The system's own error.
        source: io::Error,
    },
}

fn standing(actual: &Option<Revision>) -> String {
    actual.map_or_else(|| "absent".to_owned(), |revision| format!("at revision {revision}"))
}

fn process(holder: &str) -> String {
    if holder.is_empty() { String::new() } else { format!(" (process {holder})") }
}
