//! Another config file while the edge runs.

use std::collections::HashMap;
use std::time::Duration;

use credentials::GeneratedKey;
use domain::ErrorCode;
use settings::{HumanDuration, Redacted};
use tokio::io::AsyncWriteExt;

use super::access::stored;
use crate::config::{RawAlias, RawConfig, RawTimeouts};
use crate::guard::{Policy, RawFields};
use crate::testing::*;

fn with(change: impl FnOnce(&mut RawConfig)) -> Setup {
    let mut edge = RawConfig::default();
    change(&mut edge);
    Setup { edge, ..Setup::default() }
}

fn answering() -> Vec<Step> {
    events(&[&token("a"), DONE])
}

#[tokio::test(start_paused = true)]
async fn an_open_request_ends_by_the_config_it_began_with_and_the_next_goes_by_the_new_one() {
    let slow = || {
        let pause = Step::Pause(Duration::from_secs(40));
        let end = Step::Send(b"0\r\n\r\n".to_vec());
        vec![sse(), event(&token("a")), pause, event(DONE), end]
    };
    let engine = Engine::start("e", vec![slow()]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut open = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    engine.await_requests(1).await;
    let idle = HumanDuration::from_secs(10);
    let next = with(|edge| edge.timeouts = RawTimeouts { idle, ..RawTimeouts::default() });
    bed.reload.apply(next.config());
    let later = bed.client.chat(STREAM).await;
    assert!(later.text().contains("\"error\""), "10 s are over: {}", later.text());
    assert_eq!(read_reply(&mut open, "POST").await.text(), [&token("a"), DONE].concat());
    bed.assert_idle().await;
}

#[tokio::test]
async fn names_fields_and_limits_are_those_of_the_new_config_on_kept_connections_too() {
    let engine = Engine::start("e", vec![answering()]).await;
    let bed = Bed::start(&[&engine]).await;
    let alias = STREAM.replace("\"m\"", "\"other\"");
    let prior = STREAM.replacen('{', "{\"priority\":1,", 1);
    let mut kept = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    assert_eq!(read_reply(&mut kept, "POST").await.status, 200);
    assert_eq!(bed.client.chat(&prior).await.status, 200, "it is stripped");

    let next = with(|edge| {
        edge.body_limit_bytes = STREAM.len() as u64 + 20;
        edge.fields = RawFields { priority: Some(Policy::Reject), ..RawFields::default() };
        let (id, models) = ("other".to_owned(), vec!["m".to_owned()]);
        edge.aliases = vec![RawAlias { id, models, weights: Vec::new() }];
    });
    bed.reload.apply(next.config());
    let mut ask = async |body: &str| {
        let request = request_bytes("POST", "/v1/chat/completions", "", body);
        kept.write_all(&request).await.unwrap();
        read_reply(&mut kept, "POST").await
    };
    assert_error(&ask(&prior).await, ErrorCode::InvalidRequest);
    assert_eq!(ask(&alias).await.status, 200);
    let sent = engine.requests().pop().unwrap();
    assert!(String::from_utf8_lossy(&sent.body).contains("\"m\""));
    let long = STREAM.replace("hi", &"hi ".repeat(20));
    assert_error(&ask(&long).await, ErrorCode::RequestTooLarge);
    assert!(bed.client.get("/v1/models").await.text().contains("\"other\""));

    bed.reload.apply(Setup::default().config());
    assert!(!bed.client.get("/v1/models").await.text().contains("\"other\""));
    assert_eq!(bed.client.chat(&long).await.status, 200);
    assert_eq!(bed.client.chat(&prior).await.status, 200);
}

#[tokio::test]
async fn a_key_that_is_gone_opens_nothing_and_what_is_open_counts_against_new_limits() {
    let engine = Engine::start("e", vec![vec![sse(), event(&token("a")), Step::AwaitClose]]).await;
    let keys = [GeneratedKey::generate("acme").unwrap(), GeneratedKey::generate("acme").unwrap()];
    let bearer = |n: usize| format!("authorization: Bearer {}\r\n", keys[n].secret_text());
    let setup = |key: usize, limit: u32| Setup {
        tenants: vec![tenant("acme", |t| t.max_concurrency = Some(limit))],
        keys: vec![stored(&keys[key])],
        ..Setup::default()
    };
    let bed = setup(0, 1).start(&[&engine]).await;
    let path = "/v1/chat/completions";
    let first = bed.client.send("POST", path, &bearer(0), STREAM).await;
    engine.await_requests(1).await;
    let full = bed.client.post(path, &bearer(0), STREAM).await;
    assert_error(&full, ErrorCode::ConcurrencyLimitExceeded);

    bed.reload.apply(setup(1, 2).config());
    assert_error(&bed.client.post(path, &bearer(0), STREAM).await, ErrorCode::InvalidApiKey);
    let second = bed.client.send("POST", path, &bearer(1), STREAM).await;
    engine.await_requests(2).await;
    let full = bed.client.post(path, &bearer(1), STREAM).await;
    assert_error(&full, ErrorCode::ConcurrencyLimitExceeded);
    drop((first, second));
    bed.assert_idle().await;
}

#[tokio::test]
async fn a_file_that_lost_its_last_key_lets_nobody_in() {
    let engine = Engine::start("e", vec![answering()]).await;
    let key = GeneratedKey::generate("acme").unwrap();
    let tenants = || vec![tenant("acme", |_| {})];
    let keyed = Setup { tenants: tenants(), keys: vec![stored(&key)], ..Setup::default() };
    let bed = Setup::default().start(&[&engine]).await;
    assert_eq!(bed.client.chat(STREAM).await.status, 200);
    bed.reload.apply(keyed.config());
    assert_error(&bed.client.chat(STREAM).await, ErrorCode::InvalidApiKey);
    bed.reload.apply(Setup { tenants: tenants(), ..Setup::default() }.config());
    assert_error(&bed.client.chat(STREAM).await, ErrorCode::InvalidApiKey);
    let with = format!("authorization: Bearer {}\r\n", key.secret_text());
    let revoked = bed.client.post("/v1/chat/completions", &with, STREAM).await;
    assert_error(&revoked, ErrorCode::InvalidApiKey);
}

#[tokio::test]
async fn an_engine_is_sent_the_key_that_its_name_stands_for_now() {
    let engine = Engine::start("e", vec![answering()]).await;
    let setup = |key: Option<&str>| {
        let named = key.map(|key| ("key-of-e".to_owned(), Redacted::new(key.to_owned())));
        Setup { credentials: named.into_iter().collect::<HashMap<_, _>>(), ..Setup::default() }
    };
    let bed = setup(Some("one")).start(&[&engine]).await;
    let mut seen = Vec::new();
    for key in [Some("one"), Some("two"), None] {
        bed.reload.apply(setup(key).config());
        assert_eq!(bed.client.chat(STREAM).await.status, 200);
        let sent = engine.requests().pop().unwrap();
        seen.push(sent.header("authorization").map(str::to_owned));
    }
    assert_eq!(seen, [Some("Bearer one".to_owned()), Some("Bearer two".to_owned()), None]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_goes_by_the_config_in_force_and_configs_leave_no_task_behind() {
    let engine = Engine::start("e", vec![vec![sse(), event(&token("a")), Step::AwaitClose]]).await;
    let bed = Bed::start(&[&engine]).await;
    let tasks = || {
        let page = instrumentation::encode(&bed.registry);
        let running = page.lines().filter(|l| l.starts_with("warmpath_tasks_running"));
        running.map(str::to_owned).collect::<Vec<_>>()
    };
    bed.lifecycle.register(&bed.registry).unwrap();
    let before = tasks();
    assert!(!before.is_empty());
    for n in 0..100 {
        let limit = Duration::from_secs(n % 7 + 1);
        let setup = Setup { drain_limit: Some(limit), ..with(|edge| edge.max_attempts = 2) };
        bed.reload.apply(setup.config());
    }
    assert_eq!(tasks(), before);
    let mut hung = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    engine.await_requests(1).await;
    let setup = Setup {
        drain_limit: Some(Duration::from_secs(8)),
        ..with(|edge| edge.drain_notice = HumanDuration::from_secs(0))
    };
    bed.reload.apply(setup.config());
    let started = tokio::time::Instant::now();
    let (reply, outcome) = tokio::join!(
        read_reply(&mut hung, "POST"),
        bed.lifecycle.shutdown(Duration::from_secs(60))
    );
    assert!(reply.text().contains("shutting down"), "{}", reply.text());
    assert_eq!(outcome, lifecycle::ShutdownOutcome::Clean);
    let took = started.elapsed().as_secs();
    assert!((8..10).contains(&took), "{took}");
}
