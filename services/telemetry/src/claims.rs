//! Whose a name and an address are.
//!
//! Two names for one engine would each believe in a cache of its own, and two engines under one
//! name would be taken for each other. Whoever wants to store a backend asks here first.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use domain::BackendId;
use domain::desired::Backend;

use crate::config::{BackendConfig, endpoint};

/// The backends of the config file, as it is now. They come before any document. A cheap handle.
#[derive(Clone, Debug, Default)]
pub struct FileBackends(Arc<ArcSwap<Vec<Arc<BackendConfig>>>>);

/// Why a backend cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The config file has a backend of that name.
    Name,
    /// Another backend has that address.
    Address(BackendId),
}

impl Taken {
    /// The field of a document that is taken.
    pub(crate) const fn field(&self) -> &'static str {
        match self {
            Self::Name => "id",
            Self::Address(_) => "url",
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => {
                f.write_str("the config file has a backend of this id: it is changed there")
            }
            Self::Address(other) => write!(f, "backend `{other}` has this address"),
        }
    }
}

impl FileBackends {
    pub(crate) fn new(backends: &[Arc<BackendConfig>]) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(backends.to_vec())))
    }

    /// From now on these are the file's.
    pub(crate) fn replace(&self, backends: &[Arc<BackendConfig>]) {
        self.0.store(Arc::new(backends.to_vec()));
    }

    /// Whether the file has a backend of that name.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.load().iter().any(|spec| spec.id.as_str() == id)
    }

    /// Who has the name, or the address, that a backend is to have. Of what is stored, another
    /// state of the same name does not count.
    pub(crate) fn taken<'a>(
        &self,
        id: &str,
        url: &str,
        stored: impl IntoIterator<Item = &'a Backend>,
    ) -> Option<Taken> {
        if self.has(id) {
            return Some(Taken::Name);
        }
        let wanted = endpoint(url)?;
        let file = self.0.load();
        let of_file = file.iter().find(|spec| spec.endpoint() == wanted).map(|spec| &spec.id);
        let mut stored = stored.into_iter().filter(|other| other.id.as_str() != id);
        let mut of_store = || stored.find(|other| endpoint(&other.url).as_ref() == Some(&wanted));
        of_file.or_else(|| of_store().map(|other| &other.id)).cloned().map(Taken::Address)
    }
}
