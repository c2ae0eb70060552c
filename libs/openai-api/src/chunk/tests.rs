use proptest::prelude::*;

use super::*;

fn chunk(json: &str) -> ChunkView {
    ChunkView::parse(json.as_bytes())
}

fn delta(delta: &str) -> ChunkView {
    chunk(&format!(
        r#"{{"id":"x","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#
    ))
}

#[test]
fn a_role_or_an_empty_delta_is_no_content() {
    for head in [
        r#"{"role":"assistant","content":""}"#,
        r#"{"role":"assistant","content":null}"#,
        r#"{"role":"assistant"}"#,
        r#"{"role":"assistant","content":"","tool_calls":[],"reasoning":""}"#,
    ] {
        let view = delta(head);
        assert!(!view.has_content && view.role_only, "{head}");
    }
    let empty = delta("{}");
    assert!(!empty.has_content && !empty.role_only);
    assert!(!delta("null").has_content);
}

#[test]
fn every_kind_of_output_is_content() {
    for output in [
        r#"{"content":"a"}"#,
        r#"{"role":"assistant","content":"a"}"#,
        r#"{"reasoning":"a"}"#,
        r#"{"reasoning_content":"a"}"#,
        r#"{"refusal":"a"}"#,
        r#"{"content":null,"tool_calls":[{"index":0,"function":{"arguments":"\""}}]}"#,
        r#"{"function_call":{"name":"f"}}"#,
        r#"{ "content" : "\u0000" }"#,
    ] {
        let view = delta(output);
        assert!(view.has_content && !view.role_only, "{output}");
    }
    assert!(chunk(r#"{"choices":[{"text":" Paris","index":0}]}"#).has_content);
    assert!(!chunk(r#"{"choices":[{"text":"","index":0}]}"#).has_content);
    assert!(chunk(r#"{"choices":[{"delta":{}},{"delta":{"content":"a"}}]}"#).has_content);
}

#[test]
fn a_finish_without_output_is_told() {
    let view =
        chunk(r#"{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":"stop"}]}"#);
    assert!(view.finish_reason && !view.has_content && !view.role_only);
    assert!(!delta(r#"{"content":"a"}"#).finish_reason);
}

#[test]
fn usage_is_read_wherever_it_stands() {
    let alone = chunk(
        r#"{"choices":[],"usage":{"prompt_tokens":37,"total_tokens":49,"completion_tokens":12,
            "prompt_tokens_details":{"cached_tokens":32,"created_cache_tokens":0}}}"#,
    );
    let usage = Usage { prompt_tokens: 37, completion_tokens: 12, cached_tokens: Some(32) };
    assert_eq!((alone.usage, alone.is_usage_only), (Some(usage), true));
    let beside = chunk(r#"{"usage":{"prompt_tokens":3},"choices":[{"delta":{"content":"a"}}]}"#);
    let usage = Usage { prompt_tokens: 3, completion_tokens: 0, cached_tokens: None };
    assert_eq!((beside.usage, beside.is_usage_only), (Some(usage), false));
    assert!(beside.has_content);
    let details =
        chunk(r#"{"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}"#);
    assert_eq!(details.usage, Some(usage));
}

#[test]
fn an_event_without_choices_is_no_usage_event_by_that_alone() {
    assert!(!chunk(r#"{"choices":[],"prompt_filter_results":[],"usage":null}"#).is_usage_only);
    assert!(!chunk(r#"{"choices":[]}"#).is_usage_only);
    assert!(!chunk(r#"{"usage":{"prompt_tokens":3}}"#).is_usage_only);
}

#[test]
fn the_end_and_errors_are_told() {
    assert!(ChunkView::parse(b"[DONE]").is_done);
    assert!(ChunkView::parse(b" [DONE] ").is_done);
    assert!(chunk(r#"{"error":{"message":"m","code":500}}"#).is_error);
    assert!(chunk(r#"{"error":"m"}"#).is_error);
    for fine in [r#"{"error":null}"#, r#"{"error":""}"#, r#"{"error":{}}"#, r#"{"error":false}"#] {
        assert!(!chunk(fine).is_error, "{fine}");
    }
}

#[test]
fn only_the_usage_event_that_we_asked_for_is_dropped() {
    let usage = chunk(r#"{"choices":[],"usage":{"prompt_tokens":1}}"#);
    let content = chunk(r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}"#);
    assert!(UsageFilter::new(true).drops(&usage));
    assert!(!UsageFilter::new(true).drops(&content));
    assert!(!UsageFilter::new(true).drops(&ChunkView::parse(b"[DONE]")));
    assert!(!UsageFilter::new(false).drops(&usage));
}

#[test]
fn a_streams_usage_is_its_last_running_count_or_the_sum_of_its_closing_events() {
    let total = |events: &[&str]| {
        let mut meter = UsageMeter::default();
        events.iter().for_each(|event| meter.observe(&chunk(event)));
        meter.total().map(|usage| (usage.prompt_tokens, usage.completion_tokens))
    };
    let running = |n: u32| {
        format!(r#"{{"choices":[{{}}],"usage":{{"prompt_tokens":9,"completion_tokens":{n}}}}}"#)
    };
    let closing = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":6}}"#;
    assert_eq!(total(&[]), None);
    assert_eq!(total(&[&running(1), &running(2), "[DONE]"]), Some((9, 2)));
    assert_eq!(total(&[&running(5), closing, "[DONE]"]), Some((9, 6)));
    assert_eq!(total(&[closing, closing]), Some((9, 12)));
}

#[test]
fn a_malformed_event_says_what_stands_before_the_fault() {
    for broken in
        ["", "{", "null", "[1]", "\"x\"", "{\"choices\":", "{\"choices\":[{\"delta\":7}]}"]
    {
        assert_eq!(chunk(broken), ChunkView::default(), "{broken}");
    }
    assert!(chunk(r#"{"choices":[{"delta":{"content":"a"#).usage.is_none());
    assert!(chunk(r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt"#).has_content);
}

#[test]
fn usage_of_a_whole_answer_is_read() {
    let body = br#"{"id":"x","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
    let usage = Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: None };
    assert_eq!(usage_of_response(body), Some(usage));
    assert_eq!(usage_of_response(b"{\"usage\":null}"), None);
    assert_eq!(usage_of_response(b"{\"usage\":{\"prompt_tokens\":1}"), None, "a cut body");
    assert_eq!(usage_of_response(b"gateway timeout"), None);
}

proptest! {
    #[test]
    fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = ChunkView::parse(&bytes);
        let _ = usage_of_response(&bytes);
    }

    /// A valid event cut anywhere.
    #[test]
    fn a_cut_event_never_shows_what_the_whole_does_not(at in 0..400_usize) {
        let whole = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[]},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":37,"total_tokens":49,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":32}},"error":null}"#;
        let cut = chunk(&whole[..at.min(whole.len())]);
        prop_assert!(!cut.has_content && !cut.is_error && !cut.finish_reason && !cut.is_done);
    }
}

fn read(grammar: Grammar, data: &str) -> ChunkView {
    ChunkView::read(data.as_bytes(), grammar)
}

#[test]
fn events_of_messages_say_what_they_are() {
    let of = |data: &str| read(Grammar::Messages, data);
    let start = of(r#"{"type":"message_start","message":{"id":"1","usage":{"input_tokens":5,
        "output_tokens":0,"cache_read_input_tokens":32,"cache_creation_input_tokens":3}}}"#);
    assert!(start.role_only && !start.has_content);
    let usage = start.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (40, Some(32)));
    for quiet in [
        r#"{"type":"ping"}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":""}}"#,
    ] {
        let view = of(quiet);
        assert!(!view.has_content && !view.is_done && !view.is_error, "{quiet}");
    }
    let data = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"hi"}}"#;
    let Said::Text { start, end } = of(data).said else { panic!("no text") };
    assert_eq!(&data[start..end], "hi");
    for (field, delta) in [("thinking", "thinking_delta"), ("partial_json", "input_json_delta")] {
        let data = format!(
            r#"{{"type":"content_block_delta","delta":{{"type":"{delta}","{field}":"x"}}}}"#
        );
        assert_eq!(of(&data).said, Said::Other);
    }
    let end = of(r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},
        "usage":{"output_tokens":9}}"#);
    assert!(end.finish_reason && !end.has_content);
    assert_eq!((end.usage, end.output_tokens), (None, Some(9)));
    assert!(of(r#"{"type":"message_stop"}"#).is_done);
    assert!(of(r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#).is_error);
}

#[test]
fn the_output_of_messages_may_be_counted_apart_from_their_input() {
    let mut meter = UsageMeter::default();
    for data in [
        r#"{"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}"#,
        r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":9}}"#,
    ] {
        meter.observe(&read(Grammar::Messages, data));
    }
    let total = meter.total().unwrap();
    assert_eq!((total.prompt_tokens, total.completion_tokens), (5, 9));
}

#[test]
fn events_of_responses_say_what_they_are() {
    let of = |data: &str| read(Grammar::Responses, data);
    let created = r#"{"response":{"id":"resp_1","usage":null},"type":"response.created"}"#;
    assert!(of(created).role_only);
    assert_eq!(response_id(created.as_bytes()), Some("resp_1"));
    assert!(!of(r#"{"item":{"id":"x"},"type":"response.output_item.added"}"#).has_content);
    let data = r#"{"content_index":0,"delta":"hi","type":"response.output_text.delta"}"#;
    let Said::Text { start, end } = of(data).said else { panic!("no text") };
    assert_eq!(&data[start..end], "hi");
    assert!(!of(r#"{"delta":"","type":"response.output_text.delta"}"#).has_content);
    let call = r#"{"type":"response.function_call_arguments.delta","delta":"{"}"#;
    assert_eq!(of(call).said, Said::Other);
    assert!(!of(r#"{"delta":"hi","type":"response.output_text.done"}"#).has_content);
    for last in ["completed", "incomplete"] {
        let data = format!(
            r#"{{"type":"response.{last}","response":{{"id":"r","usage":{{"input_tokens":33,
            "input_tokens_details":{{"cached_tokens":16}},"output_tokens":4}}}}}}"#
        );
        let view = of(&data);
        let usage = view.usage.unwrap();
        assert!(view.is_done);
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (33, 4));
        assert_eq!(usage.cached_tokens, Some(16));
    }
    assert!(of(r#"{"type":"response.failed","response":{}}"#).is_error);
    assert!(of(r#"{"type":"error","code":"x","message":"m"}"#).is_error);
}

#[test]
fn a_responses_id_is_that_of_the_response_alone() {
    let id = |body: &str| response_id(body.as_bytes()).map(str::to_owned);
    assert_eq!(id(r#"{"id":"resp_1","object":"response","output":[]}"#).unwrap(), "resp_1");
    assert_eq!(id(r#"{"id":"chatcmpl-1","object":"chat.completion"}"#), None);
    assert_eq!(id(r#"{"object":"response"}"#), None);
    assert_eq!(id(r#"{"id":"","object":"response"}"#), None);
    assert_eq!(id(r#"{"id":"a\nb","object":"response"}"#), None);
    assert_eq!(id("[]"), None);
}

#[test]
fn events_of_cohere_say_what_they_are() {
    let of = |data: &str| read(Grammar::Cohere, data);
    assert!(of(r#"{"type":"message-start","id":"1"}"#).role_only);
    assert!(!of(r#"{"type":"content-start","index":0}"#).has_content);
    let delta =
        r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":"x"}}}}"#;
    assert!(of(delta).has_content);
    let end = of(r#"{"type":"message-end","delta":{"finish_reason":"COMPLETE","usage":
        {"tokens":{"input_tokens":7.0,"output_tokens":3},"cached_tokens":4}}}"#);
    let usage = end.usage.unwrap();
    assert!(end.finish_reason && !end.is_error);
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (7, 3));
    assert_eq!(usage.cached_tokens, Some(4));
}

#[test]
fn token_ids_are_output_where_they_are_asked_for() {
    let data = r#"{"choices":[{"index":0,"token_ids":[5]}]}"#;
    assert_eq!(read(Grammar::TokenIds, data).said, Said::Other);
    assert!(!read(Grammar::Choices, data).has_content);
}

#[test]
fn the_text_of_a_whole_answer_is_found_in_every_api() {
    for (grammar, body) in [
        (Grammar::Choices, r#"{"choices":[{"message":{"role":"assistant","content":"hi"}}]}"#),
        (Grammar::Messages, r#"{"type":"message","content":[{"type":"text","text":"hi"}]}"#),
        (
            Grammar::Responses,
            r#"{"object":"response","text":{"format":1},"output":[{"type":"message",
            "content":[{"type":"output_text","text":"hi","logprobs":null}]}]}"#,
        ),
    ] {
        let Said::Text { start, end } = read(grammar, body).said else { panic!("{body}") };
        assert_eq!(&body[start..end], "hi");
    }
    for (grammar, body) in [
        (
            Grammar::Messages,
            r#"{"content":[{"type":"thinking","thinking":"x"},{"type":"text","text":"hi"}]}"#,
        ),
        (
            Grammar::Responses,
            r#"{"output":[{"content":[{"text":"hi"}]},{"type":"function_call","arguments":"{}"}]}"#,
        ),
    ] {
        assert_eq!(read(grammar, body).said, Said::Other, "{body}");
    }
}
