use std::collections::BTreeSet;

use super::*;

fn document(kind: &str, id: &str, revision: u64, json: Option<&'static str>) -> Document {
    Document {
        kind: kind.into(),
        id: id.into(),
        revision,
        schema: (1, 0),
        json: json.map(|json| Bytes::from_static(json.as_bytes())),
    }
}

fn position(revision: u64) -> Position {
    Position { store: "s".into(), revision }
}

fn hub() -> Arc<Hub> {
    let hub = Hub::new(1, Moment::ZERO);
    hub.replace(position(2), [document("tenants", "a", 1, Some("{}"))]);
    hub
}

/// What a watch says by now, heartbeats left out.
fn told(watch: &mut Watch) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(frame) = watch.ready() {
        match &frame.event {
            Event::Heartbeat(_) => {}
            Event::Document(document) => told.push(format!("{document:?}")),
            Event::Synced(position) => told.push(format!("synced {}", position.revision)),
            other => told.push(format!("{other:?}")),
        }
    }
    told
}

#[test]
fn a_watcher_goes_on_from_a_revision_that_is_known_and_else_begins_anew() {
    let hub = hub();
    hub.document(document("tenants", "b", 3, Some("{}")));
    hub.document(document("tenants", "a", 4, None));
    let restart = ["Restart", "tenants/b@3", "tenants/a@4 deleted", "synced 4"];
    for from in [Position::default(), position(1), position(9)] {
        assert_eq!(told(&mut hub.watch(from.clone())), restart, "{from:?}");
    }
    let other = Position { store: "t".into(), revision: 3 };
    assert_eq!(told(&mut hub.watch(other)), restart);
    assert_eq!(told(&mut hub.watch(position(3))), ["tenants/a@4 deleted", "synced 4"]);
    let mut watch = hub.watch(position(4));
    assert_eq!(told(&mut watch), ["synced 4"]);
    hub.document(document("join-tokens", "t", 5, Some("{}")));
    assert_eq!(told(&mut watch), ["synced 5"], "tokens are not carried, their revisions are");
}

#[test]
fn a_watcher_that_falls_behind_is_brought_to_the_present() {
    let hub = hub();
    let mut watch = hub.watch(Position::default());
    told(&mut watch);
    for revision in 3..3 + RING as u64 {
        hub.document(document("tenants", "b", revision, Some("{}")));
    }
    let last = 2 + RING as u64;
    let newest = format!("tenants/b@{last}");
    assert_eq!(told(&mut watch), [newest, format!("synced {last}")]);
    hub.replace(Position { store: "t".into(), revision: 1 }, []);
    assert_eq!(told(&mut watch), ["Restart", "synced 1"]);
}

#[test]
fn deletions_are_remembered_up_to_a_bound() {
    let hub = hub();
    let mut revision = 2;
    for n in 0..=TOMBSTONES as u64 {
        for json in [Some("{}"), None] {
            revision += 1;
            hub.document(document("keys", &format!("k{n}"), revision, json));
        }
    }
    // The first key was made at 3 and deleted at 4.
    assert_eq!(told(&mut hub.watch(position(3)))[0], "Restart");
    assert_ne!(told(&mut hub.watch(position(4)))[0], "Restart");
    let everything = told(&mut hub.watch(Position::default()));
    assert!(!everything.contains(&"keys/k0@4 deleted".to_owned()));
    assert_eq!(everything.len(), 3 + TOMBSTONES, "restart, the tenant, deletions, synced");
}

#[test]
fn all_watchers_share_the_bytes_of_a_change() {
    let hub = hub();
    let mut watches: Vec<Watch> = (0..12).map(|_| hub.watch(Position::default())).collect();
    watches.iter_mut().for_each(|watch| drop(told(watch)));
    hub.document(document("tenants", "b", 3, Some("{}")));
    let bytes = watches.iter_mut().map(|watch| watch.ready().expect("a change").bytes());
    let places: BTreeSet<*const u8> = bytes.map(|bytes| bytes.as_ptr()).collect();
    assert_eq!(places.len(), 1);
}

#[test]
fn nothing_is_told_before_there_is_something_to_tell() {
    let hub = Hub::new(1, Moment::ZERO);
    let mut watch = hub.watch(Position::default());
    assert_eq!(told(&mut watch), [] as [&str; 0]);
    hub.replace(position(0), []);
    assert_eq!(told(&mut watch), ["Restart", "synced 0"]);
}
