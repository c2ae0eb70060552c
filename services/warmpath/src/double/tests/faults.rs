//! Each fault as its clients see it.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, End, Reply};
use super::{ask, chat, eventually, long_text, quick, slow, start, with};
use crate::double::{Cut, DoubleHandle, Fault, FaultKind};

fn fault(spec: &str) -> Fault {
    spec.parse().expect("a fault")
}

fn streamed() -> Value {
    with(ask("hello"), json!({"stream": true, "max_tokens": 8}))
}

async fn under(spec: &str, body: Value) -> (DoubleHandle, Reply) {
    let double = start(quick().fault(fault(spec))).await;
    let reply = chat(&double, body).await;
    (double, reply)
}

fn contents(reply: &Reply) -> usize {
    let named = |event: &String| event.contains("\"delta\":{\"content\"");
    reply.events().iter().filter(|event| named(event)).count()
}

#[tokio::test]
async fn a_closed_port_refuses_connections_and_opens_again() {
    let double = start(quick()).await;
    let mut open = Client::connect(double.addr()).await;
    assert_eq!(open.get("/health").await.status, 200);
    double.set_fault(Fault::always(FaultKind::Refuse));
    let refused = async || {
        let error = tokio::net::TcpStream::connect(double.addr()).await.err();
        error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    while !refused().await {
        tick.tick().await;
    }
    assert_eq!(open.get("/health").await.status, 200, "an open connection goes on");
    double.clear_faults();
    while refused().await {
        tick.tick().await;
    }
    assert_eq!(chat(&double, ask("hello")).await.status, 200);
}

#[tokio::test]
async fn a_connection_can_end_before_any_byte() {
    for (spec, end) in [("close", End::Fin), ("reset", End::Reset)] {
        let (double, reply) = under(spec, streamed()).await;
        assert_eq!((reply.status, reply.end), (0, end), "{spec}");
        assert_eq!(Client::connect(double.addr()).await.get("/health").await.status, 200);
        assert_eq!(double.stats().scheduled, 0);
    }
}

#[tokio::test]
async fn a_status_comes_with_its_headers_and_vllms_body() {
    let (_double, reply) = under("status=503,retry-after=7", streamed()).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("7")));
    let error = &reply.json()["error"];
    assert_eq!((&error["code"], &error["type"]), (&json!(503), &json!("ServiceUnavailableError")));
    let (_double, reply) = under("status=500", streamed()).await;
    assert_eq!((reply.status, reply.header("retry-after")), (500, None));
}

#[tokio::test]
async fn a_fault_with_a_count_ends() {
    let double = start(quick().fault(fault("status=429,times=2"))).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(chat(&double, ask("hello")).await.status);
    }
    assert_eq!(statuses, [429, 429, 200]);
}

#[tokio::test]
async fn health_and_metrics_fail_only_when_asked_to() {
    let double = start(quick().fault(fault("status=500"))).await;
    let mut client = Client::connect(double.addr()).await;
    assert_eq!(client.get("/health").await.status, 200);
    double.set_fault(fault("status=500,all"));
    assert_eq!(client.get("/health").await.status, 500);
    assert_eq!(client.get("/metrics").await.status, 500);
}

#[tokio::test]
async fn silence_follows_the_headers() {
    let double = start(quick().fault(fault("silent"))).await;
    let mut client = Client::connect(double.addr()).await;
    client.send("POST", "/v1/chat/completions", &streamed().to_string()).await;
    let head = client.read_until("\r\n\r\n", 1).await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("text/event-stream"));
    drop(client);
    eventually("its socket is closed", || double.stats().open_sockets == 0).await;
}

#[tokio::test]
async fn headers_can_be_late() {
    let double = start(quick().fault(fault("delay=60"))).await;
    let before = tokio::time::Instant::now();
    assert_eq!(chat(&double, streamed()).await.end, End::Complete);
    assert!(before.elapsed() >= Duration::from_millis(60));
}

#[tokio::test]
async fn a_stream_can_be_cut_after_any_token() {
    for after in [0, 1, 3] {
        for (how, end) in [("reset", End::Reset), ("close", End::Fin), ("end", End::Complete)] {
            let (double, reply) = under(&format!("{how}-after={after}"), streamed()).await;
            assert_eq!((reply.status, reply.end), (200, end), "{how} {after}");
            assert!(reply.events()[0].contains("assistant"), "the role is always sent");
            assert_eq!(contents(&reply), after, "{how}");
            assert!(!reply.text().contains("[DONE]"));
            eventually("it is taken out", || double.stats().running == 0).await;
            eventually("its socket is closed", || double.stats().open_sockets == 0).await;
        }
    }
}

#[tokio::test]
async fn a_cut_beyond_the_last_token_still_comes_before_done() {
    let (_double, reply) = under("close-after=1000", streamed()).await;
    assert_eq!((reply.end, contents(&reply)), (End::Fin, 8));
    assert!(!reply.text().contains("[DONE]"));
}

