//! Engines that fail in every way: another answers while nothing was handed on, and afterwards
//! nobody does.

use bytes::Bytes;
use http::Method;
use integration_tests::client::{Client, Reply};
use integration_tests::cluster::Cluster;
use integration_tests::metrics::Metrics;
use integration_tests::scenarios::{chat_with, document};
use serde_json::json;
use warmpath::double::Fault;

/// Output tokens of every request here.
const TOKENS: u32 = 6;

/// What a client must see.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// A whole answer, from the other engine.
    Failover,
    /// So many tokens, an error event, the end marker; nothing from the other engine.
    ErrorAfter(usize),
    /// A broken connection; nothing from the other engine.
    Broken,
    /// The engine's bytes as far as they came, and nothing from the other engine.
    AsItCame,
    /// An error of the gateway's own.
    Error(u16, &'static str),
}

use Expected::{AsItCame, Broken, Error, ErrorAfter, Failover};

struct Bed {
    cluster: Cluster,
    client: Client,
    documents: u64,
}

impl Bed {
    async fn start() -> Self {
        let limits =
            "[edge.timeouts]\nfirst_token = \"400ms\"\nidle = \"400ms\"\ntotal = \"900ms\"";
        let cluster = Cluster::builder().engines(2).config(limits).build().await;
        Self { client: cluster.client(), cluster, documents: 0 }
    }

    /// Asks about a document of which the engine just asked has the prefix, after this fault was
    /// set there.
    async fn ask(&mut self, faults: &[&str], stream: bool) -> (Reply, [u64; 2], Metrics, Metrics) {
        self.documents += 1;
        let body = |n: u32| {
            let text = format!("{} Question {n}?", document(self.documents, 100));
            chat_with(&text, json!({"max_tokens": TOKENS, "stream": stream}))
        };
        // On a busy machine an engine's first answers may look so slow that the other is tried.
        let mut home = String::new();
        for _ in 0..8 {
            let warm = self.client.chat(body(0)).await;
            assert_eq!(warm.status, 200, "{}", warm.text());
            let before = std::mem::replace(&mut home, warm.backend().to_owned());
            if before == home {
                break;
            }
        }
        self.cluster.assert_idle().await;
        let parsed = faults.iter().map(|f| f.parse::<Fault>().unwrap()).collect();
        self.cluster.double(&home).set_faults(parsed);
        let (before, metrics) = (self.cluster.requests(), self.cluster.metrics().await);
        let body = Bytes::from(body(1));
        let reply = self.client.try_send(Method::POST, "/v1/chat/completions", &[], body).await;
        // A connection that broke before its first byte is an answer that broke.
        let reply = reply.unwrap_or_else(|_| Reply::default());
        self.cluster.assert_idle().await;
        let after = self.cluster.requests();
        self.cluster.double(&home).set_faults(Vec::new());
        let at_home = usize::from(home == "engine-1");
        let sent = [at_home, 1 - at_home].map(|n| after[n] - before[n]);
        (reply, sent, metrics, self.cluster.metrics().await)
    }

    async fn check(&mut self, faults: &[&str], stream: bool, expected: Expected) {
        let (reply, sent, before, after) = self.ask(faults, stream).await;
        let case = format!("{faults:?} stream={stream}: {} {}", reply.status, reply.text());
        let grew = |name: &str| after.sum(name, &[]) - before.sum(name, &[]);
        // A kept connection that ends without a byte may have been closed for its age, so the
        // request is sent once more on a fresh one before another engine is asked.
        let at_most = if ["close", "reset"].contains(&faults[0]) { 2 } else { 1 };
        assert!((1..=at_most).contains(&sent[0]), "sent to it {} times; {case}", sent[0]);
        let other = u64::from(expected == Failover);
        assert_eq!(sent[1], other, "requests sent to the other; {case}");
        assert_eq!(grew("warmpath_edge_requests_total"), 1.0, "{case}");
        assert_eq!(grew("warmpath_edge_retries_total"), sent[1] as f64, "{case}");
        match expected {
            Failover if stream => {
                let events = reply.events();
                assert!(reply.status == 200 && events.is_complete(), "{case}");
                assert_eq!(events.contents, TOKENS as usize, "{case}");
                assert_eq!((events.ids.len(), events.roles), (1, 1), "one answer; {case}");
                assert_eq!(events.usages, 0, "it was not asked for; {case}");
            }
            Failover => {
                assert_eq!(reply.status, 200, "{case}");
                assert_eq!(reply.json()["usage"]["completion_tokens"], TOKENS, "{case}");
            }
            ErrorAfter(tokens) => {
                let events = reply.events();
                assert_eq!(reply.status, 200, "{case}");
                assert!(events.is_interrupted() && reply.whole, "{case}");
                assert_eq!((events.contents, events.ids.len()), (tokens, 1), "{case}");
                assert!(!reply.text().contains("\"finish_reason\":\"stop\""), "{case}");
                assert!(reply.text().ends_with("}\n\ndata: [DONE]\n\n"), "{case}");
            }
            Broken => assert!(!reply.whole, "{case}"),
            AsItCame => assert!(reply.status == 200 && reply.whole, "{case}"),
            Error(status, code) => reply.assert_error(status, code),
        }
        // Usage is counted once, and only where an engine reported it.
        let counted = grew("warmpath_edge_prompt_tokens_total");
        if expected == Failover {
            let tokens = if stream { counted } else { usage(&reply) };
            assert!(counted > 50.0 && counted == tokens, "{counted}; {case}");
            assert!(counted < 400.0, "counted more than once: {counted}; {case}");
        } else {
            assert_eq!(counted, 0.0, "{case}");
        }
    }

