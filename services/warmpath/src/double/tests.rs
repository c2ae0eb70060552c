//! The double as its clients see it, over real sockets on loopback.

mod client;
mod dialects;
mod faults;
mod routes;
mod served;

use std::time::Duration;

use serde_json::{Value, json};

use super::{Double, DoubleHandle};
use client::{Client, End, Reply};

/// Starts a double on a free port of loopback.
async fn start(double: Double) -> DoubleHandle {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    double.spawn(listener).expect("a valid configuration")
}

/// Quick: a whole answer takes a few milliseconds.
fn quick() -> Double {
    Double::builder().prefill_tokens_per_second(1e6).itl(Duration::from_micros(200)).model("m")
}

/// Slow: an answer of many tokens would take minutes.
fn slow() -> Double {
    quick().itl(Duration::from_millis(50))
}

async fn post(double: &DoubleHandle, path: &str, body: &Value) -> Reply {
    Client::connect(double.addr()).await.post(path, &body.to_string()).await
}

async fn chat(double: &DoubleHandle, body: Value) -> Reply {
    post(double, "/v1/chat/completions", &body).await
}

fn ask(content: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4})
}

fn with(mut body: Value, more: Value) -> Value {
    let (Some(body_fields), Value::Object(more)) = (body.as_object_mut(), more) else {
        panic!("two objects");
    };
    body_fields.extend(more);
    body
}

fn long_text() -> String {
    sim::workload::document_text(1, 1, 200)
}

/// Waits until something holds, for at most some seconds.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        while !holds() {
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect(what);
}

#[tokio::test]
async fn a_stream_opens_with_the_role_and_ends_with_usage_and_done() {
    let double = start(quick()).await;
    let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
    let reply = chat(&double, with(ask("hello"), usage)).await;
    assert_eq!((reply.status, reply.end), (200, End::Complete));
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = reply.events();
    assert_eq!(events.len(), 1 + 4 + 1 + 1);
    let first: Value = serde_json::from_str(&events[0]).expect("JSON");
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let last: Value = serde_json::from_str(&events[4]).expect("JSON");
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    let usage: Value = serde_json::from_str(&events[5]).expect("JSON");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 4);
    assert_eq!(events[6], "[DONE]");
}

#[tokio::test]
async fn stream_and_whole_answer_say_the_same() {
    let double = start(quick()).await;
    let streamed = chat(&double, with(ask("hello"), json!({"stream": true}))).await.content();
    let whole = chat(&double, ask("hello")).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], streamed);
    assert_eq!(whole["usage"]["completion_tokens"], 4);
    let completion = json!({"model": "m", "prompt": "hello"});
    let whole = post(&double, "/v1/completions", &completion).await.json();
    assert_eq!(whole["usage"]["completion_tokens"], 16, "the default limit");
    let stream = with(completion, json!({"stream": true}));
    let streamed = post(&double, "/v1/completions", &stream).await.content();
    assert_eq!(whole["choices"][0]["text"], streamed);
}

