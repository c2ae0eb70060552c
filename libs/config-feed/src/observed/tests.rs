use std::time::Duration;

use domain::{BackendState, EngineKind, Incarnation, Moment, ServedModel};

use super::*;

fn load(running: u32) -> LoadSample {
    LoadSample {
        at: Moment::from_nanos(u64::from(running)),
        running,
        waiting: 0,
        kv_usage: None,
        preemptions: None,
        prefix_cache: None,
        prefills: None,
    }
}

fn backend(id: &str, state: BackendState, running: u32) -> Arc<Backend> {
    Arc::new(Backend {
        id: id.into(),
        incarnation: Incarnation(1),
        url: "http://127.0.0.1:1".into(),
        engine: EngineKind::Vllm,
        state,
        models: Vec::new(),
        ranks: vec![RankState { rank: 0, cache: None, slots: None, load: Some(load(running)) }],
        network: Duration::ZERO,
        credential: None,
    })
}

fn fleet(revision: u64, backends: &[&Arc<Backend>]) -> Arc<Fleet> {
    Arc::new(Fleet { revision, backends: backends.iter().map(|b| (*b).clone()).collect() })
}

fn ids(change: &FleetChange) -> Vec<&str> {
    change.changed.iter().map(|b| b.id.as_str()).collect()
}

#[test]
fn only_backends_that_changed_are_told_and_loads_wait_for_their_turn() {
    let mut observed = Observed::new(7);
    let ready = BackendState::Ready;
    let (a, b) = (backend("a", ready, 0), backend("b", ready, 0));
    let first = observed.update(&fleet(1, &[&a, &b]));
    assert!(first.len() == 1 && first[0].whole && !first[0].more);
    assert_eq!((ids(&first[0]), first[0].start), (vec!["a", "b"], 7));
    assert_eq!(observed.update(&fleet(2, &[&a, &b])), []);

    let busy = backend("a", ready, 5);
    assert_eq!(observed.update(&fleet(3, &[&busy, &b])), [], "loads are not told by the way");
    assert_eq!(observed.standing(), (7, 1), "nor does a heartbeat ask for them");
    let loads = observed.take_loads().expect("one is another");
    assert_eq!(loads.backends, [("a".into(), vec![(0, load(5))])]);
    assert_eq!(observed.take_loads(), None);

    let (down, c) = (backend("b", BackendState::Down, 9), backend("c", ready, 1));
    let change = observed.update(&fleet(4, &[&down, &c]));
    assert!(change.len() == 1 && !change[0].whole);
    assert_eq!((ids(&change[0]), &change[0].removed), (vec!["b", "c"], &vec!["a".into()]));
    assert_eq!(observed.standing(), (7, 4));
    assert_eq!(observed.take_loads(), None, "their loads were told with them");
}

#[test]
fn a_large_fleet_is_told_in_parts_that_count_with_the_last() {
    let listing: Arc<str> = "x".repeat(300_000).into();
    let large = |id: &str| {
        let model = ServedModel {
            id: "m".into(),
            max_model_len: None,
            listing: listing.clone(),
            parity: None,
            base: None,
        };
        Arc::new(Backend { models: vec![model], ..(*backend(id, BackendState::Ready, 0)).clone() })
    };
    let backends: Vec<_> = (0..10).map(|n| large(&format!("b{n}"))).collect();
    let mut observed = Observed::new(1);
    let parts = observed.update(&Arc::new(Fleet { revision: 1, backends }));
    assert_eq!(parts.len(), 4, "three go into a part of 1 MiB");
    assert!(parts[..3].iter().all(|part| part.more) && !parts[3].more);
    assert!(parts.iter().all(|part| part.whole && part.revision == 1));
    assert_eq!(parts.iter().map(|part| part.changed.len()).sum::<usize>(), 10);
}
