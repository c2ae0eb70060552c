use std::time::Duration;

use domain::{BackendId, CacheConfig, EngineKind, Incarnation, RankState};
use settings::Redacted;

use super::series::{KEPT_FOR, MOST};
use super::*;
use crate::endpoint::Endpoint;
use crate::metrics::Outcome;

fn served(id: &str, parity: Option<bool>) -> ServedModel {
    ServedModel {
        id: ModelId::from(id),
        max_model_len: None,
        listing: format!(r#"{{"id":"{id}","from":"test"}}"#).into(),
        parity,
        base: None,
    }
}

fn backend(id: &str, block: Option<u32>, models: Vec<ServedModel>) -> Backend {
    let cache = block.map(|block_size| CacheConfig {
        block_size,
        usable_blocks: 100,
        prefix_caching: true,
    });
    Backend {
        id: BackendId::from(id),
        incarnation: Incarnation(1),
        url: "http://127.0.0.1:1".into(),
        engine: EngineKind::Vllm,
        state: BackendState::Ready,
        models,
        ranks: vec![RankState { rank: 0, cache, slots: None, load: None }],
        network: Duration::ZERO,
        credential: None,
    }
}

fn fleet(backends: Vec<Backend>) -> Fleet {
    Fleet { revision: 1, backends: backends.into_iter().map(Arc::new).collect() }
}

fn watch(fleet: &Fleet, folders: &[&str]) -> FleetWatch {
    let folders = folders.iter().map(|m| (ModelId::from(*m), ModelFolder::builtin())).collect();
    let families = Families::default();
    let keys = EngineKeys::new(NamedKeys::default(), families.backends_without_key.clone());
    FleetWatch::new(fleet, folders, keys, families)
}

fn units(watch: &FleetWatch, model: &str) -> (Vec<BlockUnit>, bool) {
    let view = watch.current();
    let model = view.model(model).unwrap();
    (model.token_units.clone(), model.by_text)
}

#[test]
fn keys_are_made_in_every_unit_that_is_in_use_and_in_each_once() {
    let fleet = fleet(vec![
        backend("a", Some(16), vec![served("m", Some(true))]),
        backend("b", Some(16), vec![served("m", None)]),
        backend("c", Some(32), vec![served("m", None)]),
        backend("d", Some(16), vec![served("m", Some(false))]),
    ]);
    let tokens = BlockUnit::Tokens;
    assert_eq!(units(&watch(&fleet, &["m"]), "m"), (vec![tokens(16), tokens(32)], true));
}

#[test]
fn a_cache_that_cannot_be_mirrored_is_indexed_by_text() {
    let silent = backend("a", None, vec![served("m", None)]);
    assert_eq!(units(&watch(&fleet(vec![silent]), &["m"]), "m"), (vec![], true));
    let slots =
        Backend { engine: EngineKind::LlamaCpp, ..backend("a", Some(16), vec![served("m", None)]) };
    assert_eq!(units(&watch(&fleet(vec![slots]), &["m"]), "m"), (vec![], true));
}

#[test]
fn only_ready_backends_count() {
    let down =
        Backend { state: BackendState::Down, ..backend("a", Some(16), vec![served("gone", None)]) };
    let fleet = fleet(vec![down, backend("b", Some(16), vec![served("m", None)])]);
    let watch = watch(&fleet, &[]);
    assert!(watch.current().model("gone").is_none());
    let ids: Vec<_> = watch.current().models().map(|m| m.id.clone()).collect();
    assert_eq!(ids, [ModelId::from("m")]);
}

fn metrics(watch: &FleetWatch, model: &str) -> Arc<ModelMetrics> {
    Arc::clone(&watch.current().model(model).unwrap().metrics)
}

/// A watch, and what it counts into.
fn watched(fleet: &Fleet) -> (FleetWatch, Families) {
    let families = Families::default();
    let keys = EngineKeys::new(NamedKeys::default(), families.backends_without_key.clone());
    (FleetWatch::new(fleet, HashMap::new(), keys, families.clone()), families)
}

/// How many series have the model's name.
fn series_of(families: &Families, model: &str) -> usize {
    let registry = instrumentation::Registry::new();
    families.register(&registry).unwrap();
    let label = format!("model=\"{model}\"");
    instrumentation::encode(&registry).lines().filter(|line| line.contains(&label)).count()
}

#[tokio::test(start_paused = true)]
async fn a_models_series_outlive_its_backends_for_a_while_and_then_go() {
    let with = fleet(vec![backend("a", Some(16), vec![served("m", None)])]);
    let (watch, families) = watched(&with);
    let first = metrics(&watch, "m");
    first.count(Endpoint::Chat, Outcome::Ok, 0.1);
    drop(first);
    watch.update(&fleet(vec![]));
    tokio::time::advance(KEPT_FOR - Duration::from_secs(1)).await;
    watch.update(&with);
    first_still_counts(&families);

    watch.update(&fleet(vec![]));
    tokio::time::advance(KEPT_FOR).await;
    watch.update(&fleet(vec![]));
    assert_eq!(series_of(&families, "m"), 0);
    watch.update(&with);
    assert!(series_of(&families, "m") > 0);
}

#[track_caller]
fn first_still_counts(families: &Families) {
    let registry = instrumentation::Registry::new();
    families.register(&registry).unwrap();
    let line = r#"warmpath_edge_requests_total{model="m",outcome="ok",route="chat"} 1"#;
    assert!(instrumentation::encode(&registry).lines().any(|l| l == line));
}

#[tokio::test(start_paused = true)]
async fn a_models_series_stay_while_a_backend_lists_it_or_a_request_counts_in_them() {
    let down = |models| Backend { state: BackendState::Down, ..backend("a", Some(16), models) };
    let ready = fleet(vec![backend("a", Some(16), vec![served("m", None)])]);
    let (watch, families) = watched(&ready);
    for listed in [true, false] {
        let open = (!listed).then(|| metrics(&watch, "m"));
        let models = if listed { vec![served("m", None)] } else { vec![] };
        for _ in 0..3 {
            watch.update(&fleet(vec![down(models.clone())]));
            tokio::time::advance(KEPT_FOR).await;
        }
        assert!(series_of(&families, "m") > 0, "{listed}");
        drop(open);
        watch.update(&ready);
    }
}

#[test]
fn however_many_models_come_and_go_those_that_are_there_have_series_of_their_own() {
    let of = |names: std::ops::Range<usize>| {
        let models = names.map(|i| served(&format!("m{i}"), None)).collect();
        fleet(vec![backend("a", Some(16), models)])
    };
    let (watch, families) = watched(&of(0..MOST + 1));
    let is_other =
        |model: usize| Arc::ptr_eq(&metrics(&watch, &format!("m{model}")), watch.other());
    assert!((0..MOST).all(|i| !is_other(i)) && is_other(MOST), "no more than so many at one time");
    watch.update(&of(MOST..MOST + 2));
    watch.update(&of(MOST..MOST + 2));
    assert!(!is_other(MOST) && !is_other(MOST + 1), "the others make room");
    assert_eq!(series_of(&families, "m0"), 0);
    assert!(series_of(&families, &format!("m{MOST}")) > 0);
}

#[test]
fn a_backends_key_is_what_its_name_stands_for_here_and_comes_and_goes_with_it() {
    let asks = |id: &str, name: &str| Backend {
        credential: Some(name.into()),
        ..backend(id, Some(16), vec![])
    };
    let families = Families::default();
    let without_key = families.backends_without_key.clone();
    let named = |key: &str| {
        let keys = HashMap::from([("gpus".to_owned(), Redacted::new(key.to_owned()))]);
        NamedKeys::new(&keys).unwrap()
    };
    let keys = EngineKeys::new(named("secret"), without_key.clone());
    let first = fleet(vec![asks("a", "gpus"), asks("b", "cpus"), backend("c", None, vec![])]);
    let watch = FleetWatch::new(&first, HashMap::new(), keys, families);
    let key = |id: &str| watch.current().key(&BackendId::from(id));
    assert_eq!(key("a").unwrap(), "Bearer secret");
    assert!(key("a").unwrap().is_sensitive());
    assert_eq!((key("b"), key("c")), (None, None));
    assert_eq!(without_key.get(), 1);

    let second = fleet(vec![backend("a", None, vec![]), asks("b", "gpus")]);
    watch.update(&second);
    assert_eq!(key("a"), None, "it asks for none any more");
    assert_eq!(key("b").unwrap(), "Bearer secret");
    assert_eq!(without_key.get(), 0);

    watch.rekey(named("another"), || Arc::new(second.clone()));
    assert_eq!(key("b").unwrap(), "Bearer another");
    watch.rekey(NamedKeys::default(), || Arc::new(second.clone()));
    assert_eq!((key("b"), without_key.get()), (None, 1));
}
