//! Several edges and routers: what one of them misses, how they end, and what outlives them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use integration_tests::client::Reply;
use integration_tests::region::{Balancer, Region};
use integration_tests::scenarios::{chat, chat_with, document};
use integration_tests::scripted::{
    DONE, Gate, ScriptedEngine, Step, part, short, stream_end, stream_head, token,
};
use integration_tests::wait::{PATIENCE, eventually};
use lifecycle::ShutdownOutcome;
use serde_json::json;

use crate::doubles;

async fn engines(count: usize) -> Vec<ScriptedEngine> {
    let mut engines = Vec::new();
    for _ in 0..count {
        let engine = ScriptedEngine::with(Vec::new()).await;
        engine.answer_by(short);
        engines.push(engine);
    }
    engines
}

#[tokio::test]
async fn a_removal_missed_during_a_cut_is_made_up_for_as_soon_as_the_line_is_back() {
    let engines = engines(4).await;
    let backends = [("a", engines[0].url()), ("b", engines[1].url())];
    let limit = "[edge.timeouts]\nfirst_token = \"1s\"";
    let region = Region::start(1, 1, &backends, limit).await;
    let client = region.client(0);
    let choice = |names: &'static [&str]| {
        let region = &region;
        async move {
            let same = || async { region.chosen_from(0).await == names };
            eventually(PATIENCE, "the router's choice", same).await;
        }
    };
    choice(&["a", "b"]).await;
    region.wire.stall();
    region.desired.remove_backend("b").await;
    region.desired.put_backend("d", &engines[3].url()).await;
    engines[1].freeze();
    // The line is silent: what was known stands, and a dead engine is passed over.
    for n in 0..30 {
        let reply = client.chat(chat(&format!("During {n}"), 1, true)).await;
        assert!(reply.events().is_complete(), "{} {}", reply.status, reply.text());
    }
    region.wire.resume();
    choice(&["a", "d"]).await;
    // A broken line, and many changes meanwhile, some of them undone.
    for _ in 0..10 {
        region.desired.put_backend("c", &engines[2].url()).await;
        region.wire.cut();
        region.desired.remove_backend("c").await;
        region.desired.wish("d", "drain").await;
        region.wire.cut();
        region.desired.wish("d", "ready").await;
    }
    region.desired.remove_backend("a").await;
    choice(&["d"]).await;
    let (of_a, of_b) = (engines[0].asked_count(), engines[1].asked_count());
    for n in 0..20 {
        let reply = client.chat(chat(&format!("After {n}"), 1, false)).await;
        assert_eq!((reply.status.as_u16(), reply.backend()), (200, "d"), "{}", reply.text());
    }
    assert_eq!((engines[0].asked_count(), engines[1].asked_count()), (of_a, of_b));
}

