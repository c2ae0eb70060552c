//! Desired state: what operators want, as documents by key, each change a revision.
//!
//! [`ConfigStore`] is the port: compare-and-set, list, watch, and the log of all changes. Two
//! adapters pass one suite of tests: [`MemoryStore`], and [`EmbeddedStore`], which keeps a journal
//! on the local disk and syncs every change before it is acknowledged.
//!
//! - [`entry`]: keys, revisions, documents, changes
//! - `ledger`: which changes are allowed; pure
//! - `table`, `shared`: the newest states, and watches over them
//! - [`embedded`]: journal, index, recovery
//!
//! Documents are bytes with a schema version here. Their forms are in [`domain::desired`];
//! [`typed`] joins the two.

pub mod embedded;
pub mod entry;
mod error;
mod ledger;
mod memory;
mod metrics;
mod shared;
mod store;
mod table;
pub mod typed;

pub use embedded::{EmbeddedConfig, EmbeddedStore};
pub use entry::{
    Change, Document, Entry, History, Key, Listing, Precondition, Revision, SchemaVersion, Scope,
    StoreId, Timestamp,
};
pub use error::StoreError;
pub use ledger::Limits;
pub use memory::MemoryStore;
pub use metrics::Metrics;
pub use store::ConfigStore;
