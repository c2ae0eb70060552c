//! What clients send is the engine's to judge, and reaches it as it was sent.

use integration_tests::cluster::MODEL;
use integration_tests::scripted::{ScriptedEngine, short};
use serde_json::json;

use crate::before;

#[tokio::test]
async fn legal_shapes_of_a_chat_reach_the_engine_as_they_are() {
    let engine = ScriptedEngine::with(Vec::new()).await;
    engine.answer_by(short);
    let cluster = before(&[&engine]).build().await;
    let call = |arguments: serde_json::Value| {
        json!([{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": arguments}}])
    };
    let user = json!({"role": "user", "content": "x"});
    let with = |field: &str, value: serde_json::Value| json!({"messages": [user], field: value});
    let message = |message: serde_json::Value| json!({"messages": [user, message]});
    let shapes = [
        message(json!({"role": "assistant", "content": null, "tool_calls": call(json!("{}"))})),
        message(json!({"role": "assistant", "tool_calls": call(json!("{}"))})),
        message(json!({"role": "assistant", "tool_calls": call(json!(null))})),
        message(json!({"role": "assistant", "content": "", "tool_calls": call(json!(""))})),
        message(json!({"role": "tool", "tool_call_id": "c",
            "content": [{"type": "text", "text": "a"}]})),
        message(json!({"role": "system", "content": [{"type": "text", "text": "a"}]})),
        message(json!({"role": "developer", "content": "a"})),
        message(json!({"role": "user", "content": []})),
        message(json!({"role": "user", "content": ""})),
        message(json!({"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]})),
        message(json!({"role": "user", "content": [{"type": "video_url",
            "video_url": {"url": "x"}}]})),
        message(json!({"role": "assistant", "content": "a", "reasoning_content": "b",
            "refusal": null, "audio": {"id": "x"}})),
        with("tool_choice", json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}})),
        with("tool_choice", json!({"type": "custom", "custom": {"name": "f"}})),
        with("tool_choice", json!("required")),
        with("response_format", json!({"type": "json_schema", "json_schema": {"name": "x"}})),
        with("stop", json!(null)),
        with("x_made_up", json!({"deep": [[[{"a": 1.5}]]]})),
    ];
    for (n, shape) in shapes.iter().enumerate() {
        for stream in [false, true] {
            let mut body = json!({"model": MODEL});
            body.as_object_mut().unwrap().extend(shape.as_object().unwrap().clone());
            if stream {
                body["stream"] = true.into();
                body["stream_options"] = json!({"include_usage": true});
            }
            // Spaces and order are the client's, too.
            let body = serde_json::to_string_pretty(&body).unwrap();
            let reply = cluster.client().chat(body.clone()).await;
            assert_eq!(reply.status, 200, "shape {n}: {}", reply.text());
            assert_eq!(engine.asked().pop().unwrap().body, body, "shape {n}");
        }
    }
    assert_eq!(engine.asked_count(), 2 * shapes.len());
    cluster
        .client()
        .chat(json!({"model": MODEL, "messages": []}).to_string())
        .await
        .assert_error(400, "invalid_request");
    assert_eq!(engine.asked_count(), 2 * shapes.len(), "some engines never answer that");
    cluster.stop().await;
}

#[tokio::test]
async fn numbers_and_escapes_reach_the_engine_digit_for_digit() {
    let engine = ScriptedEngine::with(Vec::new()).await;
    engine.answer_by(short);
    let cluster = before(&[&engine]).build().await;
    for field in [
        r#""seed":9007199254740993"#,
        r#""seed":18446744073709551615"#,
        r#""seed":18446744073709551616"#,
        r#""seed":-0"#,
        r#""seed":1,"seed":2"#,
        r#""temperature":0.1"#,
        r#""temperature":1.0"#,
        r#""temperature":1E-7"#,
        r#""temperature":1e400"#,
        r#""temperature":0.30000000000000004"#,
        r#""top_p":3.141592653589793238462643383279"#,
        r#""logit_bias":{"50256":-100,"50256":1}"#,
        r#""user":"\u00e9\ud83d\ude80\ud800\/""#,
        r#""user":"é🚀""#,
    ] {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let body = format!(
                r#"{{"stream":true,{field},"model":"{MODEL}","prompt":"x","messages":[{{"role":"user","content":"x"}}]}}"#
            );
            let reply = cluster.client().post(path, body.clone()).await;
            assert_eq!(reply.status, 200, "{field}: {}", reply.text());
            let sent = engine.asked().pop().unwrap().body;
            let sent = std::str::from_utf8(&sent).unwrap();
            // All but the one field that the gateway adds is what the client sent.
            let added = r#","stream_options":{"include_usage":true}}"#;
            let kept = sent.strip_suffix(added).unwrap_or_else(|| panic!("{sent}"));
            assert_eq!(kept, body.strip_suffix('}').unwrap());
        }
    }
    cluster.stop().await;
}
