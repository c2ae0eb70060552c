//! What is learned of a backend while it serves.

use std::collections::HashMap;

use domain::{BackendState, EngineKind};
use tokenization::ModelFolder;

use super::kit::{Engine, Script, Tokenize, Watch, listing, page};

#[tokio::test]
async fn load_follows_the_metrics() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    engine.change(|s| s.metrics.1 = page(100.0, 1100, 7, 3));
    let loaded =
        watch.until("a", "the new load", |b| b.ranks[0].load.is_some_and(|l| l.running == 7)).await;
    assert_eq!(loaded.ranks[0].load.expect("just seen").waiting, 3);
    watch.stop().await;
}

#[tokio::test]
async fn adapters_that_come_and_go_are_seen() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    engine.change(|s| s.models.1 = listing(&["model", "adapter"]));
    watch.until("a", "the adapter", |b| b.serves(&"adapter".into())).await;
    engine.change(|s| s.models.1 = listing(&["model"]));
    watch.until("a", "no adapter", |b| !b.serves(&"adapter".into())).await;
    engine.change(|s| s.models.1 = "{broken".to_owned());
    watch.asked(&engine, 20).await;
    assert!(watch.now("a").serves(&"model".into()), "a list that cannot be read changes nothing");
    assert_eq!(watch.now("a").state, BackendState::Ready);
    watch.stop().await;
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let engine = Engine::start(Script::default()).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    engine.change(|s| {
        s.metrics.1 = "# nothing\n".repeat(500_000);
        s.models.1 = " ".repeat(2 << 20);
    });
    watch.asked(&engine, 20).await;
    let backend = watch.now("a");
    assert_eq!(backend.state, BackendState::Ready);
    assert!(backend.serves(&"model".into()));
    let metrics = watch.metrics();
    assert!(metrics.contains("scrape_failures_total{backend=\"a\",reason=\"too_large\"}"));
    assert!(metrics.contains("listing_failures_total{backend=\"a\"}"));
    watch.stop().await;
}

#[tokio::test]
async fn the_engine_is_found_out_unless_it_is_named() {
    let llama = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n";
    let script = Script { metrics: (200, llama.to_owned()), ..Script::default() };
    let engine = Engine::start(script).await;
    let other = Engine::start(Script::default()).await;
    let mut named = other.backend("named");
    named.engine = Some(EngineKind::Other);
    let mut watch = Watch::start(vec![engine.backend("found"), named]);
    let found = watch.until("found", "ready", |b| b.state == BackendState::Ready).await;
    assert_eq!(found.engine, EngineKind::LlamaCpp);
    assert_eq!(found.ranks[0].load.expect("its metrics are read").running, 1);
    let named = watch.until("named", "ready", |b| b.state == BackendState::Ready).await;
    assert_eq!(named.engine, EngineKind::Other);
    assert_eq!(named.ranks[0].load, None);
    watch.stop().await;
}

#[tokio::test]
async fn data_parallel_ranks_are_told_apart() {
    let both = format!(
        "{}vllm:num_requests_running{{engine=\"1\"}} 9\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"301\",engine=\"1\"}} 1\n",
        page(100.0, 5, 1, 0)
    );
    let engine = Engine::start(Script { metrics: (200, both), ..Script::default() }).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    let caches: Vec<u32> =
        ready.ranks.iter().map(|r| r.cache.expect("each has one").usable_blocks).collect();
    assert_eq!(caches, [600, 300]);
    watch.stop().await;
}

const SGLANG: &str = r#"{"page_size":1,"max_total_num_tokens":1600,"dp_size":2,
    "disable_radix_cache":false,"enable_cache_report":true}"#;

#[tokio::test]
async fn an_sglang_without_metrics_is_known_by_its_settings() {
    let models = listing(&["model"]).replace("vllm", "sglang");
    let script = Script {
        models: (200, models),
        metrics: (404, String::new()),
        settings: Some(SGLANG.to_owned()),
        ..Script::default()
    };
    let engine = Engine::start(script).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    assert_eq!(ready.engine, EngineKind::Sglang);
    let caches: Vec<u32> =
        ready.ranks.iter().map(|r| r.cache.expect("each has one").usable_blocks).collect();
    assert_eq!(caches, [1600, 1600]);
    watch.stop().await;
}

#[tokio::test]
async fn what_an_sglang_says_of_its_settings_counts_before_its_metrics() {
    let page = "sglang:num_running_reqs{tp_rank=\"0\"} 4\nsglang:page_size 1\nsglang:num_pages 9\n";
    let script = Script {
        metrics: (200, page.to_owned()),
        settings: Some(SGLANG.replace("false", "true")),
        ..Script::default()
    };
    let engine = Engine::start(script).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let seen = watch
        .until("a", "settings and load", |b| {
            b.ranks[0].load.is_some() && b.ranks[0].cache.is_some_and(|c| c.usable_blocks == 1600)
        })
        .await;
    assert!(!seen.ranks[0].cache.expect("just seen").prefix_caching);
    assert_eq!(seen.ranks[0].load.expect("just seen").running, 4);
    watch.stop().await;
}