#[tokio::test]
async fn a_repeated_prompt_is_cached_up_to_its_last_token_and_the_truth_says_so() {
    let double = start(quick()).await;
    let body = ask(&long_text());
    let cold = chat(&double, body.clone()).await.json();
    let prompt = cold["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let warm = chat(&double, body.clone()).await.json();
    let cached = (prompt - 1) / 16 * 16;
    assert_eq!(warm["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
    // A salt is another cache.
    let salted = chat(&double, with(body, json!({"cache_salt": "tenant"}))).await.json();
    assert_eq!(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let stats = double.stats();
    assert_eq!((stats.requests, stats.finished), (3, 3));
    assert_eq!((stats.prompt_blocks, stats.hit_blocks), (3 * (prompt / 16), cached / 16));
    let records = double.take_records();
    assert_eq!(records.len(), 3);
    assert_eq!(u64::from(records[1].hit_blocks), cached / 16);
    assert!(records[1].ttft_seconds < records[0].ttft_seconds);
    assert!(double.take_records().is_empty());
    assert!(double.reset_prefix_cache());
    assert_eq!(double.stats().cached_blocks, 0);
}

#[tokio::test]
async fn choices_and_batches_are_numbered_and_a_prompt_counts_once() {
    let double = start(quick()).await;
    let reply = chat(&double, with(ask("hello"), json!({"n": 2}))).await.json();
    assert_eq!(reply["choices"][1]["index"], 1);
    assert_eq!(reply["usage"]["completion_tokens"], 8);
    let single = chat(&double, ask("hello")).await.json();
    assert_eq!(reply["usage"]["prompt_tokens"], single["usage"]["prompt_tokens"]);
    let batch = json!({"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 2, "n": 2});
    let reply = post(&double, "/v1/completions", &batch).await.json();
    assert_eq!(reply["choices"].as_array().map(Vec::len), Some(4));
    assert_eq!(reply["usage"]["prompt_tokens"], 5);
    assert_eq!(reply["usage"]["completion_tokens"], 8);
    let stream = with(ask("hello"), json!({"n": 2, "stream": true}));
    let reply = chat(&double, stream).await;
    let of_second = reply.events().iter().filter(|e| e.contains("\"index\":1")).count();
    assert_eq!(of_second, 1 + 4);
}

#[tokio::test]
async fn the_next_turn_finds_the_answer_of_the_last_one_cached() {
    let double = start(quick()).await;
    let first = chat(&double, with(ask(&long_text()), json!({"max_tokens": 64}))).await.json();
    let prompt = first["usage"]["prompt_tokens"].as_u64().expect("a count");
    let answer = &first["choices"][0]["message"]["content"];
    let next = json!({"max_tokens": 1, "messages": [
        {"role": "user", "content": long_text()},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "and?"},
    ]});
    let second = chat(&double, next).await.json();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached, Some((prompt + 63) / 16 * 16));
}

#[tokio::test]
async fn errors_are_the_recorded_ones() {
    let double = start(quick().max_model_len(64)).await;
    let chat = "/v1/chat/completions";
    let cases = [
        (
            chat,
            "",
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}","type":"Bad Request","param":"body","code":400}}"#,
        ),
        (
            chat,
            r#"{"model":"m"}"#,
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}","type":"Bad Request","param":"body.messages","code":400}}"#,
        ),
        (
            chat,
            r#"{"messages":[]}"#,
            400,
            r#"{"error":{"message":"Cannot apply chat template to an empty conversation. Provide at least one message.","type":"BadRequestError","param":null,"code":400}}"#,
        ),
        (
            chat,
            r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":"abc"}"#,
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'abc'}","type":"Bad Request","param":"body.max_tokens","code":400}}"#,
        ),
        (
            chat,
            r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":-5}"#,
            400,
            r#"{"error":{"message":"max_tokens must be at least 1, got -5. (parameter=max_tokens, value=-5)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
        ),
        (
            chat,
            r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":100000}"#,
            400,
            r#"{"error":{"message":"max_tokens=100000 cannot be greater than max_model_len=64. Please request fewer output tokens. (parameter=max_tokens, value=100000)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
        ),
        (
            chat,
            r#"{"messages":[{"role":"user","content":"x"}],"temperature":-3}"#,
            400,
            r#"{"error":{"message":"temperature must be non-negative, got -3.0. (parameter=temperature, value=-3.0)","type":"BadRequestError","param":"temperature","code":400}}"#,
        ),
        (
            chat,
            r#"{"messages":[{"role":"user","content":"x"}],"stream_options":{}}"#,
            400,
            r#"{"error":{"message":"Stream options can only be defined when `stream=True`. (parameter=stream_options)","type":"BadRequestError","param":"stream_options","code":400}}"#,
        ),
        (
            chat,
            r#"{"model":"no-such-model"}"#,
            404,
            r#"{"error":{"message":"The model `no-such-model` does not exist. Valid aliases: m.","type":"NotFoundError","param":"model","code":404}}"#,
        ),
        ("/v1/nothing", "{}", 404, r#"{"detail":"Not Found"}"#),
        ("/v1/models", "{}", 405, r#"{"detail":"Method Not Allowed"}"#),
    ];
    for (path, body, status, expected) in cases {
        let reply = Client::connect(double.addr()).await.post(path, body).await;
        assert_eq!(reply.status, status, "{body}");
        let (found, expected): (Value, Value) =
            (reply.json(), serde_json::from_str(expected).expect("JSON"));
        assert_eq!(found, expected, "{body}");
    }
    let long = json!({"prompt": vec![1; 64]});
    let reply = post(&double, "/v1/completions", &long).await.json();
    let message = reply["error"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("This model's maximum context length is 64 tokens. However, your"));
    let tight = json!({"prompt": vec![1; 60], "max_tokens": 5});
    let reply = post(&double, "/v1/completions", &tight).await.json();
    assert_eq!(reply["error"]["param"], "input_tokens");
    let fits = json!({"prompt": vec![1; 60], "max_tokens": 4});
    assert_eq!(post(&double, "/v1/completions", &fits).await.status, 200);
    assert_eq!(double.stats().running, 0);
}

#[tokio::test]
async fn the_small_endpoints_answer_in_vllms_shapes() {
    let double = start(quick()).await;
    let mut client = Client::connect(double.addr()).await;
    let models = client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(models["data"][0]["max_model_len"], 599 * 16);
    for path in ["/health", "/ping"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status, reply.body.len()), (200, 0));
    }
    assert_eq!(client.get("/version").await.json(), json!({"version": "0.32.0"}));
    assert_eq!(client.get("/load").await.json(), json!({"server_load": 0}));
    let tokens = client.post("/tokenize", r#"{"prompt":"hello world"}"#).await.json();
    assert_eq!(tokens["count"], tokens["tokens"].as_array().map_or(0, Vec::len));
    let back = json!({"tokens": tokens["tokens"]}).to_string();
    let text = client.post("/detokenize", &back).await.json();
    assert_eq!(text, json!({"prompt": "hello world"}));
    let body = ask("hello").to_string();
    let of_chat = client.post("/tokenize", &body).await.json();
    let rendered = client.post("/v1/chat/completions/render", &body).await.json();
    assert_eq!(of_chat["tokens"], rendered["token_ids"]);
    let list = client.post("/v1/completions/render", r#"{"prompt":["a","b"]}"#).await.json();
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    let reply = client.post("/v1/embeddings", r#"{"input":["a","b"]}"#).await.json();
    assert_eq!(reply["data"][1]["index"], 1);
    let reply = client.post("/v1/rerank", r#"{"query":"q","documents":["a","b"],"top_n":1}"#).await;
    assert_eq!(reply.json()["results"].as_array().map(Vec::len), Some(1));
    let reply = client.post("/v1/score", r#"{"text_1":"q","text_2":["a","b"]}"#).await.json();
    assert_eq!(reply["data"].as_array().map(Vec::len), Some(2));
    assert_eq!(client.post("/reset_prefix_cache", "").await.status, 200);
}

#[tokio::test]
async fn metrics_follow_the_load_under_vllms_names() {
    let double = start(slow()).await;
    let body = with(ask(&long_text()), json!({"stream": true, "max_tokens": 1000}));
    let mut streaming = Client::connect(double.addr()).await;
    streaming.send("POST", "/v1/chat/completions", &body.to_string()).await;
    eventually("it runs", || double.stats().running == 1).await;
    let page = Client::connect(double.addr()).await.get("/metrics").await.text();
    let value = |name: &str| {
        let series = format!("vllm:{name}{{engine=\"0\",model_name=\"m\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(series.as_str()));
        line.and_then(|value| value.parse::<f64>().ok()).expect(name)
    };
    assert_eq!(value("num_requests_running"), 1.0);
    assert_eq!(value("num_requests_waiting"), 0.0);
    assert!(value("kv_cache_usage_perc") > 0.0);
    assert!(value("prefix_cache_queries_total") > 100.0);
    assert_eq!(value("prefix_cache_hits_total"), 0.0);
    let config = page.lines().find(|line| line.starts_with("vllm:cache_config_info{"));
    let config = config.expect("a cache config");
    for label in ["block_size=\"16\"", "num_gpu_blocks=\"600\"", "engine=\"0\""] {
        assert!(config.contains(label), "{config}");
    }
    assert!(page.contains("vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\""));
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_blocks_at_once() {
    let double = start(slow()).await;
    for stream in [true, false] {
        let body = with(ask(&long_text()), json!({"stream": stream, "max_tokens": 1000}));
        let mut client = Client::connect(double.addr()).await;
        client.send("POST", "/v1/chat/completions", &body.to_string()).await;
        eventually("it runs", || double.stats().running == 1).await;
        drop(client);
        eventually("it is taken out", || double.stats().running == 0).await;
        eventually("its socket is closed", || double.stats().open_sockets == 0).await;
        assert_eq!(double.stats().kv_usage, 0.0);
    }
    assert_eq!(double.stats().cancelled, 2);
    assert!(double.take_records().iter().all(|record| !record.finished));
}

#[tokio::test]
async fn many_requests_at_once_are_batched_and_all_answered() {
    let double = start(quick().blocks(64)).await;
    let requests = (0..40).map(|i| {
        let text = sim::workload::document_text(7, i % 3, 60);
        chat(&double, with(ask(&text), json!({"stream": i % 2 == 0})))
    });
    let replies = futures_util::future::join_all(requests).await;
    assert!(replies.iter().all(|reply| reply.status == 200 && reply.end == End::Complete));
    let stats = double.stats();
    assert_eq!((stats.finished, stats.running, stats.waiting), (40, 0, 0));
    assert_eq!(stats.generated_tokens, 160);
}

#[tokio::test]
async fn killing_breaks_streams_and_closes_the_port() {
    let double = start(slow()).await;
    let body = with(ask("hello"), json!({"stream": true, "max_tokens": 1000}));
    let mut client = Client::connect(double.addr()).await;
    client.send("POST", "/v1/chat/completions", &body.to_string()).await;
    eventually("it runs", || double.stats().running == 1).await;
    double.kill().await;
    assert_ne!(client.read().await.end, End::Complete);
    assert_eq!(double.stats().open_sockets, 0);
    assert!(tokio::net::TcpStream::connect(double.addr()).await.is_err());
}

#[tokio::test]
async fn a_shutdown_lets_streams_finish() {
    let double = start(quick().itl(Duration::from_millis(5))).await;
    let body = with(ask("hello"), json!({"stream": true, "max_tokens": 10}));
    let mut client = Client::connect(double.addr()).await;
    client.send("POST", "/v1/chat/completions", &body.to_string()).await;
    eventually("it runs", || double.stats().running == 1).await;
    let (reply, finished) = tokio::join!(client.read(), double.shutdown());
    assert!(finished);
    assert_eq!(reply.end, End::Complete);
    assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
    assert!(tokio::net::TcpStream::connect(double.addr()).await.is_err());
}

#[tokio::test]
async fn a_shutdown_waits_for_no_request_that_is_not_there() {
    let double = start(quick()).await;
    let (mut answered, mut begun) =
        (Client::connect(double.addr()).await, Client::connect(double.addr()).await);
    let fresh = Client::connect(double.addr()).await;
    answered.get("/health").await;
    begun.send_raw(b"GET /health HT").await;
    eventually("all are accepted", || double.stats().open_sockets == 3).await;
    assert!(double.shutdown().await, "nothing was in flight");
    drop(fresh);
}

#[tokio::test]
async fn the_static_mode_answers_without_the_model() {
    let double = start(quick().static_response(true)).await;
    let reply = chat(&double, json!({"anything": 1, "stream": true})).await;
    assert_eq!((reply.status, reply.end), (200, End::Complete));
    assert_eq!(reply.events().len(), 3);
    assert_eq!(reply.content(), "Hello there");
    let reply = post(&double, "/v1/completions", &json!({})).await.json();
    assert_eq!(reply["choices"][0]["text"], "Hello there");
    let stats = double.stats();
    assert_eq!((stats.requests, stats.scheduled), (2, 0));
}

#[tokio::test]
async fn requests_are_kept_as_they_arrived() {
    let double = start(quick().keep_requests(1)).await;
    Client::connect(double.addr()).await.get("/health").await;
    let body = r#"{ "model":"m", "prompt":"x",  "max_tokens":1, "big":12345678901234567890123 }"#;
    Client::connect(double.addr()).await.post("/v1/completions?a=b", body).await;
    let seen = double.take_requests();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        (seen[0].target.as_str(), &seen[0].body[..]),
        ("/v1/completions?a=b", body.as_bytes())
    );
    assert!(seen[0].headers.contains_key("host"));
}

#[tokio::test]
async fn a_setting_that_makes_no_sense_is_refused() {
    for (double, problem) in [
        (quick().blocks(1), "blocks: at least 2"),
        (
            quick().blocks(11).max_model_len(161),
            "max_model_len: 161 tokens, but the cache holds 160",
        ),
        (quick().model(""), "model: the name is empty"),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let error = double.spawn(listener).expect_err(problem).to_string();
        assert!(error.contains(problem), "{error}");
    }
}
