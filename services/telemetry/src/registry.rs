//! Which backends there should be: those of the config file, and those of the store.
//!
//! The file's change with it, and are wanted ready unless an operator says otherwise while the
//! process lives. The store's come, change and go by
//! their documents. A document with the id or the address of a backend that is there
//! already counts for nothing: two names for one engine would each believe in a cache of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use config_store::typed::{self, Stored};
use config_store::{ConfigStore, Entry, Revision, Scope, StoreError};
use domain::BackendId;
use domain::desired::{Backend, Document, LifecycleWish};

use crate::claims::{Taken, Wishes};
use crate::config::{BackendConfig, Credentials};

/// One backend that should be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) spec: Arc<BackendConfig>,
    pub(crate) wish: LifecycleWish,
    /// The revision since which the store has it; 0 for one of the file.
    pub(crate) created: u64,
}

/// Everything that should be there, by id.
pub(crate) type Roster = BTreeMap<BackendId, Wanted>;

/// The registry: reads the store, and tells what should be there.
pub(crate) struct Registry {
    store: Arc<dyn ConfigStore>,
    file: Vec<Arc<BackendConfig>>,
    /// What is wanted of them.
    wishes: Wishes,
    credentials: Credentials,
    /// The documents as they could be read last.
    documents: HashMap<BackendId, Stored<Backend>>,
    /// The revision of the store that they are of.
    revision: Option<Revision>,
    /// Documents that count for nothing, with the reason.
    refused: BTreeMap<String, String>,
}

impl Registry {
    pub(crate) fn new(
        store: Arc<dyn ConfigStore>,
        file: Vec<Arc<BackendConfig>>,
        credentials: Credentials,
    ) -> Self {
        let (wishes, documents) = (Wishes::new(), HashMap::new());
        let refused = BTreeMap::new();
        Self { store, file, wishes, credentials, documents, revision: None, refused }
    }

    /// From now on these are the file's backends, and the keys that backends may name.
    pub(crate) fn renew(&mut self, file: Vec<Arc<BackendConfig>>, credentials: Credentials) {
        (self.file, self.credentials) = (file, credentials);
        // What was read before was read beside another file.
        self.revision = None;
    }

    /// From now on this is wanted of the file's backends.
    pub(crate) fn rewish(&mut self, wishes: Wishes) {
        self.wishes = wishes;
        self.revision = None;
    }

    /// The backends of the file alone.
    pub(crate) fn of_file(&self) -> Roster {
        let wanted = |spec: &Arc<BackendConfig>| Wanted {
            spec: spec.clone(),
            wish: self.wishes.get(&spec.id).copied().unwrap_or(LifecycleWish::Ready),
            created: 0,
        };
        self.file.iter().map(|spec| (spec.id.clone(), wanted(spec))).collect()
    }

    /// Documents that count for nothing.
    pub(crate) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// The revision that was read last.
    pub(crate) fn revision(&self) -> Revision {
        self.revision.unwrap_or(Revision::ZERO)
    }

    /// Reads the store, if it has changed, and tells what should be there; `None` if that is
    /// what it was.
    ///
    /// # Errors
    /// The store cannot be read. What was read before stands.
    pub(crate) async fn read(&mut self) -> Result<Option<Roster>, StoreError> {
        if self.revision == Some(self.store.revision()) {
            return Ok(None);
        }
        let listing = self.store.list(Scope::kind(Backend::KIND)).await?;
        let mut refused = BTreeMap::new();
        self.documents = self.documents_of(&listing.entries, &mut refused);
        self.revision = Some(listing.revision);
        let roster = self.roster(&mut refused);
        self.tell_refusals(refused);
        Ok(Some(roster))
    }

    /// A document that cannot be read, as it is of a later version, leaves the backend as it was
    /// known before.
    fn documents_of(
        &mut self,
        entries: &[Entry],
        refused: &mut BTreeMap<String, String>,
    ) -> HashMap<BackendId, Stored<Backend>> {
        let mut known = std::mem::take(&mut self.documents);
        let read = |entry: &Entry| match typed::read::<Backend>(entry) {
            Ok(stored) => stored,
            Err(error) => {
                refused.insert(entry.key.name().to_owned(), error.to_string());
                known.remove(&BackendId::new(entry.key.name()))
            }
        };
        let stored = entries.iter().filter_map(read);
        stored.map(|stored| (stored.document.id.clone(), stored)).collect()
    }

    fn roster(&self, refused: &mut BTreeMap<String, String>) -> Roster {
        let mut roster = self.of_file();
        let mut endpoints: HashMap<_, BackendId> =
            self.file.iter().map(|spec| (spec.endpoint(), spec.id.clone())).collect();
        // Who was first stays.
        let mut documents: Vec<&Stored<Backend>> = self.documents.values().collect();
        documents.sort_by_key(|stored| stored.created);
        for stored in documents {
            let id = &stored.document.id;
            let mut refuse = |reason: String| refused.insert(id.to_string(), reason);
            if roster.contains_key(id) {
                refuse(Taken::Name.to_string());
                continue;
            }
            let spec = match BackendConfig::of_document(&stored.document, &self.credentials) {
                Ok(spec) => spec,
                Err(reason) => {
                    refuse(reason);
                    continue;
                }
            };
            if let Some(other) = endpoints.get(&spec.endpoint()) {
                refuse(Taken::Address(other.clone()).to_string());
                continue;
            }
            if let Some(name) = &stored.document.credential
                && spec.authorization.is_none()
            {
                tracing::warn!(
                    backend.id = %id, credential = name,
                    "no [[credentials]] entry has this name: the backend is asked without a key",
                );
            }
            endpoints.insert(spec.endpoint(), id.clone());
            let (wish, created) = (stored.document.wish, stored.created.0);
            roster.insert(id.clone(), Wanted { spec: Arc::new(spec), wish, created });
        }
        roster
    }

    /// Logs what was not refused before.
    fn tell_refusals(&mut self, refused: BTreeMap<String, String>) {
        for (id, reason) in &refused {
            if self.refused.get(id) != Some(reason) {
                tracing::warn!(backend.id = id, reason, "a backend's document counts for nothing");
            }
        }
        self.refused = refused;
    }
}

#[cfg(test)]
mod tests;
