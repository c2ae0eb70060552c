//! Random changes, with the store opened again at random points, against a plain map.

#[path = "support/changes.rs"]
mod changes;

use std::collections::BTreeMap;

use changes::{delete, put, text};
use config_store::{
    Change, ConfigStore, EmbeddedConfig, EmbeddedStore, Limits, Metrics, Precondition, Revision,
    Scope, StoreError,
};
use futures_util::future::join_all;
use proptest::prelude::*;

const KEYS: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    /// Changes handed over together: key, what is expected, the new content.
    Commit(Vec<(usize, Expected, Option<String>)>),
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Any,
    Absent,
    Present,
    /// Some revision, most often a wrong one.
    At(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expected = prop_oneof![
        Just(Expected::Any),
        Just(Expected::Absent),
        Just(Expected::Present),
        (0..30_u64).prop_map(Expected::At),
    ];
    let content = prop::option::weighted(0.7, "[a-z]{0,90}");
    let changes = prop::collection::vec((0..KEYS, expected, content), 1..6);
    let step = prop_oneof![8 => changes.prop_map(Step::Commit), 1 => Just(Step::Reopen)];
    prop::collection::vec(step, 1..40)
}

/// What a naive store would hold.
#[derive(Default)]
struct Model {
    revision: u64,
    /// Revision, creation and content by key.
    live: BTreeMap<String, (u64, u64, String)>,
}

impl Model {
    /// Makes a change if it is allowed; says whether.
    fn commit(&mut self, change: &Change) -> bool {
        let key = change.key.to_string();
        let present = self.live.get(&key);
        let fits = match change.expected {
            Precondition::Any => true,
            Precondition::Absent => present.is_none(),
            Precondition::At(revision) => present.is_some_and(|(at, ..)| *at == revision.0),
        };
        if !fits || (change.document.is_none() && present.is_none()) {
            return false;
        }
        self.revision += 1;
        match &change.document {
            None => drop(self.live.remove(&key)),
            Some(document) => {
                let created = present.map_or(self.revision, |(_, created, _)| *created);
                let content = String::from_utf8(document.bytes.to_vec()).unwrap();
                self.live.insert(key, (self.revision, created, content));
            }
        }
        true
    }

    fn change(&self, (at, expected, content): &(usize, Expected, Option<String>)) -> Change {
        let name = format!("k/{at}");
        let present = self.live.get(&name).map_or(Revision::ZERO, |(at, ..)| Revision(*at));
        let expected = match expected {
            Expected::Any => Precondition::Any,
            Expected::Absent => Precondition::Absent,
            Expected::Present => Precondition::At(present),
            Expected::At(revision) => Precondition::At(Revision(*revision)),
        };
        match content {
            Some(content) => put(&name, expected, content),
            None => delete(&name, expected),
        }
    }
}

async fn compare(store: &EmbeddedStore, model: &Model) {
    let listing = store.list(Scope::All).await.unwrap();
    assert_eq!(listing.revision.0, model.revision);
    let found: BTreeMap<_, _> = listing
        .entries
        .iter()
        .map(|e| (e.key.to_string(), (e.revision.0, e.created.0, text(e).unwrap())))
        .collect();
    assert_eq!(found, model.live);
}

fn open(folder: &std::path::Path) -> EmbeddedStore {
    let config = EmbeddedConfig {
        limits: Limits { tombstones: 2, ..Limits::default() },
        segment_bytes: 1500,
        archives: 2,
        ..EmbeddedConfig::new(folder)
    };
    EmbeddedStore::open(config, Metrics::default()).unwrap()
}

async fn run(steps: Vec<Step>) {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Some(open(folder.path()));
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Reopen => {
                drop(store.take());
                store = Some(open(folder.path()));
            }
            Step::Commit(changes) => {
                let changes: Vec<_> = changes.iter().map(|change| model.change(change)).collect();
                let store = store.as_ref().unwrap();
                // Polled in this order, so that they are made in it, most of them in one group.
                let results =
                    join_all(changes.iter().cloned().map(|change| store.commit(change))).await;
                for (change, result) in changes.iter().zip(results) {
                    match result {
                        Ok(_) => assert!(model.commit(change), "{change:?}"),
                        Err(StoreError::Conflict { .. }) => {
                            assert!(!model.commit(change), "{change:?}");
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        }
        compare(store.as_ref().unwrap(), &model).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_a_plain_map_however_often_it_is_opened(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(steps));
    }
}
