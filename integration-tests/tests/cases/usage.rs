//! Usage is counted once and exactly, however it comes, and shown to those who asked.

use integration_tests::cluster::{Cluster, MODEL};
use integration_tests::scenarios::{chat, chat_with};
use integration_tests::scripted::{
    DONE, Gate, ROLE, ScriptedEngine, Step, part, short_answer, stream, stream_end, stream_head,
    token, usage,
};
use serde_json::{Value, json};

use crate::before;

/// Prompt and completion tokens that were counted so far.
async fn counted(cluster: &Cluster) -> (f64, f64) {
    cluster.assert_idle().await;
    let metrics = cluster.metrics().await;
    let sum = |what: &str| metrics.sum(&format!("warmpath_edge_{what}_tokens_total"), &[]);
    (sum("prompt"), sum("completion"))
}

/// An event with content that tells usage so far.
fn token_with_usage(text: &str, prompt: u64, completion: u64) -> String {
    let counts = json!({"prompt_tokens": prompt, "completion_tokens": completion});
    let delta = json!({"index": 0, "delta": {"content": text}});
    format!("data: {}\n\n", json!({"id": "1", "choices": [delta], "usage": counts}))
}

#[tokio::test]
async fn usage_counts_wherever_in_the_stream_it_stands() {
    let gate = Gate::default();
    let continuous: Vec<String> = (1..=4).map(|n| token_with_usage("t", 9, n)).collect();
    let continuous: Vec<&str> = continuous.iter().map(String::as_str).collect();
    let last_told = token_with_usage("b", 9, 4);
    let told = usage(9, 4);
    let variants = [
        // The end marker comes in a later read than the usage.
        vec![
            stream_head(),
            part(&token("a")),
            part(&told),
            Step::Await(gate.clone()),
            part(DONE),
            stream_end(),
        ],
        stream(&[&[ROLE], &continuous[..], &[DONE]].concat()),
        stream(&[ROLE, &token("a"), &last_told, DONE]),
        stream(&[&token("a"), &told, "data:[DONE]\n\n"]),
    ];
    let engine = ScriptedEngine::with(Vec::new()).await;
    let cluster = before(&[&engine]).build().await;
    for (n, steps) in variants.into_iter().enumerate() {
        let before = counted(&cluster).await;
        engine.answer_by(move |_| steps.clone());
        let mut open = cluster.client().open("/v1/chat/completions", &chat("x", 4, true)).await;
        assert!(open.read_until(b"content", 1).await);
        gate.let_pass(1);
        assert!(open.read_until(b"[DONE]", 1).await, "variant {n}: {}", open.seen());
        drop(open);
        let after = counted(&cluster).await;
        assert_eq!((after.0 - before.0, after.1 - before.1), (9.0, 4.0), "variant {n}");
    }
    let ok = [("outcome", "ok")];
    assert_eq!(cluster.metrics().await.sum("warmpath_edge_requests_total", &ok), 4.0);
    cluster.stop().await;
}

/// An engine that does what `stream_options` says.
fn obedient(asked: &integration_tests::scripted::Asked) -> Vec<Step> {
    let body = asked.json();
    if body["stream"] != true {
        return short_answer();
    }
    let options = &body["stream_options"];
    let wants = |name: &str| options[name] == true;
    let mut events = vec![stream_head(), part(ROLE)];
    for n in 1..=3 {
        events.push(match wants("include_usage") && wants("continuous_usage_stats") {
            true => part(&token_with_usage("t", 5, n)),
            false => part(&token("t")),
        });
    }
    if wants("include_usage") {
        events.push(part(&usage(5, 3)));
    }
    events.extend([part(DONE), stream_end()]);
    events
}

#[tokio::test]
async fn the_usage_event_is_shown_to_whom_asked_and_counted_for_all() {
    let engine = ScriptedEngine::with(Vec::new()).await;
    engine.answer_by(obedient);
    let cluster = before(&[&engine]).build().await;
    let cases = [
        (None, 0),
        (Some(json!(null)), 0),
        (Some(json!({})), 0),
        (Some(json!({"include_usage": false})), 0),
        (Some(json!({"include_usage": true})), 1),
        (Some(json!({"include_usage": true, "continuous_usage_stats": true})), 1),
        (Some(json!({"x_other": [1, 2], "continuous_usage_stats": false})), 0),
    ];
    for (options, shown) in cases {
        for path in ["/v1/chat/completions", "/v1/completions"] {
            let before = counted(&cluster).await;
            let mut fields = json!({"stream": true, "prompt": "x"});
            if let Some(options) = &options {
                fields["stream_options"] = options.clone();
            }
            let reply = cluster.client().post(path, chat_with("x", fields)).await;
            let events = reply.events();
            assert!(events.is_complete(), "{options:?}: {}", reply.text());
            assert_eq!(events.usages, shown, "{path} {options:?}");
            let after = counted(&cluster).await;
            assert_eq!((after.0 - before.0, after.1 - before.1), (5.0, 3.0), "{path} {options:?}");
            // Other options stay as they are.
            let sent = engine.asked().pop().unwrap().json()["stream_options"].clone();
            let kept = options.clone().unwrap_or_default();
            for (name, value) in kept.as_object().into_iter().flatten() {
                assert!(name == "include_usage" || sent[name] == *value, "{sent}");
            }
        }
    }
    // What an option of the client's would change in every event is left as the client sent it.
    let fields = json!({"stream": true, "stream_options": {"continuous_usage_stats": true}});
    let body = chat_with("x", fields);
    assert_eq!(cluster.client().chat(body.clone()).await.events().usages, 0);
    assert_eq!(engine.asked().pop().unwrap().body, body);
    let options: Vec<Value> = vec![json!({"stream": false}), json!({"stream": null}), json!({})];
    for fields in options {
        let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = cluster.client().chat(body.to_string()).await;
        assert_eq!(reply.status, 200);
        let sent = engine.asked().pop().unwrap();
        assert_eq!(sent.body, body.to_string(), "an engine refuses options without a stream");
    }
    cluster.stop().await;
}
