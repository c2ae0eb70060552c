//! What every adapter must do.

use std::collections::HashMap;
use std::sync::Arc;

use config_store::{
    ConfigStore, Entry, Key, Limits, Precondition, Revision, SchemaVersion, Scope, StoreError,
    Timestamp,
};
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};

use super::Adapter;
use super::changes::{delete, key, put, text};
use Precondition::{Absent, Any, At};

type Watch = domain::BoxStream<'static, Result<Entry, StoreError>>;

/// The next items of a watch, in a form that is easily compared.
async fn next(watch: &mut Watch, count: usize) -> Vec<(u64, String, Option<String>)> {
    let mut found = Vec::new();
    for _ in 0..count {
        let entry = watch.next().await.unwrap().unwrap();
        found.push((entry.revision.0, entry.key.to_string(), text(&entry)));
    }
    found
}

fn at(revision: u64, key: &str, text: &str) -> (u64, String, Option<String>) {
    (revision, key.to_owned(), Some(text.to_owned()))
}

fn gone(revision: u64, key: &str) -> (u64, String, Option<String>) {
    (revision, key.to_owned(), None)
}

pub(crate) async fn a_change_is_read_back_with_who_and_when(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    assert_eq!(store.get(&key("a/k")).await.unwrap(), None);
    let mut change = put("a/k", Absent, "one");
    change.author = "alice".into();
    change.at = Timestamp(77);
    change.document.as_mut().unwrap().schema = SchemaVersion { major: 3, minor: 4 };
    let made = store.commit(change.clone()).await.unwrap();
    assert_eq!((made.revision, made.created), (Revision(1), Revision(1)));
    assert_eq!((&*made.author, made.at), ("alice", Timestamp(77)));
    assert_eq!(made.document, change.document);
    assert_eq!(store.get(&key("a/k")).await.unwrap(), Some(made));
    let made = store.commit(put("a/k", At(Revision(1)), "two")).await.unwrap();
    assert_eq!((made.revision, made.created), (Revision(2), Revision(1)));
    assert_eq!(store.revision(), Revision(2));
    let made = store.commit(delete("a/k", At(Revision(2)))).await.unwrap();
    assert_eq!((made.revision, made.created, made.document), (Revision(3), Revision(1), None));
    assert_eq!(store.get(&key("a/k")).await.unwrap(), None);
}

pub(crate) async fn a_change_that_expects_another_state_changes_nothing(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    let refused = async |change, actual: Option<u64>| match store.commit(change).await {
        Err(StoreError::Conflict { actual: found, .. }) => {
            assert_eq!(found, actual.map(Revision));
        }
        other => panic!("{other:?}"),
    };
    refused(put("a/k", At(Revision(1)), "x"), None).await;
    refused(put("a/k", At(Revision(0)), "x"), None).await;
    refused(delete("a/k", Any), None).await;
    refused(delete("a/k", Absent), None).await;
    store.commit(put("a/k", Any, "one")).await.unwrap();
    refused(put("a/k", Absent, "x"), Some(1)).await;
    refused(put("a/k", At(Revision(2)), "x"), Some(1)).await;
    refused(delete("a/k", At(Revision(9))), Some(1)).await;
    refused(delete("a/k", Absent), Some(1)).await;
    assert_eq!(store.revision(), Revision(1));
    assert_eq!(text(&store.get(&key("a/k")).await.unwrap().unwrap()), Some("one".to_owned()));
    store.commit(delete("a/k", Any)).await.unwrap();
    refused(put("a/k", At(Revision(1)), "x"), None).await;
    refused(put("a/k", At(Revision(2)), "x"), None).await;
    refused(delete("a/k", Any), None).await;
}

pub(crate) async fn of_writers_that_race_for_one_key_one_wins(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    let mut expected = Absent;
    for round in 0..5 {
        let racing = (0..20).map(|_| store.commit(put("a/k", expected, "x")));
        let results = join_all(racing).await;
        let won: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1);
        assert_eq!(won[0].revision, Revision(round + 1));
        expected = At(won[0].revision);
    }
}

pub(crate) async fn concurrent_changes_of_many_keys_are_all_made(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    let made = join_all((0..300).map(|at| {
        let name = format!("a/k{at}");
        let store: &dyn ConfigStore = &*store;
        async move { store.commit(put(&name, Absent, &name)).await.unwrap() }
    }));
    let mut revisions: Vec<_> = made.await.iter().map(|entry| entry.revision.0).collect();
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=300).collect::<Vec<_>>());
    assert_eq!(store.list(Scope::All).await.unwrap().entries.len(), 300);
}

