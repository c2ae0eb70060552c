//! What is foretold of a prompt is what the engine finds of it, whatever the prompt is made of.

use integration_tests::client::Reply;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::{chat_with, document};
use serde_json::{Value, json};

/// Tokens in a block of a double.
const BLOCK: u64 = 16;

/// Cached tokens, once the prediction was seen to be within a block of them.
#[track_caller]
fn cached(reply: &Reply, case: &Value) -> u64 {
    assert_eq!(reply.status, 200, "{case}: {}", reply.text());
    let predicted = reply.number("x-warmpath-matched-tokens");
    let usage = reply.events().usage.expect("usage was asked for");
    let cached = usage.cached_tokens.expect("the double tells cached tokens");
    assert!(predicted.abs_diff(cached) <= BLOCK, "{case}: predicted {predicted}, cached {cached}");
    cached
}

fn streamed(fields: Value) -> String {
    let mut all = json!({"max_tokens": 1, "stream": true,
        "stream_options": {"include_usage": true}});
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    chat_with("", all)
}

#[tokio::test]
async fn whatever_a_template_reads_counts_as_the_engine_counts_it() {
    let cluster = Cluster::builder().engines(1).build().await;
    let tools = json!([{"type": "function", "function": {"name": "weather",
        "description": document(90, 60), "parameters": {"type": "object", "properties": {}}}}]);
    let call = json!({"id": "call-1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}});
    let user = |n: u64| json!({"role": "user", "content": document(n, 150)});
    let system = json!({"role": "system", "content": document(91, 60)});
    let history = json!([user(5), {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "Rain."},
        {"role": "user", "content": "And tomorrow?"}]);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": document(8, 150)}]}]);
    let open = json!([user(7), {"role": "assistant", "content": "It begins with"}]);
    let cases = [
        json!({"messages": [user(1)]}),
        json!({"messages": [system, user(2)]}),
        json!({"messages": [system, user(3)], "tools": tools}),
        json!({"messages": [user(4)], "chat_template_kwargs": {"enable_thinking": false}}),
        json!({"messages": history, "tools": tools}),
        json!({"messages": [user(6)], "add_generation_prompt": false}),
        json!({"messages": open, "add_generation_prompt": false, "continue_final_message": true}),
        json!({"messages": parts}),
    ];
    for case in cases {
        let before = cached(&cluster.client().chat(streamed(case.clone())).await, &case);
        let again = cluster.client().chat(streamed(case.clone())).await;
        let found = cached(&again, &case);
        let tokens = again.events().usage.unwrap().prompt_tokens;
        assert!(found > before && found * 10 > tokens * 8, "{case}: {found} of {tokens}");
    }
    let metrics = cluster.metrics().await;
    assert_eq!(metrics.sum("warmpath_telemetry_parity_mismatch", &[]), 0.0);
    cluster.stop().await;
}

#[tokio::test]
async fn adapters_and_salts_share_no_prefix() {
    let adapters = |_, double: warmpath::double::Double| {
        double.adapter("one").adapter("two").prefill_tokens_per_second(crate::SLOW_PREFILL)
    };
    let cluster = Cluster::builder().double(adapters).config(crate::TIE).build().await;
    for model in [MODEL, "one", "two"] {
        for salt in [None, Some("t1"), Some("t2")] {
            let messages = json!([{"role": "user", "content": document(1, 240)}]);
            let case = json!({"model": model, "messages": messages, "cache_salt": salt});
            let first = cluster.client().chat(streamed(case.clone())).await;
            assert_eq!(cached(&first, &case), 0, "{case}");
            let second = cluster.client().chat(streamed(case.clone())).await;
            assert!(cached(&second, &case) > 0, "{case}");
            assert_eq!(first.backend(), second.backend());
        }
    }
    cluster.stop().await;
}
