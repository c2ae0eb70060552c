//! Engines that break, in every place of an answer.

use std::time::Duration;

use integration_tests::client::Client;
use integration_tests::cluster::Cluster;
use integration_tests::scenarios::{chat, document};
use integration_tests::scripted::{
    DONE, ROLE, ScriptedEngine, Step, answer, part, short, stream_end, stream_head, token,
};
use integration_tests::wait::{PATIENCE, eventually};

use crate::{TIE, before};

#[tokio::test]
async fn a_stream_that_breaks_is_told_counted_and_held_against_its_engine() {
    let tokens = || vec![stream_head(), part(ROLE), part(&token("a")), part(&token("b"))];
    let ends = [
        vec![Step::Reset],
        // The end of the connection without the last chunk.
        vec![Step::Close],
        // The last chunk without an end marker or a finish reason.
        vec![stream_end()],
        // In the middle of an event.
        vec![part("data: {\"id\":\"1\",\"choi"), Step::Reset],
    ];
    let engine = ScriptedEngine::with(Vec::new()).await;
    let cluster = before(&[&engine]).build().await;
    let count = ends.len();
    for (n, end) in ends.into_iter().enumerate() {
        let steps = [tokens(), end].concat();
        engine.answer_by(move |_| steps.clone());
        let reply = cluster.client().chat(chat(&document(n as u64, 60), 9, true)).await;
        let events = reply.events();
        assert!(reply.whole && events.is_interrupted(), "{n}: {}", reply.text());
        assert_eq!((events.contents, &*events.text), (2, "ab"), "{n}: {}", reply.text());
        assert!(!reply.text().contains("finish_reason"), "{n}: {}", reply.text());
        let error = reply.text().find("data: {\"error\"").expect("an error event");
        assert!(reply.text()[..error].ends_with("\n\n"), "{n}: it is a line of its own");
    }
    cluster.assert_idle().await;
    assert_eq!(engine.asked_count(), count, "nothing is sent again once an answer has begun");
    let metrics = cluster.metrics().await;
    let broken = [("outcome", "upstream_eof")];
    assert_eq!(metrics.sum("warmpath_edge_requests_total", &broken), count as f64);
    assert_eq!(metrics.sum("warmpath_edge_stream_interruptions_total", &[]), count as f64);
    assert_eq!(metrics.sum("warmpath_router_ejections_total", &[]), 1.0, "it is taken out");
    cluster.stop().await;
}

#[tokio::test]
async fn an_answer_is_of_one_engine_whatever_came_before_its_first_token() {
    let beginnings = [
        vec![Step::Reset],
        vec![stream_head(), Step::Reset],
        vec![stream_head(), part(ROLE), Step::Reset],
        vec![stream_head(), part(": ping\n\n"), Step::Reset],
        vec![stream_head(), part(": ping\n\n"), part(ROLE), stream_end()],
    ];
    // One text is enough to be replayed in many writes, the other is not.
    for text in ["Hello".to_owned(), "y".repeat(5 << 20)] {
        for beginning in &beginnings {
            let (bad, good) = (
                ScriptedEngine::with(beginning.clone()).await,
                ScriptedEngine::with(Vec::new()).await,
            );
            let of_good = [ROLE, &token("good"), DONE].map(|text| text.replace("\"1\"", "\"2\""));
            good.answer_by(move |_| {
                integration_tests::scripted::stream(&of_good.each_ref().map(String::as_str))
            });
            let cluster = before(&[&bad, &good]).without_tokenizer().build().await;
            // Of two that tie, either may be asked first: one of two requests meets the bad one.
            for n in 0..2 {
                let reply = cluster.client().chat(chat(&format!("{n}{text}"), 9, true)).await;
                let events = reply.events();
                assert!(events.is_complete(), "{beginning:?}: {}", reply.text());
                assert_eq!((&*events.text, events.roles), ("good", 1), "{}", reply.text());
                assert_eq!(events.ids, ["2"]);
            }
            assert!(bad.asked_count() <= 4 && good.asked_count() == 2);
            for asked in bad.asked().iter().chain(&good.asked()) {
                assert!(asked.body.len() > text.len(), "the whole body is sent each time");
            }
            cluster.assert_idle().await;
            cluster.stop().await;
        }
    }
}