    async fn end(self) {
        self.cluster.assert_idle().await;
        self.cluster.stop().await;
    }
}

fn usage(reply: &Reply) -> f64 {
    reply.json()["usage"]["prompt_tokens"].as_f64().unwrap()
}

#[tokio::test]
async fn a_stream_that_fails_before_its_first_token_is_answered_by_another_engine() {
    let mut bed = Bed::start().await;
    for faults in [
        &["close"][..],
        &["reset"],
        &["silent"],
        &["status=500"],
        &["status=502"],
        &["status=503,retry-after=7"],
        &["status=429,retry-after=7"],
        &["reset-after=0"],
        &["close-after=0"],
        &["end-after=0"],
        &["comments=3", "reset-after=0"],
        &["stall-after=0"],
    ] {
        bed.check(faults, true, Failover).await;
    }
    bed.end().await;
}

#[tokio::test]
async fn a_stream_that_fails_after_its_first_token_ends_with_an_error_event() {
    let mut bed = Bed::start().await;
    for faults in [&["reset-after=3"][..], &["close-after=3"], &["end-after=3"], &["stall-after=3"]]
    {
        bed.check(faults, true, ErrorAfter(3)).await;
    }
    bed.check(&["reset-after=1", "comments=2"], true, ErrorAfter(1)).await;
    bed.end().await;
}

#[tokio::test]
async fn an_answer_in_one_piece_fails_over_until_its_first_byte() {
    let mut bed = Bed::start().await;
    for fault in ["close", "reset", "status=500", "status=503,retry-after=7", "status=429"] {
        bed.check(&[fault], false, Failover).await;
    }
    bed.check(&["reset-after=3"], false, Broken).await;
    bed.check(&["close-after=3"], false, Broken).await;
    bed.check(&["end-after=3"], false, AsItCame).await;
    // One limit over all attempts: there is no time left for another.
    bed.check(&["silent"], false, Error(504, "timeout")).await;
    bed.check(&["stall-after=3"], false, Broken).await;
    bed.end().await;
}

#[tokio::test]
async fn when_every_engine_is_full_the_last_ones_answer_passes() {
    let cluster = Cluster::builder().engines(2).build().await;
    for (spec, status) in [("status=429,retry-after=9", 429), ("status=503,retry-after=9", 503)] {
        for double in cluster.doubles() {
            double.set_fault(spec.parse().unwrap());
        }
        for stream in [true, false] {
            let before: u64 = cluster.requests().iter().sum();
            let body = chat_with("Full?", json!({"stream": stream, "max_tokens": 2}));
            let reply = cluster.client().chat(body).await;
            assert_eq!(reply.status, status);
            assert_eq!(reply.header("retry-after"), "9");
            assert_eq!(reply.json()["error"]["code"], status, "the engine's own words");
            assert_eq!(cluster.requests().iter().sum::<u64>(), before + 2, "each was asked once");
        }
    }
    let metrics = cluster.metrics().await;
    assert_eq!(metrics.sum("warmpath_router_ejections_total", &[]), 0.0, "full is not broken");
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn when_no_engine_can_be_reached_the_client_is_told_in_the_dialect() {
    let cluster = Cluster::builder().engines(2).build().await;
    for double in cluster.doubles() {
        double.set_fault("reset".parse().unwrap());
    }
    for stream in [true, false] {
        let body = chat_with("Anybody?", json!({"stream": stream}));
        let reply = cluster.client().chat(body).await;
        assert_eq!(reply.status, 502, "{}", reply.text());
        reply.assert_error(502, "upstream_unavailable");
    }
    cluster.assert_idle().await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_clients_fault_is_not_tried_again_and_takes_no_engine_out() {
    let cluster = Cluster::builder().engines(2).build().await;
    for n in 0..12 {
        let before: u64 = cluster.requests().iter().sum();
        let body = chat_with(&format!("Wrong {n}"), json!({"temperature": -1}));
        let reply = cluster.client().chat(body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()["error"]["type"], "BadRequestError", "the engine's own words");
        assert_eq!(cluster.requests().iter().sum::<u64>(), before + 1);
    }
    let metrics = cluster.metrics().await;
    assert_eq!(metrics.sum("warmpath_router_ejections_total", &[]), 0.0);
    cluster.stop().await;
}

#[tokio::test]
async fn an_engine_that_only_answers_probes_is_taken_out() {
    let cluster = Cluster::builder().engines(2).build().await;
    cluster.doubles()[0].set_fault("status=500".parse().unwrap());
    for n in 0..40 {
        let body = chat_with(&format!("Cold {n}"), json!({"stream": n % 2 == 0, "max_tokens": 1}));
        let reply = cluster.client().chat(body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let [broken, sound] = cluster.requests()[..] else { panic!("two engines") };
    assert!(broken < 8 && sound == 40, "{broken} and {sound}");
    cluster.stop().await;
}
