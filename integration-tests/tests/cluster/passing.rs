//! What a client sends reaches an engine as it was sent, but for what is the gateway's.

use bytes::Bytes;
use http::Method;
use integration_tests::client::Reply;
use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::{chat, chat_with};
use serde_json::{Value, json};
use warmpath::double::SeenRequest;

/// What stands in bodies below besides the model and the messages, and must not change.
const FIELDS: &[&str] = &[
    r#""seed":9007199254740993"#,
    r#""seed":18446744073709551615"#,
    r#""seed":18446744073709551616"#,
    r#""temperature":0.1"#,
    r#""temperature": 1.0 "#,
    r#""temperature":1E-7"#,
    r#""temperature":0.30000000000000004"#,
    r#""top_p":-0"#,
    r#""logit_bias":{"50256":-100}"#,
    r#""user":"\u00e9\ud83d\ude80\/""#,
    "\"user\":\"é🚀\"",
    r#""seed":1,"seed":2"#,
    "\n\t\"user\" : \"x\" ",
    r#""x_unknown":{"b":[1e400,{"a":null}],"a":-0.0}"#,
];

async fn engine_saw(cluster: &Cluster) -> SeenRequest {
    let seen = cluster.doubles()[0].take_requests();
    let of_clients = seen.into_iter().rfind(|request| {
        request.method == Method::POST && request.target.starts_with("/v1/chat/completions")
    });
    of_clients.expect("a request reached the engine")
}

