//! Whose a name and an address are, and what is wanted of the config file's backends.
//!
//! Two names for one engine would each believe in a cache of its own, and two engines under one
//! name would be taken for each other. Whoever wants to store a backend asks here first.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use domain::BackendId;
use domain::desired::{Backend, LifecycleWish};
use tokio::sync::watch;

use crate::config::{BackendConfig, endpoint};

/// The backends of the config file, as it is now, and what operators want of them, as long as the
/// process lives. They come before any document. A cheap handle.
#[derive(Clone, Debug, Default)]
pub struct FileBackends(Arc<OfFile>);

#[derive(Debug, Default)]
struct OfFile {
    specs: ArcSwap<Vec<Arc<BackendConfig>>>,
    wishes: watch::Sender<Wishes>,
}

/// What is wanted of backends of the config file; of those that are not named, that they are ready.
pub(crate) type Wishes = BTreeMap<BackendId, LifecycleWish>;

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
            Self::Name => f.write_str(
                "the config file has a backend of this id: edit its [[backends]] entry there, which is \
                 read again at SIGHUP and when the file changes; only drain, maintenance and ready work \
                 here",
            ),
            Self::Address(other) => write!(f, "backend `{other}` has this address"),
        }
    }
}

impl FileBackends {
    pub(crate) fn new(backends: &[Arc<BackendConfig>]) -> Self {
        let specs = ArcSwap::from_pointee(backends.to_vec());
        Self(Arc::new(OfFile { specs, wishes: watch::Sender::default() }))
    }

    /// From now on these are the file's. What is wanted of those that stay holds on.
    pub(crate) fn replace(&self, backends: &[Arc<BackendConfig>]) {
        let before = self.0.specs.swap(Arc::new(backends.to_vec()));
        self.0.wishes.send_if_modified(|wishes| {
            let count = wishes.len();
            wishes.retain(|id, _| {
                let of = |specs: &[Arc<BackendConfig>]| specs.iter().find(|s| s.id == *id).cloned();
                of(&before).zip(of(backends)).is_some_and(|(old, new)| old.is_same_engine(&new))
            });
            wishes.len() < count
        });
    }

    /// Whether the file has a backend of that name.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.specs.load().iter().any(|spec| spec.id.as_str() == id)
    }

    /// What is wanted of a backend of the file.
    pub(crate) fn wish(&self, id: &BackendId) -> LifecycleWish {
        self.0.wishes.borrow().get(id).copied().unwrap_or(LifecycleWish::Ready)
    }

    /// From now on this is wanted of a backend of the file, until the process ends.
    pub(crate) fn want(&self, id: &BackendId, wish: LifecycleWish) {
        self.0.wishes.send_if_modified(|wishes| wishes.insert(id.clone(), wish) != Some(wish));
    }

    /// What is wanted, and every later change of it.
    pub(crate) fn wishes(&self) -> watch::Receiver<Wishes> {
        self.0.wishes.subscribe()
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
        let file = self.0.specs.load();
        let of_file = file.iter().find(|spec| spec.endpoint() == wanted).map(|spec| &spec.id);
        let mut stored = stored.into_iter().filter(|other| other.id.as_str() != id);
        let mut of_store = || stored.find(|other| endpoint(&other.url).as_ref() == Some(&wanted));
        of_file.or_else(|| of_store().map(|other| &other.id)).cloned().map(Taken::Address)
    }
}
