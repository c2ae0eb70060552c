//! Time limits, under a clock that moves only when nothing else does.

use std::time::Duration;

use domain::ErrorCode;
use tokio::time::Instant;

use crate::testing::*;

fn pause(seconds: u64) -> Step {
    Step::Pause(Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn a_long_stream_that_goes_on_is_never_cut() {
    let mut script = vec![sse(), event(ROLE)];
    for _ in 0..400 {
        script.extend([event(&token("t")), Step::Pause(Duration::from_millis(500))]);
    }
    script.extend([event(DONE), Step::Send(b"0\r\n\r\n".to_vec())]);
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text().matches("\"t\"").count(), 400);
    assert!(reply.text().ends_with(DONE) && reply.whole);
    let reports = &bed.router.events()[0];
    assert_eq!(reports.first().unwrap(), "first-token");
    assert!(reports.iter().filter(|r| r.starts_with("progress")).count() > 20, "{reports:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_first_token_and_a_slow_whole_answer_are_waited_for() {
    let slow = [vec![sse(), pause(45)], vec![event(&token("a")), event(DONE)]].concat();
    let engine = Engine::start("e", vec![slow, vec![pause(120), answer("200 OK", "", "x")]]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [&token("a"), DONE].concat());
    assert_eq!(bed.client.chat(WHOLE).await.text(), "x");
}

/// The whole milliseconds that an answer says it took, if it says so.
fn processing_ms(reply: &Reply) -> Option<u64> {
    reply.header("openai-processing-ms").map(|value| value.parse().expect("a whole number"))
}

#[tokio::test(start_paused = true)]
async fn openais_clients_are_told_how_long_an_answer_took_until_its_head() {
    let slow = vec![pause(2), answer("200 OK", "", "x")];
    let stream = vec![sse(), pause(3), event(&token("a")), pause(30), event(DONE)];
    let stream = [stream, vec![Step::Send(b"0\r\n\r\n".to_vec())]].concat();
    let engine = Engine::start("e", vec![slow.clone(), stream, slow.clone(), slow]).await;
    let bed = Bed::start(&[&engine]).await;
    let took = |reply: &Reply, seconds: u64| {
        let ms = processing_ms(reply).expect("it is told");
        assert!((seconds * 1000..seconds * 1000 + 50).contains(&ms), "{ms} ms, not {seconds} s");
    };
    took(&bed.client.chat(WHOLE).await, 2);
    let reply = bed.client.chat(STREAM).await;
    assert!(reply.whole);
    took(&reply, 3);
    took(&bed.client.post("/v1/responses", "", r#"{"model":"m","input":"x"}"#).await, 2);
    took(&bed.client.get("/v1/models").await, 0);
    for path in ["/v1/messages", "/cohere/v2/chat"] {
        let reply = bed.client.post(path, "", WHOLE).await;
        assert_eq!((reply.status, processing_ms(&reply)), (200, None), "{path}");
    }
    assert_eq!(processing_ms(&bed.client.chat("{}").await), None, "it is refused");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_tells_how_long_it_took_is_not_corrected() {
    let own = answer("200 OK", "openai-processing-ms: 17\r\n", "x");
    let full = answer("429 Too Many Requests", "OpenAI-Processing-Ms: 18\r\n", "full");
    let engine = Engine::start("e", vec![vec![pause(1), own], vec![full]]).await;
    let bed = Bed::start(&[&engine]).await;
    assert_eq!(processing_ms(&bed.client.chat(WHOLE).await), Some(17));
    let reply = bed.client.chat(WHOLE).await;
    assert_eq!((reply.status, processing_ms(&reply)), (429, Some(18)));
}

#[tokio::test]
async fn a_refusal_for_too_many_requests_tells_how_long_it_took_except_to_anthropics_clients() {
    let engine = Engine::start("e", vec![vec![answer("200 OK", "", "x")]]).await;
    let mut setup = Setup::default();
    setup.tenants.push(tenant("anonymous", |t| t.requests_per_minute = Some(1)));
    let bed = setup.start(&[&engine]).await;
    assert_eq!(bed.client.chat(WHOLE).await.status, 200);
    let reply = bed.client.chat(WHOLE).await;
    assert_eq!(reply.status, 429);
    assert!(processing_ms(&reply).is_some_and(|ms| ms < 10_000), "{reply:?}");
    let reply = bed.client.post("/v1/messages", "", WHOLE).await;
    assert_eq!((reply.status, processing_ms(&reply)), (429, None));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_goes_silent_ends_with_an_error_event_at_the_idle_limit() {
    let engine = Engine::start("e", vec![vec![sse(), event(&token("a")), Step::AwaitClose]]).await;
    let bed = Bed::start(&[&engine]).await;
    let started = Instant::now();
    let text = bed.client.chat(STREAM).await.text();
    assert_eq!(started.elapsed().as_secs(), 120);
    let tail = text.strip_prefix(&token("a")).unwrap();
    assert!(tail.contains(r#""code":"timeout""#) && tail.ends_with(DONE), "{tail}");
    assert_eq!(bed.router.events(), [["first-token", "failed timeout"]]);
    engine.await_all_closed().await;
    bed.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_a_first_token_is_given_up_for_another() {
    for script in [vec![Step::AwaitClose], vec![sse(), Step::AwaitClose]] {
        let silent = Engine::start("a", vec![script]).await;
        let good = Engine::start("b", vec![events(&[&token("b"), DONE])]).await;
        let edge = crate::RawConfig::default();
        let mut setup = Setup { edge, ..Setup::default() };
        // Shorter than the hold, so that the head has not been handed on.
        setup.edge.timeouts.first_token = settings::HumanDuration::from_secs(5);
        let bed = setup.start(&[&silent, &good]).await;
        let started = Instant::now();
        assert_eq!(bed.client.chat(STREAM).await.text(), [&token("b"), DONE].concat());
        assert_eq!(started.elapsed().as_secs(), 5);
        assert_eq!(bed.router.events()[0], ["failed timeout"]);
    }
}

#[tokio::test(start_paused = true)]
async fn when_every_engine_is_silent_the_answer_is_a_timeout() {
    let silent = Engine::start("a", vec![vec![Step::AwaitClose]]).await;
    let bed = Bed::start(&[&silent]).await;
    let started = Instant::now();
    assert_error(&bed.client.chat(STREAM).await, ErrorCode::Timeout);
    assert_eq!(started.elapsed().as_secs(), 120);
    let started = Instant::now();
    assert_error(&bed.client.chat(WHOLE).await, ErrorCode::Timeout);
    assert_eq!(started.elapsed().as_secs(), 600);
    bed.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_let_go_after_a_while_and_in_order() {
    let script = vec![sse(), event(ROLE), pause(30), event(&token("a")), event(DONE)];
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let started = Instant::now();
    let mut stream = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(ROLE) {
        tokio::io::AsyncReadExt::read_buf(&mut stream, &mut seen).await.unwrap();
    }
    assert_eq!(started.elapsed().as_secs(), 10);
    while !String::from_utf8_lossy(&seen).contains(DONE) {
        tokio::io::AsyncReadExt::read_buf(&mut stream, &mut seen).await.unwrap();
    }
    let text = String::from_utf8_lossy(&seen);
    assert!(text.find(ROLE) < text.find(&token("a")));
    assert_eq!(started.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn more_than_a_little_is_not_held() {
    let comments = ": keep-alive\n\n".repeat(400);
    let engine = Engine::start("e", vec![vec![sse(), event(&comments), pause(3600)]]).await;
    let bed = Bed::start(&[&engine]).await;
    let started = Instant::now();
    let mut stream = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 64]).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn the_time_to_first_token_is_that_of_the_first_content() {
    let outputs = [
        token("a"),
        token("a").replace("content", "reasoning_content"),
        token("a").replace(r#""content":"a""#, r#""tool_calls":[{"index":0}]"#),
    ];
    for output in outputs {
        let script = vec![
            sse(),
            event(": ping\n\n"),
            event(ROLE),
            pause(2),
            event(&output),
            event(DONE),
            Step::Send(b"0\r\n\r\n".to_vec()),
        ];
        let engine = Engine::start("e", vec![script]).await;
        let bed = Bed::start(&[&engine]).await;
        assert!(bed.client.chat(STREAM).await.whole);
        bed.assert_idle().await;
        let page = bed.metrics();
        let sum = page.lines().find(|l| l.starts_with("warmpath_edge_ttft_seconds_sum")).unwrap();
        let sum: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((2.0..2.05).contains(&sum), "{sum}");
        bed.assert_metric(r#"warmpath_edge_ttft_seconds_count{model="m"} 1"#);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_coming_is_given_up() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    let reply = read_reply(&mut stream, "POST").await;
    assert_error(&reply, ErrorCode::RequestTimeout);
    bed.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_cut_off() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    for start in ["", "PRI", "POST / HTTP/1.1\r\n"] {
        let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, start.as_bytes()).await.unwrap();
        let started = Instant::now();
        let mut rest = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
        assert_eq!(started.elapsed().as_secs(), 75, "{start}");
    }
    eventually("connections are open", || bed.gateway.families.connections.get() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_cut_off_and_its_engine_freed() {
    let chunk = event(&token(&"x".repeat(1_000_000)));
    let script = [vec![sse()], vec![chunk; 60]].concat();
    let engine = Engine::start("e", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let stream = bed.client.send("POST", "/v1/chat/completions", "", STREAM).await;
    engine.await_requests(1).await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    engine.await_all_closed().await;
    bed.assert_idle().await;
    assert_eq!(bed.router.events()[0].last().unwrap(), "cancelled");
    drop(stream);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_drips_is_given_up() {
    let engine = Engine::start("e", vec![vec![]]).await;
    let bed = Bed::start(&[&engine]).await;
    let mut stream = tokio::net::TcpStream::connect(bed.client.address).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n";
    let begun = [head.as_bytes(), &[b' '; 800_000]].concat();
    tokio::io::AsyncWriteExt::write_all(&mut writing, &begun).await.unwrap();
    let started = Instant::now();
    let dripping = async {
        while tokio::io::AsyncWriteExt::write_all(&mut writing, b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = dripping => {}
        _ = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut answer) => {}
    }
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    assert!(started.elapsed() < Duration::from_secs(35), "{:?}", started.elapsed());
    bed.assert_idle().await;
}