#[tokio::test]
async fn an_engine_that_says_for_how_long_it_is_full_is_left_alone_until_then() {
    let busy = Step::Send(answer("503 Service Unavailable", "retry-after: 50\r\n", b"").into());
    let engines = [ScriptedEngine::with(vec![busy]).await, ScriptedEngine::with(Vec::new()).await];
    engines[1].answer_by(short);
    let cluster = before(&engines.each_ref()).config(TIE).build().await;
    let client = cluster.client();
    assert_eq!(mixed(&client, 40).await, (40, 0, 0));
    assert_eq!(engines[0].asked_count(), 1);
    let metrics = cluster.metrics().await;
    assert_eq!(metrics.sum("warmpath_router_ejections_total", &[]), 0.0);
    // Where all say so, the answer is one of theirs.
    let busy = Step::Send(answer("429 Too Many Requests", "retry-after: 55\r\n", b"").into());
    engines[1].answer_by(move |_| vec![busy.clone()]);
    for (n, wait) in ["50", "55", "55"].into_iter().enumerate() {
        let reply = client.chat(chat(&document(n as u64, 40), 2, true)).await;
        assert_eq!(reply.header("retry-after"), wait, "{n}: the last that was asked");
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

/// Sends so many unlike requests, every other one streaming; how many were whole, began and
/// broke, and failed.
async fn mixed(client: &Client, count: usize) -> (usize, usize, usize) {
    let mut seen = (0, 0, 0);
    for n in 0..count {
        let reply = client.chat(chat(&document(n as u64 % 20, 40), 2, n % 2 == 0)).await;
        let events = reply.events();
        match (reply.status.as_u16(), n % 2 == 0) {
            (200, true) if events.is_complete() => seen.0 += 1,
            (200, false) if reply.whole => seen.0 += 1,
            (200, true) if events.is_interrupted() => seen.1 += 1,
            _ => seen.2 += 1,
        }
    }
    seen
}

const IMPATIENT: &str =
    "[edge.timeouts]\nconnect = \"500ms\"\nfirst_token = \"1s\"\nidle = \"1s\"\ntotal = \"4s\"";

#[tokio::test]
async fn an_engine_that_takes_connections_and_says_nothing_holds_up_nobody() {
    let (silent, good) =
        (ScriptedEngine::with(Vec::new()).await, ScriptedEngine::with(Vec::new()).await);
    for engine in [&silent, &good] {
        engine.answer_by(short);
    }
    let cluster = before(&[&silent, &good]).config(IMPATIENT).config(TIE).build().await;
    let client = cluster.client();
    // Prefixes of both.
    assert_eq!(mixed(&client, 40).await, (40, 0, 0));
    assert!(silent.asked_count() > 0 && good.asked_count() > 0);
    let before = silent.asked_count();
    silent.freeze();
    let (mut whole, mut failed) = (0, 0);
    for n in 0..60 {
        let reply = client.chat(chat(&document(n % 20, 40), 2, true)).await;
        match reply.status == 200 && reply.events().is_complete() {
            true => whole += 1,
            false => failed += 1,
        }
    }
    assert_eq!((whole, failed), (60, 0), "what is not answered in time is sent elsewhere");
    assert_eq!(silent.asked_count(), before, "it reads nothing any more");
    let retries = cluster.metrics().await.sum("warmpath_edge_retries_total", &[]);
    assert!((1.0..8.0).contains(&retries), "{retries}: it is taken out after a few");
    cluster.await_choice(&["b"]).await;
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_address_that_swallows_connections_is_passed_over() {
    let good = ScriptedEngine::with(Vec::new()).await;
    good.answer_by(short);
    let doomed = ScriptedEngine::with(Vec::new()).await;
    doomed.answer_by(short);
    let cluster = before(&[&doomed, &good])
        .config(IMPATIENT)
        .config(TIE)
        // No prober is to notice it first.
        .config("[telemetry]\nprobe_interval = \"1h\"\nmetrics_interval = \"1h\"")
        .build()
        .await;
    let client = cluster.client();
    assert_eq!(mixed(&client, 20).await, (20, 0, 0));
    let address: std::net::SocketAddr = doomed.url().trim_start_matches("http://").parse().unwrap();
    drop(doomed);
    // A full backlog: the kernel drops what else wants to connect, as a dead host does.
    let swallowing =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    swallowing.set_reuse_address(true).unwrap();
    // The engine's task lets go of the port when it is polled next.
    let bound = || std::future::ready(swallowing.bind(&address.into()).is_ok());
    eventually(PATIENCE, "the port is free", bound).await;
    swallowing.listen(0).unwrap();
    let mut fill = Vec::new();
    loop {
        let one = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(200), one).await {
            Ok(Ok(stream)) => fill.push(stream),
            _ => break,
        }
        assert!(fill.len() < 100, "the backlog has no end");
    }
    assert_eq!(mixed(&client, 40).await, (40, 0, 0));
    let retries = cluster.metrics().await.sum("warmpath_edge_retries_total", &[]);
    assert!((1.0..6.0).contains(&retries), "{retries}");
    cluster.stop().await;
}

#[tokio::test]
async fn an_engine_whose_core_is_dead_is_taken_out_whatever_its_probes_say() {
    for (fault, may_break) in [("status=500", 0), ("silent", 0), ("stall-after=3", 4)] {
        let cluster = Cluster::builder().engines(2).config(IMPATIENT).config(TIE).build().await;
        let client = cluster.client();
        for number in 0..10 {
            client.chat(chat(&document(number, 100), 6, true)).await;
        }
        let [before, _] = cluster.requests()[..] else { panic!("two engines") };
        cluster.doubles()[0].set_fault(fault.parse().unwrap());
        let mut broken = 0;
        for n in 0..60 {
            let reply = client.chat(chat(&document(n % 10, 100), 6, true)).await;
            let events = reply.events();
            assert!(events.is_complete() || events.is_interrupted(), "{fault}: {}", reply.text());
            broken += usize::from(!events.is_complete());
        }
        assert!(broken <= may_break, "{fault}: {broken} broke");
        let [dead, _] = cluster.requests()[..] else { panic!("two engines") };
        assert!(dead - before <= 10, "{fault}: it was asked {} times", dead - before);
        let state = cluster.published("engine-0").unwrap().0;
        assert_eq!(state, domain::BackendState::Ready, "its probes are good");
        // One that was soon avoided for its slowness has not failed often enough to be ejected.
        let ejections = cluster.metrics().await.sum("warmpath_router_ejections_total", &[]);
        assert!(ejections >= 1.0 || dead - before < 3, "{fault}: {dead} - {before}, {ejections}");
        // Trials, one at a time, let it back in once it answers.
        cluster.doubles()[0].clear_faults();
        let mut back = false;
        for n in 0..2000 {
            let reply = client.chat(chat(&format!("Again {n}"), 1, true)).await;
            assert!(reply.events().is_complete());
            back = reply.backend() == "engine-0";
            if back {
                break;
            }
        }
        assert!(back, "{fault}: it never came back");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn an_engine_killed_in_its_streams_breaks_them_and_fails_nothing_else() {
    let shape = |_, double: warmpath::double::Double| double.itl(Duration::from_millis(10));
    let cluster = Cluster::builder().engines(2).double(shape).build().await;
    let client = cluster.client();
    let mut open = Vec::new();
    for n in 0..8 {
        let body = chat(&document(n, 60), 2000, true);
        let mut one = client.open("/v1/chat/completions", &body).await;
        assert!(one.read_until(b"\"content\":", 3).await);
        open.push(one);
    }
    let running = cluster.stats()[0].running;
    assert!(running > 0, "it has some of them");
    cluster.kill("engine-0").await;
    let metrics = || async { cluster.metrics().await };
    let told = || async {
        let eof = [("outcome", "upstream_eof")];
        metrics().await.sum("warmpath_edge_requests_total", &eof) == f64::from(running)
    };
    eventually(PATIENCE, "all are told", told).await;
    for n in 0..10 {
        let reply = client.chat(chat(&format!("After {n}"), 1, true)).await;
        assert!(reply.events().is_complete() && reply.backend() == "engine-1");
    }
    drop(open);
    cluster.assert_idle().await;
    cluster.stop().await;
}
