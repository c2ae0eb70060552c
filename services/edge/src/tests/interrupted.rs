//! Answers that break after part of them was handed on.

use std::time::Duration;

use crate::testing::*;

const ERROR: &str = r#""code":"upstream_interrupted""#;

#[tokio::test]
async fn a_stream_that_breaks_after_content_ends_with_an_error_event_and_no_second_answer() {
    let (a, b) = (token("a"), token("b"));
    let begun = || vec![sse(), event(ROLE), event(&a), event(&b)];
    let with = |step| [begun(), vec![step]].concat();
    // A reset may overtake what was sent just before it.
    let reset = [begun(), vec![Step::Pause(Duration::from_millis(50)), Step::Reset]].concat();
    let cases = [with(Step::Close), with(Step::Send(b"0\r\n\r\n".to_vec())), reset];
    for script in cases {
        let engine = Engine::start("a", vec![script]).await;
        let other = Engine::start("b", vec![events(&[&token("other"), DONE])]).await;
        let bed = Bed::start(&[&engine, &other]).await;
        let reply = bed.client.chat(STREAM).await;
        let text = reply.text();
        assert!(text.starts_with(&[ROLE, &a, &b].concat()), "{text}");
        let tail = &text[[ROLE, &a, &b].concat().len()..];
        assert!(tail.starts_with("data: {\"error\":{"), "{tail}");
        assert!(tail.contains(ERROR), "{tail}");
        assert!(tail.ends_with("\n\ndata: [DONE]\n\n"), "{tail}");
        assert!(reply.whole);
        assert!(other.requests().is_empty());
        assert_eq!(bed.router.events(), [["first-token", "failed interrupted"]]);
        bed.assert_idle().await;
        bed.assert_metric(
            r#"warmpath_edge_requests_total{model="m",outcome="upstream_eof",route="chat"} 1"#,
        );
    }
}

#[tokio::test]
async fn an_end_with_a_finish_reason_and_no_marker_is_an_end() {
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let engine = Engine::start("a", vec![events(&[&token("a"), stop])]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [&token("a"), stop].concat());
    assert_eq!(bed.router.events(), [["first-token", "finished"]]);
}

#[tokio::test]
async fn an_unfinished_event_is_not_mixed_with_the_error_event() {
    let cut = "data: {\"choices\":[{\"delta\":{\"content\":\"unfini";
    let script = vec![sse(), event(&token("a")), event(cut), Step::Close];
    let engine = Engine::start("a", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let text = bed.client.chat(STREAM).await.text();
    let tail = text.strip_prefix(&token("a")).unwrap();
    assert!(tail.starts_with("data: {\"error\":{"), "{tail}");
}

#[tokio::test]
async fn a_stream_that_ends_properly_within_an_event_is_not_mixed_with_the_error_event() {
    let whole = token("b");
    for cut in [
        "data: {\"choices\":[{\"delta\":{\"content\":\"unfini",
        ": keep",
        ": keep\n",
        "event: x\n",
        "data",
        whole.trim_end(),
    ] {
        let engine = Engine::start("a", vec![events(&[&token("a"), cut])]).await;
        let bed = Bed::start(&[&engine]).await;
        let reply = bed.client.chat(STREAM).await;
        let text = reply.text();
        let tail = text.strip_prefix(&token("a")).unwrap();
        assert!(tail.starts_with("data: {\"error\":{"), "{cut:?}: {tail}");
        assert!(tail.contains(ERROR) && tail.ends_with("\n\ndata: [DONE]\n\n"), "{tail}");
        assert!(reply.whole);
        assert_eq!(bed.router.events(), [["first-token", "failed interrupted"]]);
        bed.assert_metric(
            r#"warmpath_edge_requests_total{model="m",outcome="upstream_eof",route="chat"} 1"#,
        );
    }
}

#[tokio::test]
async fn an_unfinished_event_that_ends_the_answer_goes_on_as_it_is() {
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}";
    for (parts, end) in [
        (vec![token("a")], "data: [DONE]\n"),
        (vec![token("a")], "data: [DONE]"),
        (vec![token("a")], stop),
        (vec![token("a"), format!("{stop}\n\n")], "data: {\"usa"),
    ] {
        let parts: Vec<&str> = parts.iter().map(String::as_str).chain([end]).collect();
        let engine = Engine::start("a", vec![events(&parts)]).await;
        let bed = Bed::start(&[&engine]).await;
        assert_eq!(bed.client.chat(STREAM).await.text(), parts.concat());
        assert_eq!(bed.router.events(), [["first-token", "finished"]]);
    }
}