#[tokio::test]
async fn a_llama_cpp_is_asked_for_its_slots() {
    let page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n";
    let script = Script {
        metrics: (200, page.to_owned()),
        settings: Some(r#"{"total_slots":3}"#.to_owned()),
        ..Script::default()
    };
    let engine = Engine::start(script).await;
    let mut watch = Watch::start(vec![engine.backend("a")]);
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    assert_eq!((ready.engine, ready.ranks[0].slots), (EngineKind::LlamaCpp, Some(3)));
    watch.until("a", "another reading", |b| b.ranks[0].load != ready.ranks[0].load).await;
    assert_eq!(watch.now("a").ranks[0].slots, Some(3), "kept over readings");
    watch.stop().await;
}

#[tokio::test]
async fn an_engine_that_tells_without_measure_is_read_up_to_a_bound() {
    let mut metrics = page(100.0, 1000, 2, 1);
    for rank in 1..300 {
        metrics.push_str(&format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n"));
    }
    let script = Script {
        metrics: (200, metrics),
        models: (200, listing(&["model", &"n".repeat(500_000), "a\u{1b}b"])),
        ..Script::default()
    };
    let engine = Engine::start(script).await;
    let mut watch = Watch::with(vec![engine.backend("a")], HashMap::new());
    let ready = watch.until("a", "its ranks", |b| b.ranks.len() > 1).await;
    assert_eq!(ready.ranks.len(), usize::from(engine::MAX_RANKS));
    let models: Vec<_> = ready.models.iter().map(|m| m.id.as_str()).collect();
    assert_eq!(models, ["model"]);
    let shown = watch.metrics();
    for (what, count) in [("ranks", 44), ("models", 2)] {
        let line = format!("warmpath_telemetry_left_out{{backend=\"a\",what=\"{what}\"}} {count}");
        assert!(shown.contains(&line), "{line} is not in {shown}");
    }
    assert!(shown.len() < 1 << 20, "{} bytes", shown.len());
    watch.stop().await;
}

#[tokio::test]
async fn an_adapter_has_its_models_tokenizer() {
    let folder = ModelFolder::builtin();
    let models = r#"{"data":[{"id":"model","root":"r","parent":null},
        {"id":"sql","root":"s","parent":"model"}]}"#;
    let script = Script {
        models: (200, models.to_owned()),
        tokenize: Tokenize::Wrong(folder.clone()),
        ..Script::default()
    };
    let engine = Engine::start(script).await;
    let mut watch =
        Watch::with(vec![engine.backend("a")], HashMap::from([("model".into(), folder)]));
    let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
    let parity: Vec<_> = ready.models.iter().map(|m| m.parity).collect();
    assert_eq!(parity, [Some(false), Some(false)]);
    watch.stop().await;
}

#[tokio::test]
async fn parity_is_known_before_a_backend_is_ready() {
    let folder = ModelFolder::builtin();
    let models = || HashMap::from([("model".into(), folder.clone())]);
    let cases = [
        (Tokenize::Like(folder.clone()), Some(true)),
        (Tokenize::Wrong(folder.clone()), Some(false)),
        (Tokenize::Missing, None),
    ];
    for (tokenize, expected) in cases {
        let engine = Engine::start(Script { tokenize, ..Script::default() }).await;
        let mut watch = Watch::with(vec![engine.backend("a")], models());
        let ready = watch.until("a", "ready", |b| b.state == BackendState::Ready).await;
        assert_eq!(ready.models[0].parity, expected);
        let metrics = watch.metrics();
        let series = "warmpath_telemetry_parity_mismatch{backend=\"a\",model=\"model\"}";
        match expected {
            Some(passed) => {
                let line = format!("{series} {}", i32::from(!passed));
                assert!(metrics.contains(&line), "{line} is not in {metrics}");
            }
            None => assert!(!metrics.contains(series), "{metrics}"),
        }
        watch.stop().await;
    }
}

#[tokio::test]
async fn a_mismatch_that_is_repaired_is_noticed() {
    let folder = ModelFolder::builtin();
    let script = Script { tokenize: Tokenize::Wrong(folder.clone()), ..Script::default() };
    let engine = Engine::start(script).await;
    let models = HashMap::from([("model".into(), folder.clone())]);
    let mut watch = Watch::with(vec![engine.backend("a")], models);
    watch.until("a", "a mismatch", |b| b.models.iter().any(|m| m.parity == Some(false))).await;
    engine.change(|s| s.tokenize = Tokenize::Like(folder));
    watch.until("a", "parity", |b| b.models.iter().any(|m| m.parity == Some(true))).await;
    watch.stop().await;
}

#[tokio::test]
async fn the_engines_key_is_sent_and_never_shown() {
    let raw: crate::RawBackend = serde_json::from_str(
        r#"{"id":"a","url":"http://127.0.0.1:9","api_key":{"env":"NO_SUCH_VARIABLE_IS_SET"}}"#,
    )
    .expect("parses");
    let error = crate::Config::new(crate::RawConfig::default(), vec![raw])
        .expect_err("the variable is not set")
        .to_string();
    assert!(error.starts_with("backends[0].api_key: "), "{error}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("key");
    std::fs::write(&path, "secret-key\n").expect("written");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let raw = crate::RawBackend {
        id: "a".into(),
        url: "http://127.0.0.1:9".into(),
        engine: None,
        api_key: Some(settings::SecretRef::File(path)),
        credential: None,
    };
    let config = crate::Config::new(crate::RawConfig::default(), vec![raw]).expect("valid");
    let sent = config.backends[0].authorization.as_ref().expect("a header");
    assert_eq!(sent, "Bearer secret-key");
    assert!(!format!("{config:?}").contains("secret-key"));
}
