use super::*;

/// The part of a recorded event that does not depend on the run.
fn tail(event: &str) -> &str {
    event.split_once("\"choices\":").expect("an event with choices").1
}

const USAGE: Usage =
    Usage { prompt_tokens: 37, completion_tokens: 12, cached_tokens: 32, created_cache_tokens: 0 };

#[test]
fn chat_events_have_the_recorded_shape() {
    let wire = Wire::new(Dialect::Chat, "8fc3d40e6c5f6d5f", 1795967078, "smollm2");
    let mut out = String::new();
    wire.role(&mut out, 0, None);
    assert_eq!(
        out,
        "data: {\"id\":\"chatcmpl-8fc3d40e6c5f6d5f\",\"object\":\"chat.completion.chunk\",\
         \"created\":1795967078,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"delta\":\
         {\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\
         \"prompt_token_ids\":null,\"prompt_text\":null}\n\n"
    );
    out.clear();
    wire.content(&mut out, 0, ("'m", 1), false, false, None);
    assert_eq!(
        tail(&out),
        "[{\"index\":0,\"delta\":{\"content\":\"'m\"},\"logprobs\":null,\
         \"finish_reason\":null,\"token_ids\":null}]}\n\n"
    );
    out.clear();
    wire.content(&mut out, 0, (" help", 1), true, true, None);
    assert_eq!(
        tail(&out),
        "[{\"index\":0,\"delta\":{\"content\":\" help\"},\"logprobs\":null,\
         \"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}],\
         \"system_fingerprint\":\"vllm-0.32.0-double\"}\n\n"
    );
    out.clear();
    wire.usage(&mut out, USAGE);
    assert_eq!(
        tail(&out),
        "[],\"usage\":{\"prompt_tokens\":37,\"total_tokens\":49,\"completion_tokens\":12,\
         \"prompt_tokens_details\":{\"cached_tokens\":32,\"created_cache_tokens\":0}},\
         \"system_fingerprint\":\"vllm-0.32.0-double\"}\n\n"
    );
}

#[test]
fn continuous_usage_stands_in_every_event() {
    let wire = Wire::new(Dialect::Chat, "a", 1, "m");
    let mut out = String::new();
    let usage = Usage { completion_tokens: 1, ..USAGE };
    wire.content(&mut out, 0, ("I", 1), false, false, Some(usage));
    assert_eq!(
        tail(&out),
        "[{\"index\":0,\"delta\":{\"content\":\"I\"},\"logprobs\":null,\
         \"finish_reason\":null,\"token_ids\":null}],\"usage\":{\"prompt_tokens\":37,\
         \"total_tokens\":38,\"completion_tokens\":1,\"completion_tokens_details\":null}}\n\n"
    );
}

#[test]
fn completion_events_have_the_recorded_shape() {
    let wire = Wire::new(Dialect::Completion, "a5ad821fb653c55d", 1795967122, "smollm2");
    let mut out = String::new();
    wire.role(&mut out, 0, None);
    wire.content(&mut out, 0, (":", 1), true, true, None);
    assert_eq!(
        out,
        "data: {\"id\":\"cmpl-a5ad821fb653c55d\",\"object\":\"text_completion\",\
         \"created\":1795967122,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"text\":\":\",\
         \"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\
         \"prompt_token_ids\":null,\"token_ids\":null}]}\n\n"
    );
    out.clear();
    wire.usage(&mut out, USAGE);
    assert!(tail(&out).contains("\"prompt_tokens_details\":{\"cached_tokens\":32}}"));
}

#[test]
fn an_answer_in_one_piece_has_the_recorded_shape() {
    let wire = Wire::new(Dialect::Chat, "882cff3b8205b0f5", 1795967077, "smollm2");
    let usage = Usage { cached_tokens: 0, created_cache_tokens: 32, ..USAGE };
    assert_eq!(
        wire.answer(&["I'm glad".to_owned()], usage),
        "{\"id\":\"chatcmpl-882cff3b8205b0f5\",\"object\":\"chat.completion\",\
         \"created\":1795967077,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"message\":\
         {\"role\":\"assistant\",\"content\":\"I'm glad\",\"refusal\":null,\
         \"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null},\
         \"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\
         \"token_ids\":null,\"routed_experts\":null}],\"service_tier\":null,\
         \"system_fingerprint\":\"vllm-0.32.0-double\",\"usage\":{\"prompt_tokens\":37,\
         \"total_tokens\":49,\"completion_tokens\":12,\"prompt_tokens_details\":\
         {\"cached_tokens\":0,\"created_cache_tokens\":32,\"multimodal_tokens\":null},\
         \"completion_tokens_details\":null},\"prompt_logprobs\":null,\
         \"prompt_token_ids\":null,\"prompt_text\":null,\"kv_transfer_params\":null,\
         \"ec_transfer_params\":null,\"metrics\":null}"
    );
    let wire = Wire::new(Dialect::Completion, "9104", 1, "smollm2");
    let answer = wire.answer(&["-by-date".to_owned(), ",".to_owned()], usage);
    let parsed: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(parsed["choices"][1]["text"], ",");
    assert_eq!(parsed["choices"][1]["index"], 1);
}

#[test]
fn messages_have_the_recorded_shape() {
    let wire = Wire::new(Dialect::Messages, "b37cb2f276e3980d", 1, "smollm2");
    let usage = Usage { completion_tokens: 8, ..USAGE };
    assert_eq!(
        wire.answer(&["Ah".to_owned()], usage),
        "{\"id\":\"chatcmpl-b37cb2f276e3980d\",\"type\":\"message\",\"role\":\"assistant\",\
         \"content\":[{\"type\":\"text\",\"text\":\"Ah\"}],\"model\":\"smollm2\",\"stop_reason\":\
         \"max_tokens\",\"usage\":{\"input_tokens\":5,\"output_tokens\":8,\
         \"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":32}}"
    );
}

#[test]
fn a_response_has_the_recorded_members() {
    let wire = Wire::new(Dialect::Responses, "b108d386115fc416", 1795967123, "smollm2");
    let whole: serde_json::Value =
        serde_json::from_str(&wire.answer(&["I'm".to_owned()], USAGE)).expect("JSON");
    assert_eq!(whole["id"], "resp_b108d386115fc416");
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["output"][0]["content"][0]["text"], "I'm");
    assert_eq!(whole["usage"]["input_tokens_details"]["cached_tokens"], 32);
    let mut out = String::new();
    wire.role(&mut out, 0, None);
    wire.content(&mut out, 0, ("I", 1), false, false, None);
    wire.content(&mut out, 0, ("'m", 1), true, false, None);
    wire.usage(&mut out, USAGE);
    wire.done(&mut out);
    let kinds: Vec<_> = out.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let last = out.lines().rev().find_map(|line| line.strip_prefix("data: ")).expect("data");
    let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(last["sequence_number"], 8);
    assert_eq!(last["response"]["output"], whole["output"]);
}
