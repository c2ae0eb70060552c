//! Engines that go, come back, and load.

use domain::BackendState;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::{chat, document};
use integration_tests::scripted::{ScriptedEngine, short};
use integration_tests::wait::{PATIENCE, eventually};

use crate::{TIE, before};

async fn await_state(cluster: &Cluster, backend: &str, state: BackendState) {
    let reached = || async { cluster.published(backend).is_some_and(|(now, _)| now == state) };
    eventually(PATIENCE, "the backend's state", reached).await;
}

#[tokio::test]
async fn an_engine_that_was_gone_for_long_comes_back_cold_after_two_good_probes() {
    let mut cluster = Cluster::builder().engines(2).config(TIE).build().await;
    let client = cluster.client();
    let text = document(1, 300);
    let home = client.chat(chat(&text, 1, true)).await.backend().to_owned();
    // A process is told from the one before by its start, to the second, or by counters that fell:
    // this one is back within the second, so its counters must have been seen.
    let worked = || async {
        let name = "warmpath_telemetry_engine_queried_tokens_total";
        cluster.metrics().await.sum(name, &[("backend", &home)]) > 0.0
    };
    eventually(PATIENCE, "the engine's counters", worked).await;
    cluster.kill(&home).await;
    await_state(&cluster, &home, BackendState::Down).await;
    // Far longer than it took to be taken out.
    let other = usize::from(home == "engine-0");
    for n in 0..40 {
        assert!(client.chat(chat(&format!("Meanwhile {n}"), 1, true)).await.events().is_complete());
    }
    assert!(cluster.doubles()[other].stats().requests >= 40);
    cluster.restart(&home).await;
    await_state(&cluster, &home, BackendState::Ready).await;
    // Its cache is empty, and is known to be.
    let asked = client.chat(chat(&text, 1, true)).await;
    let id = asked.header("x-request-id").to_owned();
    let explained = cluster.explain(&id).await;
    let candidates = explained["attempts"][0]["candidates"].as_array().unwrap();
    let back = candidates.iter().find(|c| c["backend"] == *home).expect("it is a candidate");
    assert_eq!(back["matched_blocks"], 0, "{back}");
    let mut found = false;
    for n in 0..200 {
        let reply = client.chat(chat(&format!("Back {n}"), 1, true)).await;
        found |= reply.backend() == home;
    }
    assert!(found, "it is sent requests again");
    cluster.stop().await;
}

#[tokio::test]
async fn an_engine_that_is_loading_is_sent_nothing_until_its_probes_are_good() {
    let (ready, loading) =
        (ScriptedEngine::with(Vec::new()).await, ScriptedEngine::with(Vec::new()).await);
    for engine in [&ready, &loading] {
        engine.answer_by(short);
    }
    loading.set_health(503);
    let address = loading.url().trim_start_matches("http://").parse().unwrap();
    let cluster = before(&[&ready]).absent_backend("loading", address).config(TIE).build().await;
    let client = cluster.client();
    for n in 0..30 {
        let reply = client.chat(chat(&format!("Cold {n}"), 1, n % 2 == 0)).await;
        assert_eq!((reply.status.as_u16(), reply.backend()), (200, "a"));
    }
    loading.await_probes(3).await;
    assert_eq!(
        (loading.asked_count(), cluster.published("loading").unwrap().0),
        (0, BackendState::Joining)
    );
    // It answers, and lists no model yet.
    loading.set_models(&[]);
    loading.set_health(200);
    loading.await_probes(4).await;
    assert_eq!(cluster.published("loading").unwrap().0, BackendState::Joining);
    loading.set_models(&[MODEL.to_owned()]);
    await_state(&cluster, "loading", BackendState::Ready).await;
    let mut found = false;
    for n in 0..100 {
        found |= client.chat(chat(&format!("Now {n}"), 1, false)).await.backend() == "loading";
    }
    assert!(found, "it is sent requests");
    cluster.stop().await;
}
