//! The port.

use domain::{BoxFuture, BoxStream};

use crate::{Change, Entry, History, Key, Listing, Revision, Scope, StoreError, StoreId};

/// Desired state: documents by key, changed one at a time, each change a new revision of the
/// whole store. All adapters pass one suite (`tests/conformance`).
pub trait ConfigStore: Send + Sync + 'static {
    /// Which store this is.
    fn id(&self) -> StoreId;

    /// The revision of the last change.
    fn revision(&self) -> Revision;

    /// The present state of a key; `None` where there is none.
    ///
    /// # Errors
    /// The store is closed or cannot be read.
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>, StoreError>>;

    /// Makes one change, if the key is as the change expects. When this returns, the change
    /// survives whatever the adapter promises (for the embedded one, the loss of power) and
    /// every later read sees it. Dropping the future does not take the change back.
    ///
    /// # Errors
    /// [`StoreError::Conflict`], [`StoreError::Invalid`], [`StoreError::Full`]: nothing was
    /// changed. [`StoreError::NotWritten`], [`StoreError::Broken`]: see there.
    fn commit(&self, change: Change) -> BoxFuture<'_, Result<Entry, StoreError>>;

    /// The keys that exist, as of one revision.
    ///
    /// # Errors
    /// The store is closed or cannot be read.
    fn list(&self, scope: Scope) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// Every key's newest state that is later than `after`, deletions too, by rising revision;
    /// then each further change. States of a key that were replaced before they were asked for
    /// are skipped, the newest never is: whoever reads slowly costs the store nothing. From
    /// [`Revision::ZERO`] it begins with everything there is. It ends when the store is closed.
    ///
    /// One error may come, as the last item: [`StoreError::CannotResume`], also to a reader so
    /// slow that deletions it has not seen are forgotten.
    fn watch(&self, scope: Scope, after: Revision)
    -> BoxStream<'static, Result<Entry, StoreError>>;

    /// The audit log: at most `limit` changes after a revision, oldest first. Old changes are
    /// dropped some time; the page tells which is the oldest left, and begins there at the
    /// earliest.
    ///
    /// # Errors
    /// The store is closed or cannot be read.
    fn history(&self, after: Revision, limit: usize) -> BoxFuture<'_, Result<History, StoreError>>;
}
