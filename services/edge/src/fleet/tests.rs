use std::time::Duration;

use domain::{BackendId, CacheConfig, EngineKind, Incarnation, RankState};
use settings::Redacted;

use super::*;

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

#[test]
fn a_models_metrics_outlive_its_backends() {
    let with = fleet(vec![backend("a", Some(16), vec![served("m", None)])]);
    let watch = watch(&with, &[]);
    let first = Arc::clone(&watch.current().model("m").unwrap().metrics);
    watch.update(&fleet(vec![]));
    watch.update(&with);
    assert!(Arc::ptr_eq(&first, &watch.current().model("m").unwrap().metrics));
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
