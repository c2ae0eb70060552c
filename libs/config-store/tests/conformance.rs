//! One suite for every adapter of the port.

#[path = "support/changes.rs"]
mod changes;
#[path = "conformance/suite.rs"]
mod suite;

use std::sync::Arc;

use config_store::{
    ConfigStore, EmbeddedConfig, EmbeddedStore, Limits, MemoryStore, Metrics, Revision,
};

/// An adapter under test.
trait Adapter {
    /// What must live as long as the store.
    type Ground;
    fn open(&self, limits: Limits) -> (Arc<dyn ConfigStore>, Self::Ground);
}

struct Memory;

impl Adapter for Memory {
    type Ground = ();
    fn open(&self, limits: Limits) -> (Arc<dyn ConfigStore>, ()) {
        (Arc::new(MemoryStore::new(limits).unwrap()), ())
    }
}

struct Embedded;

impl Adapter for Embedded {
    type Ground = tempfile::TempDir;
    fn open(&self, limits: Limits) -> (Arc<dyn ConfigStore>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        // A folder that is not there yet, and segments so short that the suite goes over several.
        let config = EmbeddedConfig {
            limits,
            segment_bytes: 2048,
            archives: 1000,
            ..EmbeddedConfig::new(folder.path().join("a/b"))
        };
        (Arc::new(EmbeddedStore::open(config, Metrics::default()).unwrap()), folder)
    }
}

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::suite::$name(super::Memory).await;
            })*
        }
        mod embedded {
            $(#[tokio::test]
            async fn $name() {
                super::suite::$name(super::Embedded).await;
            })*
        }
    };
}

suite![
    a_change_is_read_back_with_who_and_when,
    a_change_that_expects_another_state_changes_nothing,
    of_writers_that_race_for_one_key_one_wins,
    concurrent_changes_of_many_keys_are_all_made,
    a_key_that_is_made_again_is_another,
    a_list_is_one_kind_at_one_revision,
    a_watch_begins_with_what_there_is_and_goes_on,
    a_watch_goes_on_from_a_list_without_a_gap,
    a_watch_of_one_kind_sees_no_other,
    a_watch_delivers_by_rising_revision_and_ends_with_the_newest_of_every_key,
    a_slow_watcher_skips_states_and_never_the_newest,
    a_watch_goes_on_only_where_nothing_was_forgotten,
    a_watch_ends_with_its_store,
    what_is_too_large_or_too_much_is_refused,
    the_history_tells_every_change_in_pages,
];

#[tokio::test]
async fn stores_differ_in_their_ids() {
    let (one, _ground) = Embedded.open(Limits::default());
    let (other, _) = Memory.open(Limits::default());
    assert_ne!(one.id(), other.id());
    assert_eq!(one.revision(), Revision::ZERO);
}
