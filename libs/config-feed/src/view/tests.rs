use std::time::Duration;

use bytes::Bytes;
use domain::{BackendState, EngineKind, Incarnation};
use replication::Epoch;

use super::*;
use crate::Document;

fn backend(id: &str) -> Arc<Backend> {
    Arc::new(Backend {
        id: id.into(),
        incarnation: Incarnation(1),
        url: "http://127.0.0.1:1".into(),
        engine: EngineKind::Vllm,
        state: BackendState::Ready,
        models: Vec::new(),
        ranks: Vec::new(),
        network: Duration::ZERO,
        credential: None,
    })
}

fn change(start: u64, revision: u64, whole: bool, ids: &[&str]) -> FleetChange {
    let changed = ids.iter().map(|id| backend(id)).collect();
    FleetChange { start, revision, whole, changed, removed: Vec::new(), more: false }
}

fn fleet(view: &mut View, change: FleetChange) -> bool {
    view.apply(Event::Fleet(Arc::new(change))).fleet
}

fn ids(view: &View) -> Vec<String> {
    view.fleet().backends.iter().map(|b| b.id.to_string()).collect()
}

fn tenant(id: &str, revision: u64, json: Option<&str>) -> Event {
    Event::Document(Arc::new(Document {
        kind: "tenants".into(),
        id: id.into(),
        revision,
        schema: (1, 0),
        json: json.map(|json| Bytes::copy_from_slice(json.as_bytes())),
    }))
}

fn position(store: &str, revision: u64) -> Position {
    Position { store: store.into(), revision }
}

fn heartbeat(position: Position, start: u64, fleet_revision: u64) -> Event {
    Event::Heartbeat(Heartbeat { position, start, fleet_revision, epoch: Epoch::ZERO })
}

#[test]
fn a_fleet_of_another_start_counts_only_once_it_is_whole() {
    let mut view = View::default();
    assert!(fleet(&mut view, change(1, 5, true, &["a", "b"])));
    assert!(!fleet(&mut view, change(2, 1, false, &["c"])), "it changes what we do not have");
    assert_eq!(ids(&view), ["a", "b"]);
    let part = FleetChange { more: true, ..change(2, 2, true, &["c"]) };
    assert!(!fleet(&mut view, part));
    assert_eq!(ids(&view), ["a", "b"], "the old one stands");
    assert!(fleet(&mut view, change(2, 2, false, &["d"])));
    assert_eq!(ids(&view), ["c", "d"]);
    assert_eq!(view.fleet().revision, 2, "our own count goes on");
    assert!(!fleet(&mut view, change(3, 1, true, &["c", "d"])), "the same is no change");
    let gone = FleetChange { removed: vec!["c".into()], ..change(3, 2, false, &[]) };
    assert!(fleet(&mut view, gone));
    assert_eq!(ids(&view), ["d"]);
}

#[test]
fn parts_of_a_watch_that_ended_are_void() {
    let mut view = View::default();
    fleet(&mut view, change(1, 1, true, &["a"]));
    fleet(&mut view, FleetChange { more: true, ..change(1, 2, true, &["b"]) });
    view.begin();
    assert!(fleet(&mut view, change(1, 3, true, &["a", "c"])));
    assert_eq!(ids(&view), ["a", "c"]);
}

#[test]
fn a_restart_replaces_the_documents_in_one_step() {
    let mut view = View::default();
    view.apply(Event::Restart);
    assert!(!view.apply(tenant("a", 1, Some(r#"{"id":"a"}"#))).documents);
    assert!(view.documents().tenants.is_empty(), "not before everything is there");
    assert!(view.apply(Event::Synced(position("s", 1))).documents);
    assert_eq!(view.position(), position("s", 1));
    assert!(view.apply(tenant("b", 2, Some(r#"{"id":"b"}"#))).documents);
    assert_eq!(view.documents().tenants.len(), 2);

    view.apply(Event::Restart);
    view.apply(tenant("c", 1, Some(r#"{"id":"c"}"#)));
    assert_eq!(view.documents().tenants.len(), 2);
    view.begin();
    assert_eq!(view.position(), position("s", 1), "as far as it was whole");
    view.apply(Event::Restart);
    view.apply(tenant("d", 9, Some(r#"{"id":"d"}"#)));
    view.apply(Event::Synced(position("t", 9)));
    let tenants: Vec<&str> = view.documents().tenants.keys().map(|id| &**id).collect();
    assert_eq!(tenants, ["d"]);
}

#[test]
fn a_document_that_cannot_be_read_counts_as_deleted() {
    let mut view = View::default();
    view.apply(tenant("a", 1, Some(r#"{"id":"a"}"#)));
    let changed = view.apply(tenant("a", 2, Some(r#"{"id":"b"}"#)));
    assert!(changed.undecoded == 1 && changed.documents);
    assert!(view.documents().tenants.is_empty());
    view.apply(tenant("a", 3, Some(r#"{"id":"a"}"#)));
    view.apply(tenant("a", 4, None));
    assert!(view.documents().tenants.is_empty());
}

#[test]
fn a_heartbeat_with_more_than_we_have_asks_for_it() {
    let mut view = View::default();
    view.apply(Event::Synced(position("s", 4)));
    fleet(&mut view, change(1, 5, true, &["a"]));
    let behind = |view: &mut View, event| view.apply(event).behind;
    assert!(!behind(&mut view, heartbeat(position("s", 4), 1, 5)));
    assert!(!behind(&mut view, heartbeat(position("s", 4), 0, 0)), "nothing is told of it yet");
    assert!(!behind(&mut view, heartbeat(position("", 0), 1, 5)));
    assert!(behind(&mut view, heartbeat(position("s", 5), 1, 5)));
    assert!(behind(&mut view, heartbeat(position("t", 1), 1, 5)));
    assert!(behind(&mut view, heartbeat(position("s", 4), 1, 6)));
    assert!(behind(&mut view, heartbeat(position("s", 4), 2, 1)));
}