#[tokio::test]
async fn an_engines_own_error_event_without_its_blank_line_gets_one() {
    let error = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}";
    let engine = Engine::start("a", vec![events(&[&token("a"), error])]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [&token("a"), error, "\n\n"].concat());
    assert_eq!(bed.router.events(), [["first-token", "failed interrupted"]]);
}

#[tokio::test]
async fn a_large_unfinished_event_is_closed_before_the_error_event() {
    let cut = format!("data: {{\"x\":\"{}", "y".repeat(3_000_000));
    let engine = Engine::start("a", vec![vec![sse(), event(&cut), Step::Close]]).await;
    let bed = Bed::start(&[&engine]).await;
    let text = bed.client.chat(STREAM).await.text();
    let (event, tail) = text.split_once("\n\n").unwrap();
    assert!(cut.starts_with(event));
    assert!(tail.starts_with("data: {\"error\":{"), "{tail}");
}

#[tokio::test]
async fn a_stream_that_ends_properly_within_a_large_event_is_closed_before_the_error_event() {
    let cut = format!("data: {{\"x\":\"{}", "y".repeat(3_000_000));
    let engine = Engine::start("a", vec![events(&[&token("a"), &cut])]).await;
    let bed = Bed::start(&[&engine]).await;
    let text = bed.client.chat(STREAM).await.text();
    let tail = text.strip_prefix(&[token("a"), cut].concat()).unwrap();
    assert!(tail.starts_with("\n\ndata: {\"error\":{"), "{tail}");
}

#[tokio::test]
async fn an_engines_own_error_event_passes_and_is_no_success() {
    let error = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n";
    let engine = Engine::start("a", vec![events(&[&token("a"), error, DONE])]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [&token("a"), error, DONE].concat());
    assert_eq!(bed.router.events(), [["first-token", "failed interrupted"]]);
    bed.assert_idle().await;
    bed.assert_metric(
        r#"warmpath_edge_stream_interruptions_total{reason="upstream_error_event"} 1"#,
    );
}

#[tokio::test]
async fn a_break_after_an_engines_own_error_event_adds_no_second_one() {
    let error = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n";
    for end in [Step::Close, Step::Send(b"0\r\n\r\n".to_vec())] {
        let pause = Step::Pause(Duration::from_millis(20));
        let script = vec![sse(), event(&token("a")), pause, event(error), end];
        let engine = Engine::start("a", vec![script]).await;
        let bed = Bed::start(&[&engine]).await;
        let reply = bed.client.chat(STREAM).await;
        assert_eq!(reply.text(), [&token("a"), error].concat());
        assert_eq!(bed.router.events(), [["first-token", "failed interrupted"]]);
    }
}

#[tokio::test]
async fn a_whole_answer_that_breaks_does_not_end_cleanly() {
    let lengths = ["content-length: 100\r\n", "transfer-encoding: chunked\r\n"];
    for length in lengths {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{length}\r\n");
        let body = if length.contains("chunked") { "3\r\n{\"a\r\n" } else { "{\"a" };
        let steps = vec![
            Step::Send(head.into_bytes()),
            Step::Send(body.as_bytes().to_vec()),
            Step::Pause(Duration::from_millis(50)),
            Step::Close,
        ];
        let engine = Engine::start("a", vec![steps]).await;
        let bed = Bed::start(&[&engine]).await;
        let reply = bed.client.chat(WHOLE).await;
        assert_eq!((reply.status, reply.text().as_str(), reply.whole), (200, "{\"a", false));
        assert_eq!(bed.router.events(), [["failed interrupted"]]);
        bed.assert_idle().await;
    }
}

#[tokio::test]
async fn the_end_marker_is_the_end_however_the_connection_ends() {
    let script = vec![sse(), event(&token("a")), event(DONE), Step::Close];
    let engine = Engine::start("a", vec![script]).await;
    let bed = Bed::start(&[&engine]).await;
    let reply = bed.client.chat(STREAM).await;
    assert_eq!(reply.text(), [&token("a"), DONE].concat());
    assert!(reply.whole);
    assert_eq!(bed.router.events(), [["first-token", "finished"]]);
}
