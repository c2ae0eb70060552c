//! The desired state as a client has it: every document in its type.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::desired::{ApiKey, Backend, Document as Desired, Limits, Model, Tenant};

use crate::{Document, Position};

/// Documents of one kind, by id.
type Kind<D> = Arc<BTreeMap<Arc<str>, D>>;

/// The desired state at one revision. A clone shares everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents {
    /// What it is of; the default while nothing was heard.
    pub position: Position,
    /// Backends that are wanted, beside those of telemetry's own config file.
    pub backends: Kind<Backend>,
    /// Models with their folders.
    pub models: Kind<Model>,
    /// Who shares limits.
    pub tenants: Kind<Tenant>,
    /// The limits, by tenant.
    pub limits: Kind<Limits>,
    /// API keys, by their public part.
    pub keys: Kind<ApiKey>,
}

/// A document that cannot be read here: it is absent from what this process goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undecoded;

impl Documents {
    /// Takes over a document's newest state. One that cannot be read counts as deleted: an older
    /// form of a key or of limits must not stay in force.
    pub(crate) fn apply(&mut self, document: &Document) -> Result<(), Undecoded> {
        match &*document.kind {
            Backend::KIND => apply(&mut self.backends, document),
            Model::KIND => apply(&mut self.models, document),
            Tenant::KIND => apply(&mut self.tenants, document),
            Limits::KIND => apply(&mut self.limits, document),
            ApiKey::KIND => apply(&mut self.keys, document),
            // A kind of a later version is none of ours.
            _ => Ok(()),
        }
    }
}

fn apply<D: Desired>(kind: &mut Kind<D>, document: &Document) -> Result<(), Undecoded> {
    // Copied only where somebody still reads what was before.
    let kind = Arc::make_mut(kind);
    let Some(json) = &document.json else {
        kind.remove(&document.id);
        return Ok(());
    };
    let same_major = document.schema.0 == D::SCHEMA.0;
    let read = || serde_json::from_slice::<D>(json).ok().filter(|d| d.id() == &*document.id);
    match same_major.then(read).flatten() {
        Some(read) => {
            kind.insert(document.id.clone(), read);
            Ok(())
        }
        None => {
            kind.remove(&document.id);
            Err(Undecoded)
        }
    }
}