#[tokio::test]
async fn a_whole_answer_is_cut_in_its_middle() {
    for (spec, end) in [("reset-after=0", End::Reset), ("close-after=0", End::Fin)] {
        let (_double, reply) = under(spec, ask("hello")).await;
        assert_eq!((reply.status, reply.end), (200, end), "{spec}");
        assert!(!reply.body.is_empty() && serde_json::from_slice::<Value>(&reply.body).is_err());
    }
    for spec in ["end-after=0", "bad-json=0"] {
        let (_double, reply) = under(spec, ask("hello")).await;
        assert_eq!(reply.end, End::Complete, "{spec}");
        assert!(serde_json::from_slice::<Value>(&reply.body).is_err(), "{spec}");
    }
}

#[tokio::test]
async fn a_stall_keeps_the_connection_open() {
    let double = start(quick().fault(fault("stall-after=2"))).await;
    let mut client = Client::connect(double.addr()).await;
    client.send("POST", "/v1/chat/completions", &streamed().to_string()).await;
    let text = client.read_until("\"delta\":{\"content\"", 2).await;
    eventually("the engine is through", || double.stats().running == 0).await;
    assert!(!text.contains("[DONE]"));
    assert_eq!(double.stats().open_sockets, 1);
}

#[tokio::test]
async fn comments_come_before_the_first_token() {
    let double = start(slow().fault(fault("comments=3"))).await;
    let mut client = Client::connect(double.addr()).await;
    client.send("POST", "/v1/chat/completions", &streamed().to_string()).await;
    let text = client.read_until(": keep-alive\n\n", 3).await;
    let first_event = text.find("data: ").unwrap_or(text.len());
    assert_eq!(text[..first_event].matches(": keep-alive\n\n").count(), 3, "{text}");
    assert!(client.read().await.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_broken_event_stands_among_whole_ones() {
    let (_double, reply) = under("bad-json=2", streamed()).await;
    let broken: Vec<usize> = (0..)
        .zip(reply.events())
        .filter(|(_, event)| event != "[DONE]" && serde_json::from_str::<Value>(event).is_err())
        .map(|(position, _)| position)
        .collect();
    assert_eq!(broken, [3], "after the role and two tokens");
    assert_eq!((reply.end, reply.events().len()), (End::Complete, 1 + 8 + 1 + 1));
}

#[tokio::test]
async fn a_giant_event_has_the_asked_for_size() {
    let (_double, reply) = under("giant=3000000", streamed()).await;
    assert_eq!(reply.end, End::Complete);
    assert!(reply.events()[1].len() > 3_000_000);
    let (_double, reply) = under("giant=100000", ask("hello")).await;
    let content = reply.json()["choices"][0]["message"]["content"].as_str().map(str::len);
    assert_eq!(content, Some(100_000));
}

#[tokio::test]
async fn one_byte_writes_carry_the_same_bytes() {
    let (_double, reply) = under("one-byte-writes", streamed()).await;
    let (_other, whole) = under("comments=0", streamed()).await;
    assert_eq!(reply.end, End::Complete);
    assert_eq!(reply.content(), whole.content());
    assert_eq!(reply.body.len(), whole.body.len());
}

#[tokio::test]
async fn faults_add_up() {
    let double = start(quick()).await;
    double.set_faults(vec![
        Fault::always(FaultKind::Comments(1)),
        Fault::always(FaultKind::Cut { after_tokens: 1, how: Cut::Reset }),
    ]);
    let reply = chat(&double, streamed()).await;
    assert!(reply.text().starts_with(": keep-alive\n\ndata: "));
    assert_eq!((reply.end, contents(&reply)), (End::Reset, 1));
}

#[tokio::test]
async fn faults_are_set_over_http_too() {
    let double = start(quick()).await;
    let mut client = Client::connect(double.addr()).await;
    let set = client.post("/fault", r#"{"faults":["status=502,times=1","delay=1"]}"#).await;
    assert_eq!(set.json(), json!({"faults": ["status=502,times=1", "delay=1"]}));
    assert_eq!(chat(&double, ask("hello")).await.status, 502);
    assert_eq!(client.get("/fault").await.json(), json!({"faults": ["delay=1"]}));
    let wrong = client.post("/fault", r#"{"faults":["nonsense"]}"#).await;
    assert_eq!(wrong.status, 400);
    client.send("DELETE", "/fault", "").await;
    assert_eq!(client.read().await.json(), json!({"faults": []}));
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time_and_a_busy_one_is_not() {
    let double = start(slow().keep_alive(Duration::from_millis(40))).await;
    let mut client = Client::connect(double.addr()).await;
    // Longer than the idle time, but not idle.
    let body = with(ask(&long_text()), json!({"stream": true, "max_tokens": 3}));
    let reply = client.post("/v1/chat/completions", &body.to_string()).await;
    assert_eq!(reply.end, End::Complete);
    let before = tokio::time::Instant::now();
    assert_eq!(client.closed().await, End::Fin);
    assert!(before.elapsed() >= Duration::from_millis(35));
    double.set_keep_alive(Duration::ZERO);
    let mut client = Client::connect(double.addr()).await;
    let reply = client.get("/health").await;
    assert_eq!((reply.status, reply.header("connection")), (200, None), "no warning");
    assert_eq!(client.closed().await, End::Fin);
}

#[tokio::test]
async fn the_static_mode_has_faults_too() {
    let double = start(quick().static_response(true).fault(fault("reset-after=1"))).await;
    let reply = chat(&double, streamed()).await;
    assert_eq!((reply.status, reply.end, contents(&reply)), (200, End::Reset, 1));
}
