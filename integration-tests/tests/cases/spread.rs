//! Work that nothing ties to an engine is spread, and counted once however engines come and go.

use std::collections::BTreeMap;

use integration_tests::client::{Client, Open};
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::{chat, document};
use integration_tests::scripted::{
    DONE, Gate, ROLE, ScriptedEngine, Step, part, short, stream_end, stream_head, token,
};
use integration_tests::wait::{PATIENCE, eventually};

use crate::{TIE, before};

/// Asks so many unlike things, one after the other; who answered how many.
async fn cold(client: &Client, count: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for n in 0..count {
        let reply = client.chat(chat(&format!("Cold {n}"), 1, false)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        *shares.entry(reply.backend().to_owned()).or_default() += 1;
    }
    shares
}

/// Scripted engines whose answers stay open after a token until the gate lets them end.
async fn holding(count: usize) -> (Vec<ScriptedEngine>, Gate) {
    let gate = Gate::default();
    let mut engines = Vec::new();
    for _ in 0..count {
        let engine = ScriptedEngine::with(Vec::new()).await;
        let gate = gate.clone();
        engine.answer_by(move |asked| {
            if asked.json()["stream"] != true {
                return short(asked);
            }
            let held = [stream_head(), part(ROLE), part(&token("a")), Step::Await(gate.clone())];
            held.into_iter().chain([part(DONE), stream_end()]).collect()
        });
        engines.push(engine);
    }
    (engines, gate)
}

async fn hold(client: &Client, count: usize) -> Vec<Open> {
    let mut open = Vec::new();
    for n in 0..count {
        let mut one =
            client.open("/v1/chat/completions", &chat(&format!("Hold {n}"), 9, true)).await;
        assert!(one.read_until(b"\"a\"", 1).await, "{}", one.seen());
        open.push(one);
    }
    open
}

#[tokio::test]
async fn three_idle_engines_share_what_is_cold() {
    let cluster = Cluster::builder().engines(3).config(TIE).build().await;
    let shares = cold(&cluster.client(), 60).await;
    assert_eq!(shares.values().copied().collect::<Vec<_>>(), [20, 20, 20]);
    cluster.stop().await;
}

#[tokio::test]
async fn engines_that_all_hold_a_prefix_share_its_requests() {
    let (handles, backends) = crate::doubles(3).await;
    let cluster = Cluster::builder().engines(0).admin_api().config(TIE).build().await;
    let (client, desired) = (cluster.client(), cluster.desired());
    let names = ["a", "b", "c"];
    for (id, url) in &backends {
        desired.put_backend(id, url).await;
    }
    cluster.await_choice(&names).await;
    let text = document(1, 300);
    // Each has to compute it while the others are drained.
    for alone in names {
        for name in names {
            desired.wish(name, if name == alone { "ready" } else { "drain" }).await;
        }
        cluster.await_choice(&[alone]).await;
        client.chat(chat(&text, 1, true)).await;
    }
    for name in names {
        desired.wish(name, "ready").await;
    }
    cluster.await_choice(&names).await;
    let mut shares = BTreeMap::new();
    for n in 0..60 {
        let reply = client.chat(chat(&format!("{text} {n} times?"), 1, true)).await;
        assert!(reply.number("x-warmpath-matched-tokens") > 200, "{:?}", reply.headers);
        *shares.entry(reply.backend().to_owned()).or_insert(0) += 1;
    }
    let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
    assert!(shares.len() == 3 && most * 2 <= least * 3, "{shares:?}");
    cluster.stop().await;
    drop(handles);
}

#[tokio::test]
async fn the_rotation_goes_on_while_one_engine_is_drained_and_readied_again() {
    let (engines, _gate) = holding(4).await;
    let cluster = Cluster::builder().engines(0).admin_api().config(TIE).build().await;
    let (client, desired) = (cluster.client(), cluster.desired());
    for (engine, id) in engines.iter().zip(["a", "b", "c", "d"]) {
        desired.put_backend(id, &engine.url()).await;
    }
    let mut shares = BTreeMap::new();
    for n in 0..60 {
        let all = n % 2 == 0;
        desired.wish("d", if all { "ready" } else { "drain" }).await;
        cluster.await_choice(if all { &["a", "b", "c", "d"] } else { &["a", "b", "c"] }).await;
        let reply = client.chat(chat(&format!("Cold {n}"), 1, false)).await;
        *shares.entry(reply.backend().to_owned()).or_insert(0) += 1;
    }
    let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
    assert!(shares.len() == 4 && most * 2 <= least * 3, "{shares:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_backend_removed_and_added_again_under_its_streams_counts_only_its_own() {
    let (engines, gate) = holding(3).await;
    let cluster = Cluster::builder().engines(0).admin_api().config(TIE).build().await;
    let (client, desired) = (cluster.client(), cluster.desired());
    desired.put_backend("a", &engines[0].url()).await;
    cluster.await_choice(&["a"]).await;
    let old = hold(&client, 10).await;
    assert_eq!(cluster.in_flight("a").await, 10.0);
    desired.put_backend("b", &engines[1].url()).await;
    desired.put_backend("c", &engines[2].url()).await;
    desired.remove_backend("a").await;
    cluster.await_choice(&["b", "c"]).await;
    desired.put_backend("a", &engines[0].url()).await;
    cluster.await_choice(&["a", "b", "c"]).await;
    let young = hold(&client, 3).await;
    let of_young = cluster.in_flight("a").await;
    assert!(of_young <= 3.0, "{of_young} of 3");
    // The first ten end; nothing of that is taken from the new one's count.
    drop(old);
    engines[0].await_in_course(of_young as usize).await;
    let settled = || async { cluster.held().await.edge_in_flight == 3 };
    eventually(PATIENCE, "the old streams are forgotten", settled).await;
    assert_eq!(cluster.in_flight("a").await, of_young);
    gate.open();
    for mut open in young {
        assert!(open.read_until(DONE.as_bytes(), 1).await);
    }
    cluster.assert_idle().await;
    for backend in ["a", "b", "c"] {
        assert_eq!(cluster.in_flight(backend).await, 0.0);
    }
    let shares = cold(&client, 30).await;
    assert!(
        shares.len() == 3 && shares.values().all(|share| (8..=12).contains(share)),
        "{shares:?}"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_health_flap_neither_loses_nor_doubles_what_is_open() {
    let shape = |_, double: warmpath::double::Double| {
        double.itl(std::time::Duration::from_millis(20)).max_model_len(10_000)
    };
    let cluster =
        Cluster::builder().engines(2).blocks(20_000).double(shape).config(TIE).build().await;
    let client = cluster.client();
    let hold = async |count: usize| {
        let mut open = Vec::new();
        for n in 0..count {
            let body = chat(&format!("Hold {n}"), 5000, true);
            let mut one = client.open("/v1/chat/completions", &body).await;
            assert!(one.read_until(b"\"content\":", 2).await, "{}", one.seen());
            open.push(one);
        }
        open
    };
    let as_engines_count = async || {
        for (n, stats) in cluster.stats().iter().enumerate() {
            let counted = cluster.in_flight(&format!("engine-{n}")).await;
            assert_eq!(counted, f64::from(stats.running + stats.waiting), "engine-{n}");
        }
    };
    let open = hold(6).await;
    as_engines_count().await;
    let flapping = &cluster.doubles()[0];
    flapping.set_fault("status=503,all".parse().unwrap());
    cluster.await_choice(&["engine-1"]).await;
    as_engines_count().await;
    flapping.clear_faults();
    cluster.await_choice(&["engine-0", "engine-1"]).await;
    as_engines_count().await;
    let more = hold(6).await;
    as_engines_count().await;
    drop((open, more));
    cluster.assert_idle().await;
    as_engines_count().await;
    let shares = cold(&client, 20).await;
    assert!(shares.values().all(|share| (8..=12).contains(share)), "{shares:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn probes_never_reset_what_is_counted() {
    let (engines, gate) = holding(3).await;
    let all: Vec<&ScriptedEngine> = engines.iter().collect();
    let cluster = before(&all).config(TIE).build().await;
    let mut open = Vec::new();
    for _ in 0..6 {
        open.extend(hold(&cluster.client(), 5).await);
        engines[0].await_probes(3).await;
        for (engine, backend) in engines.iter().zip(["a", "b", "c"]) {
            assert_eq!(cluster.in_flight(backend).await, engine.in_course() as f64);
        }
    }
    let most = engines.iter().map(ScriptedEngine::in_course).max().unwrap();
    assert!(most <= 15, "{most} of 30 on one of three");
    gate.open();
    for mut one in open {
        assert!(one.read_until(DONE.as_bytes(), 1).await);
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

/// A page of an engine that says it runs so many requests, whatever happens.
fn stale_page(running: u32) -> String {
    let labels = format!("engine=\"0\",model_name=\"{}\"", integration_tests::cluster::MODEL);
    format!(
        "vllm:num_requests_running{{{labels}}} {running}.0\n\
         vllm:num_requests_waiting{{{labels}}} 0.0\n\
         vllm:cache_config_info{{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\",\
         num_gpu_blocks=\"1000\"}} 1.0\n"
    )
}

#[tokio::test]
async fn a_burst_does_not_follow_a_stale_reading_to_one_engine() {
    for count in [2, 4] {
        let (engines, gate) = holding(count).await;
        for (n, engine) in engines.iter().enumerate() {
            engine.set_metrics(stale_page(u32::from(n > 0)));
        }
        let all: Vec<&ScriptedEngine> = engines.iter().collect();
        let cluster = before(&all).config(TIE).build().await;
        let client = cluster.client();
        let burst = (0..64).map(|n| {
            let client = client.clone();
            async move {
                let body = chat(&document(n, 40), 9, true);
                let mut open = client.open("/v1/chat/completions", &body).await;
                assert!(open.read_until(b"\"a\"", 1).await);
                open
            }
        });
        let open = futures_util::future::join_all(burst).await;
        let shares: Vec<usize> = engines.iter().map(ScriptedEngine::in_course).collect();
        let mean = 64.0 / count as f64;
        let most = *shares.iter().max().unwrap() as f64;
        assert!(shares.iter().sum::<usize>() == 64 && most / mean <= 1.25, "{shares:?}");
        gate.open();
        drop(open);
        cluster.assert_idle().await;
        cluster.stop().await;
    }
}