#[tokio::test]
async fn edges_a_router_and_telemetry_end_one_after_the_other_without_failing_a_request() {
    let (engine, gate) = (ScriptedEngine::with(Vec::new()).await, Gate::default());
    let of_test = gate.clone();
    engine.answer_by(move |asked| match asked.json()["stream"] == true {
        true => {
            let hangs = asked.json()["messages"][0]["content"] == "hang";
            let wait = if hangs { Step::Hang } else { Step::Await(of_test.clone()) };
            let begun = vec![stream_head(), part(&token("a")), wait];
            [begun, vec![part(&token("b")), part(DONE), stream_end()]].concat()
        }
        false => short(asked),
    });
    let config = "[edge]\ndrain_notice = \"500ms\"\n[admin]\ndrain_timeout = \"4s\"";
    let mut region = Region::start(2, 2, &[("a", engine.url())], config).await;
    let balancer = Balancer::before(&region.edges);
    let (stop, sent, failed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let load = async {
        while !stop.load(Ordering::Relaxed) {
            let reply = balancer.next().chat(chat("x", 1, false)).await;
            sent.fetch_add(1, Ordering::Relaxed);
            failed.fetch_add(usize::from(reply.status != 200), Ordering::Relaxed);
        }
    };
    let some_more = || async {
        let goal = sent.load(Ordering::Relaxed) + 20;
        let reached = || std::future::ready(sent.load(Ordering::Relaxed) >= goal);
        eventually(PATIENCE, "requests go on", reached).await;
    };
    let ending = async {
        let path = "/v1/chat/completions";
        let mut streams = Vec::new();
        for text in ["ends", "hang", "ends"] {
            let mut open = region.client(0).open(path, &chat(text, 9, true)).await;
            assert!(open.read_until(b"\"a\"", 1).await, "{}", open.seen());
            streams.push(open);
        }
        some_more().await;
        region.edges[0].begin_drain();
        // A load balancer looks at this, and sends no more.
        eventually(PATIENCE, "it is not ready", || async { !region.edges[0].is_ready().await })
            .await;
        balancer.keep(&region.edges[1..]);
        gate.let_pass(2);
        let drained = region.edges[0].end(Duration::from_secs(5)).await;
        assert_eq!(drained, ShutdownOutcome::Clean);
        for (n, open) in streams.into_iter().enumerate() {
            let seen = open.read_to_end().await;
            assert_eq!(seen.contains("\"error\""), n == 1, "{seen}");
            assert!(seen.contains("[DONE]"), "{seen}");
        }
        let router = &mut region.routers[0];
        assert_eq!(router.end(Duration::from_secs(5)).await, ShutdownOutcome::Clean);
        some_more().await;
        let telemetry = &mut region.telemetry;
        assert_eq!(telemetry.end(Duration::from_secs(5)).await, ShutdownOutcome::Clean);
        some_more().await;
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(load, ending);
    assert_eq!(failed.load(Ordering::Relaxed), 0, "of {}", sent.load(Ordering::Relaxed));
}

#[tokio::test]
async fn telemetry_that_comes_back_knows_what_was_wanted_and_the_others_serve_meanwhile() {
    let engines = engines(2).await;
    let backends = [("a", engines[0].url()), ("b", engines[1].url())];
    let mut region = Region::start(1, 1, &backends, "").await;
    let client = region.client(0);
    assert_eq!(region.telemetry.end(Duration::from_secs(5)).await, ShutdownOutcome::Clean);
    for n in 0..20 {
        let reply = client.chat(chat(&format!("Meanwhile {n}"), 1, n % 2 == 0)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    region.telemetry_again();
    region.telemetry.await_ready(PATIENCE).await;
    region.desired.remove_backend("b").await;
    let only_a = || async { region.chosen_from(0).await == ["a"] };
    eventually(PATIENCE, "the router's choice", only_a).await;
    for n in 0..20 {
        let reply = client.chat(chat(&format!("After {n}"), 1, n % 2 == 0)).await;
        assert_eq!((reply.status.as_u16(), reply.backend()), (200, "a"), "{}", reply.text());
    }
}

/// Asks a question about a document.
async fn ask(region: &Region, edge: usize, number: u64, question: usize) -> Reply {
    let text = format!("{}\n\nQuestion {question}?", document(number, 150));
    let usage = json!({"include_usage": true});
    let fields = json!({"max_tokens": 1, "stream": true, "stream_options": usage});
    let reply = region.client(edge).chat(chat_with(&text, fields)).await;
    assert!(reply.events().is_complete(), "{} {}", reply.status, reply.text());
    reply
}

#[tokio::test]
async fn affinity_is_the_same_through_any_number_of_edges_and_routers() {
    const DOCUMENTS: u64 = 12;
    const QUESTIONS: usize = 8;
    let mut hits = Vec::new();
    for (routers, edges) in [(1, 1), (1, 4), (2, 2)] {
        let (handles, backends) = doubles(3).await;
        let region = Region::start(routers, edges, &backends, "").await;
        let (mut cached, mut tokens) = (0, 0);
        for question in 0..QUESTIONS {
            for number in 0..DOCUMENTS {
                let edge = (question * 5 + number as usize) % edges;
                let usage = ask(&region, edge, number, question).await.events().usage.unwrap();
                cached += usage.cached_tokens.unwrap();
                tokens += usage.prompt_tokens;
            }
        }
        hits.push(100.0 * cached as f64 / tokens as f64);
        let sums = |reason: &str| {
            let labels = [("reason", reason)];
            let of = |part: &integration_tests::region::Part| {
                part.metrics().sum("warmpath_router_decisions_total", &labels)
            };
            region.routers.iter().map(of).sum::<f64>()
        };
        let away = ["all_saturated", "warmer_rank_too_busy"].map(sums).iter().sum::<f64>();
        assert!(away <= 0.02 * DOCUMENTS as f64 * QUESTIONS as f64, "{away} went elsewhere");
        drop((region, handles));
    }
    let (least, most) =
        (hits.iter().copied().fold(100.0, f64::min), hits.iter().copied().fold(0.0, f64::max));
    assert!(most - least <= 2.0 && least > 75.0, "{hits:?}");
}

#[tokio::test]
async fn when_the_router_and_an_engine_die_together_the_others_prefixes_are_still_found() {
    const DOCUMENTS: u64 = 60;
    let (handles, backends) = doubles(3).await;
    let mut region = Region::start(2, 2, &backends, "").await;
    let mut homes = HashMap::new();
    for number in 0..DOCUMENTS {
        let reply = ask(&region, number as usize % 2, number, 0).await;
        homes.insert(number, reply.backend().to_owned());
    }
    let served = |part: &integration_tests::region::Part| {
        part.metrics().sum("warmpath_router_pools_served", &[]) > 0.0
    };
    let owner = region.routers.iter().position(served).expect("one serves");
    let standby = &region.routers[1 - owner];
    let in_step = || async { standby.metrics().sum("warmpath_router_pools_followed", &[]) > 0.0 };
    eventually(PATIENCE, "the standby is in step", in_step).await;
    region.routers[owner].kill();
    handles[0].kill().await;
    let (mut asked, mut found) = (0, 0);
    for number in (0..DOCUMENTS).filter(|number| homes[number] != "a") {
        let reply = ask(&region, number as usize % 2, number, 1).await;
        asked += 1;
        let usage = reply.events().usage.unwrap();
        found += usize::from(usage.cached_tokens.unwrap() * 10 > usage.prompt_tokens * 8);
    }
    assert!(asked >= 10 && found * 100 >= asked * 80, "{found} of {asked}");
    // Those of the dead engine find another place.
    for number in (0..DOCUMENTS).filter(|number| homes[number] == "a") {
        assert_ne!(ask(&region, 0, number, 1).await.backend(), "a");
    }
    let again = region.new_router(owner);
    again.await_ready(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_lone_router_that_died_is_ready_cold_within_seconds() {
    let (handles, backends) = doubles(2).await;
    let mut region = Region::start(1, 1, &backends, "").await;
    for number in 0..10 {
        ask(&region, 0, number, 0).await;
    }
    region.routers[0].kill();
    // One engine went with it: nobody waits for it.
    handles[0].kill().await;
    region.routers[0] = region.new_router(0);
    region.routers[0].await_ready(Duration::from_secs(5)).await;
    for number in 0..10 {
        ask(&region, 0, number, 1).await;
    }
    let decided = || async {
        let metrics = region.routers[0].metrics();
        metrics.sum("warmpath_router_decisions_total", &[]) > 0.0
    };
    let mut question = 2;
    while !decided().await {
        ask(&region, 0, 1, question).await;
        question += 1;
        assert!(question < 2000, "the edge goes on alone");
    }
}
