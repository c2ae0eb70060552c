//! What every handler shares: the state, and the documents of the store.

use std::sync::Arc;

use arc_swap::ArcSwap;
use config_store::typed::{self, Signature, Stored};
use config_store::{ConfigStore, Entry, Revision, Scope, StoreError, Timestamp};
use domain::Fleet;
use domain::desired::Document;
use replication::MemberList;
use tokio::sync::watch;

use super::auth::{Author, Tokens};
use super::extract::Condition;
use super::metrics::Metrics;
use super::page::{Page, PageQuery};
use super::problem::{Code, Problem};
use crate::FileBackends;

/// Attempts at a change whose document is changed by others at the same time.
const ATTEMPTS: usize = 8;

/// The state of the API.
pub(super) struct Api {
    pub(super) store: Arc<dyn ConfigStore>,
    pub(super) fleet: watch::Receiver<Arc<Fleet>>,
    pub(super) members: watch::Receiver<MemberList>,
    pub(super) file: FileBackends,
    pub(super) tokens: ArcSwap<Tokens>,
    pub(super) metrics: Metrics,
}

/// What became of a put.
pub(super) struct Put<D> {
    pub(super) stored: Stored<D>,
    pub(super) created: bool,
}

impl Api {
    /// The document of that id, if it exists. An id that cannot stand in a key names nothing.
    pub(super) async fn find<D: Document>(&self, id: &str) -> Result<Option<Stored<D>>, Problem> {
        let Ok(key) = typed::key::<D>(id) else { return Ok(None) };
        match self.store.get(&key).await? {
            Some(entry) => Ok(typed::read(&entry)?),
            None => Ok(None),
        }
    }

    /// The document of that id.
    pub(super) async fn get<D: Document>(&self, id: &str) -> Result<Stored<D>, Problem> {
        self.find(id).await?.ok_or_else(|| missing::<D>(id))
    }

    /// All documents of a kind, by id, with the revision that they are of. One that cannot be
    /// read is left out and logged: the others are still to be managed.
    pub(super) async fn all<D: Document>(&self) -> Result<(Revision, Vec<Stored<D>>), Problem> {
        let listing = self.store.list(Scope::kind(D::KIND)).await?;
        let read = |entry: &Entry| match typed::read(entry) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(%error, "a stored document is left out of a list");
                None
            }
        };
        Ok((listing.revision, listing.entries.iter().filter_map(read).collect()))
    }

    /// A page of the documents of a kind that pass, as they are shown.
    pub(super) async fn page<D: Document, V>(
        &self,
        query: &PageQuery,
        pass: impl Fn(&D) -> bool,
        view: impl Fn(Stored<D>) -> V,
    ) -> Result<Page<V>, Problem> {
        let (revision, mut all) = self.all::<D>().await?;
        all.retain(|stored| pass(&stored.document));
        Ok(query.cut(revision, all, |stored| stored.document.id(), view))
    }

    /// Makes a document that must not exist.
    pub(super) async fn create<D: Document>(
        &self,
        document: &D,
        by: &Author,
    ) -> Result<Stored<D>, Problem> {
        let change = typed::create(document, signature(by))?;
        match self.store.commit(change).await {
            Ok(entry) => self.written(&entry, document, "created", by),
            Err(StoreError::Conflict { actual, .. }) => {
                let detail = format!("{}/{} exists already", D::KIND, document.id());
                Err(Problem::new(Code::Exists, detail).standing(actual))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a document in place, as the condition allows. `make` gets the document that is
    /// replaced, whose fields of later versions it keeps.
    pub(super) async fn put<D: Document + PartialEq>(
        &self,
        id: &str,
        condition: &Condition,
        by: &Author,
        make: impl Fn(Option<&D>) -> D,
    ) -> Result<Put<D>, Problem> {
        if condition.is_none() {
            let detail = "to replace a document send If-Match with its ETag (or `*`), to make one \
                          If-None-Match: *";
            return Err(Problem::new(Code::PreconditionRequired, detail));
        }
        for _ in 0..ATTEMPTS {
            let present = self.find::<D>(id).await?;
            condition.check(present.as_ref().map(|stored| stored.revision))?;
            let document = make(present.as_ref().map(|stored| &stored.document));
            let Some(present) = present else {
                match self.create(&document, by).await {
                    Ok(stored) => return Ok(Put { stored, created: true }),
                    Err(problem) if problem.is(Code::Exists) => continue,
                    Err(problem) => return Err(problem),
                }
            };
            if let Some(stored) = self.replace(&present, document, by).await? {
                return Ok(Put { stored, created: false });
            }
        }
        Err(contended::<D>(id))
    }

    /// Changes a document that exists.
    pub(super) async fn modify<D: Document + PartialEq>(
        &self,
        id: &str,
        condition: &Condition,
        by: &Author,
        change: impl Fn(&mut D),
    ) -> Result<Stored<D>, Problem> {
        for _ in 0..ATTEMPTS {
            let present = self.get::<D>(id).await?;
            condition.check(Some(present.revision))?;
            let mut document = present.document.clone();
            change(&mut document);
            if let Some(stored) = self.replace(&present, document, by).await? {
                return Ok(stored);
            }
        }
        Err(contended::<D>(id))
    }

    /// Replaces what was read; `None` if it was changed since. What would change nothing is not
    /// written, so that repeating a request leaves no line in the audit log.
    async fn replace<D: Document + PartialEq>(
        &self,
        present: &Stored<D>,
        document: D,
        by: &Author,
    ) -> Result<Option<Stored<D>>, Problem> {
        if present.document == document {
            return Ok(Some(present.clone()));
        }
        let change = typed::replace(present, &document, signature(by))?;
        match self.store.commit(change).await {
            Ok(entry) => self.written(&entry, &document, "replaced", by).map(Some),
            Err(StoreError::Conflict { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a document that exists.
    pub(super) async fn delete<D: Document>(
        &self,
        id: &str,
        condition: &Condition,
        by: &Author,
    ) -> Result<(), Problem> {
        for _ in 0..ATTEMPTS {
            let present = self.get::<D>(id).await?;
            condition.check(Some(present.revision))?;
            match self.store.commit(typed::delete(&present, signature(by))?).await {
                Ok(entry) => {
                    log(&entry, "deleted", by);
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended::<D>(id))
    }

    fn written<D: Document>(
        &self,
        entry: &Entry,
        document: &D,
        what: &'static str,
        by: &Author,
    ) -> Result<Stored<D>, Problem> {
        log(entry, what, by);
        let stored = typed::read::<D>(entry)?;
        stored.ok_or_else(|| missing::<D>(document.id()))
    }
}

fn log(entry: &Entry, what: &'static str, by: &Author) {
    tracing::info!(
        document = %entry.key, revision = entry.revision.0, author = %by.0, what,
        "the desired state was changed",
    );
}

fn signature(by: &Author) -> Signature {
    Signature { author: by.0.clone(), at: Timestamp::now() }
}

pub(super) fn missing<D: Document>(id: &str) -> Problem {
    let shown: String = id.chars().take(300).collect();
    Problem::new(Code::NotFound, format!("there is no {}/{shown}", D::KIND))
}

/// Others changed the document at every attempt.
fn contended<D: Document>(id: &str) -> Problem {
    let detail = format!("{}/{id} is being changed by others all the time", D::KIND);
    Problem::new(Code::PreconditionFailed, detail)
}
