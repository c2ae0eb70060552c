//! Adapters and other names of a model, which share its cache.

use domain::{Backend, Base, RejectReason, ServedModel};

use super::kit::*;

/// The backend, with more names over its model.
fn also(mut backend: Backend, names: &[(&str, bool)]) -> Backend {
    backend.models.extend(names.iter().map(|&(id, adapter)| ServedModel {
        id: id.into(),
        max_model_len: None,
        listing: "{}".into(),
        parity: None,
        base: Some(Base { model: "model".into(), adapter }),
    }));
    backend
}

#[test]
fn an_adapter_goes_only_where_it_is_served() {
    let mut bench = Bench::new(vec![vllm("plain"), also(vllm("with"), &[("sql", true)])]);
    for i in 0..6 {
        let mut route = bench.request(Some(doc(i, 4)));
        route.model = "sql".into();
        let decision = bench.router.route_at(&route, bench.now).expect("one serves it");
        assert_eq!(decision.chosen.rank.backend.as_str(), "with");
        assert!(decision.others.is_empty(), "{decision:?}");
    }
    let explained = bench.router.explain("r1").expect("kept").to_string();
    assert!(explained.contains("does not serve the model under this name"), "{explained}");
}

#[test]
fn an_adapter_and_its_model_share_one_cache_and_one_load() {
    let mut bench = Bench::new(vec![also(vllm("a"), &[("sql", true)])]);
    assert_eq!(bench.ranks().len(), 1);
    bench.serve(doc(1, 300));
    let mut route = bench.request(Some(doc(2, 400)));
    route.model = "sql".into();
    let decision = bench.router.route_at(&route, bench.now).expect("it is served");
    assert_eq!(bench.in_flight("a"), 1);
    bench.finish(decision.lease);
    // 600 blocks: the adapter's 401 have taken the tail of the model's 301.
    let again = bench.route(doc(1, 300));
    assert!((190..200).contains(&again.evidence.matched_blocks), "{:?}", again.evidence);
}

#[test]
fn a_name_that_is_gone_is_unknown_and_one_that_is_down_is_not() {
    let mut bench = Bench::new(vec![also(vllm("a"), &[("sql", true), ("latest", false)])]);
    let ask = |bench: &mut Bench, name: &str| {
        let mut route = bench.request(Some(doc(1, 4)));
        route.model = name.into();
        bench.router.route_at(&route, bench.now).map_err(|rejected| rejected.reason)
    };
    assert!(ask(&mut bench, "latest").is_ok());
    bench.reconcile(vec![vllm("a")]);
    assert_eq!(ask(&mut bench, "sql").err(), Some(RejectReason::UnknownModel));
    let mut down = also(vllm("a"), &[("sql", true)]);
    down.state = domain::BackendState::Down;
    bench.reconcile(vec![down, vllm("b")]);
    assert_eq!(ask(&mut bench, "sql").err(), Some(RejectReason::NoReadyBackend));
    assert!(ask(&mut bench, "model").is_ok());
}

#[test]
fn a_backend_keeps_what_is_known_of_it_when_adapters_come_and_go() {
    let mut bench = Bench::new(vec![vllm("a")]);
    bench.serve(doc(1, 20));
    bench.reconcile(vec![also(vllm("a"), &[("sql", true)])]);
    bench.reconcile(vec![vllm("a")]);
    assert_eq!(bench.route(doc(1, 20)).evidence.matched_blocks, 20);
}