pub(crate) async fn a_key_that_is_made_again_is_another(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    store.commit(put("a/k", Absent, "one")).await.unwrap();
    store.commit(delete("a/k", Any)).await.unwrap();
    let again = store.commit(put("a/k", Absent, "two")).await.unwrap();
    assert_eq!((again.revision, again.created), (Revision(3), Revision(3)));
}

pub(crate) async fn a_list_is_one_kind_at_one_revision(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    for name in ["b/2", "a/1", "b/1", "bb/1", "b/3"] {
        store.commit(put(name, Absent, name)).await.unwrap();
    }
    store.commit(delete("b/3", Any)).await.unwrap();
    let names = async |scope| {
        let listing = store.list(scope).await.unwrap();
        assert_eq!(listing.revision, Revision(6));
        listing.entries.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(Scope::kind("b")).await, ["b/1", "b/2"]);
    assert_eq!(names(Scope::kind("c")).await, Vec::<String>::new());
    assert_eq!(names(Scope::All).await, ["a/1", "b/1", "b/2", "bb/1"]);
}

pub(crate) async fn a_watch_begins_with_what_there_is_and_goes_on(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    store.commit(put("a/k", Any, "1")).await.unwrap();
    store.commit(put("a/l", Any, "2")).await.unwrap();
    store.commit(put("a/k", Any, "3")).await.unwrap();
    let mut watch = store.watch(Scope::All, Revision::ZERO);
    assert_eq!(next(&mut watch, 2).await, [at(2, "a/l", "2"), at(3, "a/k", "3")]);
    assert!(watch.next().now_or_never().is_none(), "it waits");
    store.commit(delete("a/l", Any)).await.unwrap();
    store.commit(put("a/m", Any, "5")).await.unwrap();
    assert_eq!(next(&mut watch, 2).await, [gone(4, "a/l"), at(5, "a/m", "5")]);
}

pub(crate) async fn a_watch_goes_on_from_a_list_without_a_gap(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    store.commit(put("a/k", Any, "1")).await.unwrap();
    let listing = store.list(Scope::All).await.unwrap();
    store.commit(put("a/l", Any, "2")).await.unwrap();
    store.commit(delete("a/k", Any)).await.unwrap();
    let mut watch = store.watch(Scope::All, listing.revision);
    assert_eq!(next(&mut watch, 2).await, [at(2, "a/l", "2"), gone(3, "a/k")]);
}

pub(crate) async fn a_watch_of_one_kind_sees_no_other(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    let mut watch = store.watch(Scope::kind("b"), Revision::ZERO);
    for name in ["a/1", "b/1", "bb/1", "a/2", "b/2"] {
        store.commit(put(name, Any, name)).await.unwrap();
    }
    assert_eq!(next(&mut watch, 2).await, [at(2, "b/1", "b/1"), at(5, "b/2", "b/2")]);
    store.commit(put("a/1", Any, "x")).await.unwrap();
    assert!(watch.next().now_or_never().is_none());
}

pub(crate) async fn a_watch_delivers_by_rising_revision_and_ends_with_the_newest_of_every_key(
    adapter: impl Adapter,
) {
    let (store, _ground) = adapter.open(Limits::default());
    let mut watch = store.watch(Scope::All, Revision::ZERO);
    let writing = async {
        for round in 0..50_u64 {
            let changes = (0..5).map(|at| {
                let name = format!("a/{}", (round * 3 + at) % 11);
                let text = format!("{round}.{at}");
                let store: &dyn ConfigStore = &*store;
                async move { store.commit(put(&name, Any, &text)).await.unwrap() }
            });
            join_all(changes).await;
            // The watcher gets its turn.
            tokio::task::yield_now().await;
        }
    };
    let watching = async {
        let mut last = Revision::ZERO;
        let mut seen: HashMap<Key, Entry> = HashMap::new();
        while last < Revision(250) {
            let entry = watch.next().await.unwrap().unwrap();
            assert!(entry.revision > last);
            last = entry.revision;
            seen.insert(entry.key.clone(), entry);
        }
        seen
    };
    let ((), seen) = tokio::join!(writing, watching);
    for entry in store.list(Scope::All).await.unwrap().entries {
        assert_eq!(seen.get(&entry.key), Some(&entry));
    }
}

pub(crate) async fn a_slow_watcher_skips_states_and_never_the_newest(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    let mut watch = store.watch(Scope::All, Revision::ZERO);
    store.commit(put("a/k", Any, "0")).await.unwrap();
    store.commit(put("a/l", Any, "0")).await.unwrap();
    assert_eq!(next(&mut watch, 1).await, [at(1, "a/k", "0")]);
    for round in 1..=500 {
        store.commit(put("a/k", Any, &round.to_string())).await.unwrap();
    }
    assert_eq!(next(&mut watch, 2).await, [at(2, "a/l", "0"), at(502, "a/k", "500")]);
    assert!(watch.next().now_or_never().is_none());
}

