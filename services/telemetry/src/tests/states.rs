//! When a backend takes requests and when not.

use domain::BackendState;

use super::kit::{Engine, Script, Watch, page};

#[tokio::test]
async fn a_backend_that_answers_becomes_ready_with_all_that_it_tells() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    assert_eq!(ready.engine, domain::EngineKind::Vllm);
    assert_eq!(&*ready.url, format!("http://{}", engine.address));
    assert_eq!(ready.models.len(), 1, "models are known before it is ready");
    assert_eq!(ready.models[0].max_model_len, Some(4096));
    assert!(ready.models[0].listing.contains("/models/model"), "the listing is kept whole");
    let rank = &ready.ranks[0];
    let cache = rank.cache.expect("the cache is known before it is ready");
    assert_eq!((cache.block_size, cache.usable_blocks), (16, 600));
    let load = rank.load.expect("the load is known");
    assert_eq!((load.running, load.waiting), (2, 1));
    assert!(ready.network.as_millis() < 100);
    let metrics = watch.metrics();
    assert!(metrics.contains("backend_state{backend=\"a\",state=\"ready\"} 1"), "{metrics}");
    assert!(metrics.contains("backend_state{backend=\"a\",state=\"joining\"} 0"), "{metrics}");
    watch.stop().await;
}

#[tokio::test]
async fn a_backend_that_is_loading_is_not_ready_and_then_it_is() {
    let engine = Engine::start(Script { health: 503, ..Script::default() }).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.asked(&engine, 5).await;
    assert_eq!(watch.now("a").state, BackendState::Joining);
    engine.change(|s| s.health = 200);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    watch.stop().await;
}

#[tokio::test]
async fn a_backend_that_lists_no_model_is_not_ready() {
    let engine = Engine::start(Script { models: (500, String::new()), ..Script::default() }).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.asked(&engine, 8).await;
    assert_eq!(watch.now("a").state, BackendState::Joining);
    engine.change(|s| s.models = Script::default().models);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    watch.stop().await;
}

#[tokio::test]
async fn an_engine_without_health_is_probed_by_its_model_list() {
    let script = Script { health: 404, metrics: (501, String::new()), ..Script::default() };
    let engine = Engine::start(script).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    assert_eq!(ready.ranks.len(), 1);
    assert_eq!(ready.ranks[0].load, None);
    engine.change(|s| s.models.0 = 500);
    watch.until("a", "down", |b| b.state == BackendState::Down).await;
    watch.stop().await;
}

#[tokio::test]
async fn a_serving_backend_without_metrics_stays_ready_with_what_was_known() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    for broken in [(500, String::new()), (200, "not a page".to_owned())] {
        engine.change(|s| s.metrics = broken);
        watch.asked(&engine, 20).await;
        let backend = watch.now("a");
        assert_eq!(backend.state, BackendState::Ready);
        assert_eq!(backend.ranks[0].load.expect("kept").running, 2);
        assert!(backend.ranks[0].cache.is_some());
    }
    let metrics = watch.metrics();
    assert!(metrics.contains("undecoded_total{backend=\"a\"}"), "{metrics}");
    watch.stop().await;
}

#[tokio::test]
async fn a_health_probe_outweighs_a_metrics_page() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    // The server of the metrics lives, its engine does not.
    engine.change(|s| s.health = 503);
    watch.until("a", "down", |b| b.state == BackendState::Down).await;
    watch.stop().await;
}

#[tokio::test]
async fn a_backend_that_falls_silent_goes_down_and_hinders_no_other() {
    let (quiet, well) =
        (Engine::start(Script::default()).await, Engine::start(Script::default()).await);
    let mut watch = Watch::start(vec![quiet.backend("quiet"), well.backend("well")]);
    watch.until("quiet", "ready", |b| b.state == BackendState::Ready).await;
    watch.until("well", "ready", |b| b.state == BackendState::Ready).await;
    quiet.change(|s| s.silent = true);
    watch.asked(&well, 20).await;
    assert_eq!(watch.now("well").state, BackendState::Ready);
    watch.until("quiet", "down", |b| b.state == BackendState::Down).await;
    let metrics = watch.metrics();
    assert!(metrics.contains("probe_failures_total{backend=\"quiet\",reason=\"timeout\"}"));
    assert!(!metrics.contains("probe_failures_total{backend=\"well\""));
    watch.stop().await;
}

#[tokio::test]
async fn a_backend_that_was_down_comes_back_and_the_same_engine_keeps_its_life() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let before = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    engine.change(|s| s.health = 503);
    watch.until("a", "down", |b| b.state == BackendState::Down).await;
    engine.change(|s| s.health = 200);
    let after = watch.until("a", "ready again", |b| b.state == BackendState::Ready).await;
    assert_eq!(after.incarnation, before.incarnation, "its counters went on");
    watch.stop().await;
}

#[tokio::test]
async fn an_engine_that_restarted_while_down_is_a_new_incarnation() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let before = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    engine.change(|s| s.health = 503);
    watch.until("a", "down", |b| b.state == BackendState::Down).await;
    // It first answers without a model, then with one: the restart is not forgotten between.
    engine.change(|s| {
        s.health = 200;
        s.metrics.1 = page(200.0, 0, 0, 0);
        s.models.0 = 503;
    });
    watch.asked(&engine, 10).await;
    assert_eq!(watch.now("a").state, BackendState::Down);
    engine.change(|s| s.models.0 = 200);
    let after = watch.until("a", "ready again", |b| b.state == BackendState::Ready).await;
    assert!(after.incarnation > before.incarnation);
    watch.stop().await;
}

#[tokio::test]
async fn an_engine_that_restarts_between_two_probes_is_noticed_by_its_counters() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let before = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    engine.change(|s| s.metrics.1 = page(100.0, 10, 0, 0));
    let first = before.incarnation;
    let after = watch.until("a", "a new life", |b| b.incarnation > first).await;
    let next = after.incarnation;
    assert_eq!(after.state, BackendState::Ready);
    watch.asked(&engine, 20).await;
    assert_eq!(watch.now("a").incarnation, next, "it is noticed once");
    assert!(watch.metrics().contains("backend_restarts_total{backend=\"a\"} 1"));
    watch.stop().await;
}

#[tokio::test]
async fn a_backend_without_counters_that_was_down_is_taken_for_a_new_one() {
    let engine = Engine::start(Script { metrics: (404, String::new()), ..Script::default() }).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let before = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    engine.change(|s| s.health = 503);
    watch.until("a", "down", |b| b.state == BackendState::Down).await;
    engine.change(|s| s.health = 200);
    let after = watch.until("a", "ready again", |b| b.state == BackendState::Ready).await;
    assert!(after.incarnation > before.incarnation);
    watch.stop().await;
}

#[tokio::test]
async fn a_backend_that_is_not_there_is_probed_on_and_its_series_end_with_the_service() {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let reserved = tokio::net::TcpListener::bind(any).await.expect("loopback");
    let address = reserved.local_addr().expect("bound");
    drop(reserved);
    let raw = crate::RawBackend {
        id: "gone".into(),
        url: format!("http://{address}"),
        engine: None,
        api_key: None,
        credential: None,
    };
    let other = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![raw, other.backend("a")]);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    watch.asked(&other, 20).await;
    assert_eq!(watch.now("gone").state, BackendState::Joining);
    assert!(
        watch.metrics().contains("probe_failures_total{backend=\"gone\",reason=\"connect\"}"),
        "{}",
        watch.metrics()
    );
    let registry = watch.registry.clone();
    watch.stop().await;
    assert!(!instrumentation::encode(&registry).contains("backend=\""));
}