#[tokio::test]
async fn a_body_that_the_gateway_owns_nothing_of_reaches_the_engine_byte_for_byte() {
    let cluster = Cluster::builder().engines(1).build().await;
    for field in FIELDS {
        let messages = r#"[ {"role":"user","content":"a\u0062c"} ]"#;
        let body =
            format!(r#"{{ {field},"model":"{MODEL}", "max_tokens":1,"messages":{messages}}} "#);
        cluster.client().chat(body.clone()).await;
        assert_eq!(engine_saw(&cluster).await.body, body);
    }
    cluster.stop().await;
}

#[tokio::test]
async fn only_the_field_that_the_gateway_adds_differs_in_a_streams_body() {
    let cluster = Cluster::builder().engines(1).build().await;
    for field in FIELDS {
        let body = format!(
            r#"{{{field},"model":"{MODEL}","max_tokens":1,"stream":true,"messages":[{{"role":"user","content":"x"}}]}}"#
        );
        cluster.client().chat(body.clone()).await;
        let seen = engine_saw(&cluster).await.body;
        let text = std::str::from_utf8(&seen).unwrap();
        let added = text.strip_prefix(body.strip_suffix('}').unwrap());
        let added = added.unwrap_or_else(|| panic!("{body}\nbecame\n{text}"));
        let added: Value = serde_json::from_str(&added.replacen(',', "{", 1)).unwrap();
        assert_eq!(added, json!({"stream_options": {"include_usage": true}}));
    }
    cluster.stop().await;
}

#[tokio::test]
async fn legal_shapes_of_messages_are_passed_on_whatever_the_gateway_makes_of_them() {
    let cluster = Cluster::builder().engines(1).build().await;
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let null_arguments =
        json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": null}});
    for messages in [
        json!([{"role": "assistant", "content": null, "tool_calls": [call]}]),
        json!([{"role": "assistant", "tool_calls": [call]}]),
        json!([{"role": "assistant", "tool_calls": [null_arguments]}]),
        json!([{"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}]}]),
        json!([{"role": "developer", "content": "a"}]),
        json!([{"role": "user", "content": []}]),
        json!([{"role": "user", "content": ""}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]),
        json!([{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}]),
        json!([{"role": 7, "content": {"odd": true}}]),
        json!(["not even an object"]),
    ] {
        let body = json!({"model": MODEL, "max_tokens": 1, "messages": messages,
            "tool_choice": {"type": "allowed_tools", "mode": "auto"}});
        let body = body.to_string();
        let reply = cluster.client().chat(body.clone()).await;
        assert_eq!(engine_saw(&cluster).await.body, body);
        let own = reply.json()["error"]["code"].is_string();
        assert!(!own, "the status is the engine's: {}", reply.text());
    }
    cluster.stop().await;
}

#[tokio::test]
async fn headers_that_matter_to_an_engine_pass_and_those_that_do_not_concern_it_stay() {
    let cluster = Cluster::builder().engines(1).build().await;
    let sent = [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=b"),
        ("x-session-id", "s1"),
        ("user-agent", "test/1"),
        ("accept-encoding", "gzip, br"),
        ("x-data-parallel-rank", "5"),
        ("x-vllm-priority", "-9"),
        ("x-request-id", "mine-1"),
        ("te", "trailers"),
        ("cookie", "a=b"),
    ];
    let body = Bytes::from(chat("x", 1, false));
    let reply =
        cluster.client().send(Method::POST, "/v1/chat/completions?a=b%20c", &sent, body).await;
    assert_eq!(reply.header("x-request-id"), "mine-1");
    let seen = engine_saw(&cluster).await;
    assert_eq!(seen.target, "/v1/chat/completions?a=b%20c");
    for name in ["traceparent", "tracestate", "x-session-id", "user-agent"] {
        let value = sent.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!(seen.headers[name], value);
    }
    for name in ["x-data-parallel-rank", "x-vllm-priority", "te", "cookie", "authorization"] {
        assert!(!seen.headers.contains_key(name), "{name} reached the engine");
    }
    assert_eq!(seen.headers["accept-encoding"], "identity");
    assert_ne!(seen.headers["x-request-id"], "mine-1", "clients cannot make ids collide");
    assert_eq!(seen.headers["host"], cluster.doubles()[0].addr().to_string());
    cluster.stop().await;
}

#[tokio::test]
async fn clients_that_use_one_request_id_do_not_get_in_each_others_way() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    let ask = |id: &'static str, text: &'static str| {
        let body = Bytes::from(chat(text, 4, true));
        let client = client.clone();
        async move {
            let headers = [("x-request-id", id)];
            client.send(Method::POST, "/v1/chat/completions", &headers, body).await
        }
    };
    let replies: [Reply; 3] =
        tokio::join!(ask("a", "One"), ask("a", "Two"), ask("ab", "Three")).into();
    assert!(replies.iter().all(|reply| reply.events().is_complete()));
    let labels = replies.each_ref().map(|reply| reply.header("x-request-id").to_owned());
    assert_eq!(labels, ["a", "a", "ab"]);
    let seen = cluster.doubles()[0].take_requests();
    let mut ids: Vec<_> = seen.iter().filter_map(|r| r.headers.get("x-request-id")).collect();
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), all), (3, 3), "{ids:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn a_usage_event_reaches_a_client_that_asked_for_it_and_no_other() {
    let cluster = Cluster::builder().engines(1).build().await;
    let client = cluster.client();
    for (options, expected) in [
        (None, 0),
        (Some(json!(null)), 0),
        (Some(json!({})), 0),
        (Some(json!({"include_usage": false})), 0),
        (Some(json!({"include_usage": true})), 1),
        (Some(json!({"include_usage": true, "continuous_usage_stats": true})), 1),
    ] {
        let mut fields = json!({"max_tokens": 3, "stream": true});
        if let Some(options) = &options {
            fields["stream_options"] = options.clone();
        }
        let before = cluster.metrics().await.sum("warmpath_edge_prompt_tokens_total", &[]);
        let reply = client.chat(chat_with("Count", fields)).await;
        let events = reply.events();
        assert!(events.is_complete(), "{options:?}: {}", reply.text());
        assert_eq!(events.usages, expected, "{options:?}");
        cluster.assert_idle().await;
        let counted = cluster.metrics().await.sum("warmpath_edge_prompt_tokens_total", &[]);
        assert!(counted > before, "{options:?} was not counted");

        let mut fields =
            json!({"model": MODEL, "prompt": "Count", "max_tokens": 3, "stream": true});
        if let Some(options) = &options {
            fields["stream_options"] = options.clone();
        }
        let reply = client.post("/v1/completions", fields.to_string()).await;
        assert_eq!(reply.events().usages, expected, "completions {options:?}");
    }
    client.chat(chat("Whole", 1, false)).await;
    assert!(!engine_saw(&cluster).await.body.windows(14).any(|w| w == b"stream_options"));
    cluster.stop().await;
}

#[tokio::test]
async fn an_event_of_megabytes_and_one_written_byte_by_byte_arrive_whole() {
    let cluster = Cluster::builder().engines(1).build().await;
    let double = &cluster.doubles()[0];
    double.set_fault("giant=3000000".parse().unwrap());
    let reply = cluster.client().chat(chat("Giant", 3, true)).await;
    let events = reply.events();
    assert!(
        reply.whole && reply.body.len() > 3_000_000 && events.dones == 1,
        "{}",
        reply.body.len()
    );
    double.set_fault("one-byte-writes".parse().unwrap());
    let slow = cluster.client().chat(chat("Bytes", 3, true)).await.events();
    double.clear_faults();
    let whole = cluster.client().chat(chat("Bytes", 3, true)).await.events();
    assert!(slow.is_complete());
    assert_eq!(slow.text, whole.text);
    cluster.stop().await;
}