pub(crate) async fn a_watch_goes_on_only_where_nothing_was_forgotten(adapter: impl Adapter) {
    let limits = Limits { tombstones: 2, ..Limits::default() };
    let (store, _ground) = adapter.open(limits);
    let mut slow = store.watch(Scope::All, Revision::ZERO);
    for name in ["a/1", "a/2", "a/3"] {
        store.commit(put(name, Absent, name)).await.unwrap();
    }
    assert_eq!(next(&mut slow, 1).await, [at(1, "a/1", "a/1")]);
    for name in ["a/1", "a/2", "a/3"] {
        store.commit(delete(name, Any)).await.unwrap();
    }
    // The deletion at revision 4 is forgotten. Who has not seen it would keep a key for ever.
    let cannot = |item: Option<Result<Entry, StoreError>>, after: u64| match item {
        Some(Err(StoreError::CannotResume { after: found, oldest, newest })) => {
            assert_eq!((found.0, oldest.0, newest.0), (after, 4, 6));
        }
        other => panic!("{other:?}"),
    };
    cannot(slow.next().await, 1);
    assert!(slow.next().await.is_none(), "the error is the last item");
    cannot(store.watch(Scope::All, Revision(3)).next().await, 3);
    cannot(store.watch(Scope::All, Revision(7)).next().await, 7);
    let mut watch = store.watch(Scope::All, Revision(4));
    assert_eq!(next(&mut watch, 2).await, [gone(5, "a/2"), gone(6, "a/3")]);
    let mut watch = store.watch(Scope::All, Revision::ZERO);
    assert_eq!(next(&mut watch, 2).await, [gone(5, "a/2"), gone(6, "a/3")]);
}

pub(crate) async fn a_watch_ends_with_its_store(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    let mut watch = store.watch(Scope::All, Revision::ZERO);
    let ((), ended) = tokio::join!(
        async move {
            tokio::task::yield_now().await;
            assert_eq!(Arc::strong_count(&store), 1);
            drop(store);
        },
        watch.next()
    );
    assert!(ended.is_none());
}

pub(crate) async fn what_is_too_large_or_too_much_is_refused(adapter: impl Adapter) {
    let limits = Limits { document_bytes: 100, total_bytes: 150, ..Limits::default() };
    let (store, _ground) = adapter.open(limits);
    let refused = store.commit(put("a/k", Any, &"x".repeat(101))).await;
    assert!(matches!(refused, Err(StoreError::Invalid { what: "document", .. })), "{refused:?}");
    let mut change = put("a/k", Any, "x");
    change.author = "x".repeat(257).into();
    let refused = store.commit(change).await;
    assert!(matches!(refused, Err(StoreError::Invalid { what: "author", .. })), "{refused:?}");
    store.commit(put("a/k", Any, &"x".repeat(100))).await.unwrap();
    let refused = store.commit(put("a/l", Any, &"x".repeat(100))).await;
    assert!(matches!(refused, Err(StoreError::Full { limit: 150 })), "{refused:?}");
    store.commit(delete("a/k", Any)).await.unwrap();
    store.commit(put("a/l", Any, &"x".repeat(100))).await.unwrap();
    assert_eq!(store.revision(), Revision(3));
}

pub(crate) async fn the_history_tells_every_change_in_pages(adapter: impl Adapter) {
    let (store, _ground) = adapter.open(Limits::default());
    let empty = store.history(Revision::ZERO, 10).await.unwrap();
    assert_eq!((empty.changes.len(), empty.oldest), (0, None));
    let mut made = Vec::new();
    for round in 0..100 {
        let name = format!("a/{}", round % 7);
        let change = if round % 10 == 9 {
            delete(&name, Any)
        } else {
            put(&name, Any, &format!("a document of some length, the {round}th"))
        };
        made.push(store.commit(change).await.unwrap());
    }
    let (mut told, mut after) = (Vec::new(), Revision::ZERO);
    loop {
        let page = store.history(after, 9).await.unwrap();
        assert_eq!(page.oldest, Some(Revision(1)));
        let Some(last) = page.changes.last() else { break };
        after = last.revision;
        told.extend(page.changes);
    }
    assert_eq!(told, made);
    assert!(store.history(Revision(1000), 9).await.unwrap().changes.is_empty());
}
