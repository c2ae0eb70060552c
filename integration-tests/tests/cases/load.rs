//! Load and affinity over many requests.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::{chat, chat_with, document};
use integration_tests::wait::{PATIENCE, eventually};
use serde_json::json;

#[tokio::test]
async fn one_hot_engine_costs_the_others_none_of_their_hits() {
    let (handles, backends) =
        crate::doubles_like(4, |double| double.itl(Duration::from_millis(50))).await;
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let cluster = Cluster::builder().engines(0).absent_backend("absent", nobody).admin_api();
    let cluster = cluster.build().await;
    let (client, desired) = (cluster.client(), cluster.desired());
    // One document for each engine: the only one that there is at the time.
    for (number, (name, url)) in backends.iter().enumerate() {
        desired.put_backend(name, url).await;
        cluster.await_choice(&[name]).await;
        let reply = client.chat(chat(&document(number as u64, 400), 1, true)).await;
        assert_eq!(reply.status, 200);
        desired.wish(name, "drain").await;
        cluster.await_choice(&[]).await;
    }
    for (name, _) in &backends {
        desired.wish(name, "ready").await;
    }
    cluster.await_choice(&["a", "b", "c", "d"]).await;
    let mut streams = Vec::new();
    for n in 0..20 {
        let body = chat(&format!("{} Stream {n}", document(0, 400)), 1000, true);
        streams.push(client.open("/v1/chat/completions", &body).await);
    }
    let sent = || std::future::ready(handles.iter().map(|d| d.stats().requests).sum::<u64>() == 24);
    eventually(PATIENCE, "all streams are with an engine", sent).await;
    assert!(handles[0].stats().requests > 10, "their document is there");
    let (mut asked, mut found) = (0, 0);
    for n in 0..20 {
        for number in 1..backends.len() {
            let text = format!("{} Question {n}?", document(number as u64, 400));
            let usage = json!({"include_usage": true});
            let fields = json!({"max_tokens": 1, "stream": true, "stream_options": usage});
            let events = client.chat(chat_with(&text, fields)).await.events();
            assert!(events.is_complete(), "{events:?}");
            let usage = events.usage.unwrap();
            asked += 1;
            found += usize::from(usage.cached_tokens.unwrap() * 10 > usage.prompt_tokens * 8);
        }
    }
    assert!(found * 100 >= asked * 95, "{found} of {asked} found their prefix");
    drop(streams);
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn what_left_failed_and_flapped_leaves_no_engine_looking_full_or_empty() {
    const ENGINES: usize = 5;
    let cluster = Cluster::builder().engines(ENGINES).config(crate::TIE).build().await;
    let client = cluster.client();
    let one = |n: usize| {
        let (client, cluster) = (client.clone(), &cluster);
        async move {
            let body =
                chat(&format!("{} {n}", document(n as u64 % 60, 60)), 2, n.is_multiple_of(2));
            match n % 25 {
                0 => client.open("/v1/chat/completions", &body).await.hang_up(n.is_multiple_of(50)),
                1 => {
                    let fault = "status=500,times=1".parse().unwrap();
                    cluster.doubles()[n / 25 % ENGINES].set_fault(fault);
                    client.chat(body).await;
                }
                // Three probes in a row that fail take an engine out.
                2 if n % 100 == 2 => {
                    let fault = "status=503,times=6,all".parse().unwrap();
                    cluster.doubles()[n / 100 % ENGINES].set_fault(fault);
                    client.chat(body).await;
                }
                _ => drop(client.chat(body).await),
            }
        }
    };
    stream::iter((0..800).map(one)).buffer_unordered(8).collect::<Vec<()>>().await;
    cluster.doubles().iter().for_each(warmpath::double::DoubleHandle::clear_faults);
    cluster.assert_idle().await;
    for n in 0..ENGINES {
        assert_eq!(cluster.in_flight(&format!("engine-{n}")).await, 0.0);
    }
    cluster.await_choice(&["engine-0", "engine-1", "engine-2", "engine-3", "engine-4"]).await;
    // Trials close what breakers are open.
    let mut trials = 0..;
    let closed = || {
        let body = chat(&format!("Trial {}", trials.next().unwrap_or(0)), 1, true);
        let (client, cluster) = (client.clone(), &cluster);
        async move {
            assert_eq!(client.chat(body).await.status, 200);
            let labels = [("state", "closed")];
            let metrics = cluster.metrics().await;
            // One that said that it is full is left alone for a second.
            metrics.sum("warmpath_router_breaker_state", &labels) == ENGINES as f64
                && metrics.sum("warmpath_router_held_back", &[]) == 0.0
        }
    };
    eventually(PATIENCE, "all breakers are closed and nobody is held back", closed).await;
    let before = cluster.requests();
    for n in 0..50 {
        client.chat(chat(&format!("{n} is cold"), 1, n % 2 == 0)).await;
    }
    let shares: Vec<u64> = cluster.requests().iter().zip(before).map(|(a, b)| a - b).collect();
    assert!(shares.iter().all(|share| (8..=12).contains(share)), "{shares:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_scrapes_and_changes_of_the_fleet_go_on_together() {
    let shape = |_, double: warmpath::double::Double| double.static_response(true);
    let cluster = Cluster::builder().engines(3).double(shape).admin_api().build().await;
    let (client, desired) = (cluster.client(), cluster.desired());
    let extra = integration_tests::scripted::ScriptedEngine::with(Vec::new()).await;
    extra.answer_by(integration_tests::scripted::short);
    let asking = stream::iter(0..900_u64).map(|n| {
        let client = client.clone();
        async move {
            let body = chat(&format!("{} {n}", document(n % 30, 300)), 2, n % 2 == 0);
            let reply = client.chat(body).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    });
    let asking = asking.buffer_unordered(24).collect::<Vec<()>>();
    let changing = async {
        for _ in 0..12 {
            desired.put_backend("extra", &extra.url()).await;
            desired.wish("extra", "drain").await;
            desired.wish("extra", "ready").await;
            desired.remove_backend("extra").await;
        }
    };
    let looking = async {
        for _ in 0..40 {
            assert!(cluster.metrics().await.series() > 50);
            cluster.operator("/admin/v1/backends").await;
        }
    };
    tokio::join!(asking, changing, looking);
    cluster.assert_idle().await;
    let metrics = cluster.metrics().await;
    let ok = [("outcome", "ok")];
    assert_eq!(metrics.sum("warmpath_edge_requests_total", &ok), 900.0);
    assert_eq!(metrics.sum("warmpath_tasks_panicked_total", &[]), 0.0);
    assert_eq!(metrics.sum("warmpath_edge_panics_total", &[]), 0.0);
    cluster.stop().await;
}
