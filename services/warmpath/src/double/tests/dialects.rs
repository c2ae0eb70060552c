//! Cohere's routes, scoring, derendering and realtime sessions.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// The JSON of a stream's events, but for its end marker.
fn parsed(reply: &Reply) -> Vec<Value> {
    let events = reply.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).expect("JSON")).collect()
}

#[tokio::test]
async fn a_cohere_chat_says_what_a_chat_of_the_same_words_says() {
    let double = start(quick()).await;
    let body = ask("hello");
    let said = chat(&double, body.clone()).await.json();
    let whole = post(&double, "/cohere/v2/chat", &body).await.json();
    let text = &whole["message"]["content"][0]["text"];
    assert_eq!(text, &said["choices"][0]["message"]["content"]);
    assert_eq!(whole["finish_reason"], "MAX_TOKENS");
    assert_eq!(whole["usage"]["tokens"]["output_tokens"], 4.0);
    let streaming = with(body, json!({"stream": true}));
    let events = parsed(&post(&double, "/cohere/v2/chat", &streaming).await);
    let kinds: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    let deltas = ["content-delta"; 4];
    let expected =
        [&["message-start", "content-start"][..], &deltas, &["content-end", "message-end"]];
    assert_eq!(kinds, expected.concat());
    let piece =
        |event: &Value| event["delta"]["message"]["content"]["text"].as_str().map(str::to_owned);
    assert_eq!(&Value::from(events.iter().filter_map(piece).collect::<String>()), text);
    let usage = &events.last().expect("an end")["delta"]["usage"];
    assert_eq!(usage["tokens"], whole["usage"]["tokens"]);
}

#[tokio::test]
async fn a_tool_that_must_be_called_is_called_with_the_words_of_the_answer() {
    let double = start(quick()).await;
    let function = json!({"name": "look", "parameters": {"type": "object", "properties": {}}});
    let named = json!({"type": "function", "function": {"name": "look"}});
    let tools = json!([{"type": "function", "function": function}]);
    for (choice, reason) in [(named, "stop"), (json!("required"), "tool_calls")] {
        let asked = json!({"tools": tools, "tool_choice": choice, "n": 2});
        let body = with(ask("hello"), asked);
        let whole = chat(&double, body.clone()).await.json();
        let told = parsed(&chat(&double, with(body, json!({"stream": true}))).await);
        for at in 0..2 {
            let chosen = &whole["choices"][at];
            assert_eq!(chosen["finish_reason"], reason);
            let call = &chosen["message"]["tool_calls"][0]["function"];
            let arguments = call["arguments"].as_str().expect("a text");
            let read: Value = serde_json::from_str(arguments).expect("JSON");
            assert!(read["words"].as_str().is_some_and(|words| !words.is_empty()));
            let of = told.iter().filter(|event| event["choices"][0]["index"] == at);
            let deltas: Vec<_> = of.map(|event| &event["choices"][0]["delta"]).collect();
            let piece = |delta: &&Value| {
                let function = &delta["tool_calls"][0]["function"];
                (function["name"].clone(), function["arguments"].as_str().map(str::to_owned))
            };
            let pieces: Vec<_> = deltas.iter().map(piece).collect();
            assert_eq!((&pieces[1].0, &pieces[1].1), (&json!("look"), &None));
            let streamed: String = pieces.into_iter().filter_map(|(_, piece)| piece).collect();
            assert_eq!(streamed, arguments);
        }
    }
}

#[tokio::test]
async fn cohere_clients_get_errors_in_their_form() {
    let double = start(quick()).await;
    for path in ["/cohere/v2/chat", "/cohere/v2/chat/render"] {
        let body = with(ask("x"), json!({"model": "none"})).to_string();
        let mut client = Client::connect(double.addr()).await;
        let reply = client.post_with(path, "x-request-id: r1\r\n", &body).await;
        assert_eq!((reply.status, &reply.json()["id"]), (404, &json!("r1")));
        assert!(reply.json()["message"].is_string());
    }
    let tokens = post(&double, "/cohere/v2/chat/render", &ask("x")).await.json();
    let plain = post(&double, "/v1/chat/completions/render", &ask("x")).await.json();
    assert_eq!(tokens["token_ids"], plain["token_ids"]);
}

#[tokio::test]
async fn embeddings_come_in_every_type_that_is_asked_for() {
    let double = start(quick()).await;
    let body = json!({"model": "m", "texts": ["a", "b"], "input_type": "search_query",
        "embedding_types": ["float", "binary", "ubinary", "base64"]});
    let reply = post(&double, "/v2/embed", &body).await.json();
    assert_eq!(reply["response_type"], "embeddings_by_type");
    assert_eq!(reply["texts"], body["texts"]);
    let told = &reply["embeddings"];
    let numbers: Vec<f64> = serde_json::from_value(told["float"][1].clone()).expect("numbers");
    let bits: Vec<u8> = serde_json::from_value(told["ubinary"][1].clone()).expect("bytes");
    let signed: Vec<i16> = serde_json::from_value(told["binary"][1].clone()).expect("bytes");
    for (place, number) in numbers.iter().enumerate() {
        let bit = bits[place / 8] >> (7 - place % 8) & 1;
        assert_eq!(bit == 1, *number >= 0.0);
        assert_eq!(signed[place / 8], i16::from(bits[place / 8]) - 128);
    }
    assert_eq!(told["base64"][1].as_str().map(str::len), Some((numbers.len() * 4).div_ceil(3) * 4));
    let inputs = json!([{"content": [{"type": "text", "text": "b"}]}]);
    let same = post(&double, "/v2/embed", &json!({"model": "m", "inputs": inputs})).await.json();
    assert_eq!(same["embeddings"]["float"][0], told["float"][1]);
    for wrong in [
        json!({"model": "m"}),
        json!({"model": "m", "texts": ["a"], "inputs": inputs}),
        json!({"model": "m", "texts": ["a"], "embedding_types": ["int3"]}),
    ] {
        assert_eq!(post(&double, "/v2/embed", &wrong).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn scoring_runs_a_prompt_for_each_item_and_finds_the_query_cached() {
    let double = start(quick()).await;
    let body = json!({"model": "m", "query": long_text(), "items": ["one", "two"],
        "label_token_ids": [5, 6]});
    let first = post(&double, "/generative_scoring", &body).await.json();
    assert_eq!(first["data"].as_array().map(Vec::len), Some(2));
    assert_ne!(first["data"][0]["score"], first["data"][1]["score"]);
    assert_eq!(first["usage"]["completion_tokens"], 2);
    assert_eq!(double.stats().scheduled, 2);
    let again = post(&double, "/generative_scoring", &body).await.json();
    assert_eq!(again["data"], first["data"]);
    assert!(double.stats().cached_tokens > 0);
    for wrong in [json!({"items": []}), json!({"label_token_ids": []}), json!({"query": 1})] {
        let reply = post(&double, "/generative_scoring", &with(body.clone(), wrong)).await;
        assert_eq!(reply.status, 400);
    }
}

#[tokio::test]
async fn generated_tokens_derender_to_the_text_of_a_chat() {
    let double = start(quick()).await;
    let rendered = post(&double, "/v1/chat/completions/render", &ask("hello")).await.json();
    let generate = json!({"model": "m", "token_ids": rendered["token_ids"],
        "sampling_params": {"max_tokens": 4}});
    let generated = post(&double, "/inference/v1/generate", &generate).await.json();
    let said = chat(&double, ask("hello")).await.json();
    let body = json!({"model": "m", "generate_response": generated, "prompt_tokens": 7});
    let chat = post(&double, "/v1/chat/completions/derender", &body).await.json();
    assert_eq!(chat["choices"][0]["message"]["content"], said["choices"][0]["message"]["content"]);
    assert_eq!(chat["usage"]["total_tokens"], 11);
    let body = json!({"model": "m", "generate_responses": [generated]});
    let text = post(&double, "/v1/completions/derender", &body).await.json();
    assert_eq!(text["choices"][0]["text"], said["choices"][0]["message"]["content"]);
    let streaming = with(generate, json!({"stream": true}));
    let (mut state, mut told) = (Value::Null, String::new());
    for chunk in parsed(&post(&double, "/inference/v1/generate", &streaming).await) {
        let body = json!({"model": "m", "stream": true, "generate_chunk": chunk,
            "stream_state": state});
        let mut event = post(&double, "/v1/chat/completions/derender", &body).await.json();
        state = event["stream_state"].take();
        told += event["chunk"]["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(said["choices"][0]["message"]["content"], told);
    let empty = post(&double, "/v1/completions/derender", &json!({"generate_responses": []})).await;
    assert_eq!(empty.status, 400);
}

/// The client's end of a WebSocket, frames up to 125 bytes out and 65,535 in.
struct Talk(TcpStream);

impl Talk {
    async fn open(double: &DoubleHandle) -> Self {
        let mut stream = TcpStream::connect(double.addr()).await.expect("a connection");
        let ask = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: double\r\nconnection: Upgrade\r\n\
                   upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(ask.as_bytes()).await.expect("an open connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        let head = String::from_utf8(head).expect("ASCII");
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        Self(stream)
    }

    async fn say(&mut self, event: Value) {
        let text = event.to_string();
        let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).expect("a short event")];
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.0.write_all(&frame).await.expect("an open connection");
    }

    async fn hear(&mut self) -> Value {
        assert_eq!(self.0.read_u8().await.expect("a frame"), 0x81);
        let length = match self.0.read_u8().await.expect("a length") {
            126 => usize::from(self.0.read_u16().await.expect("a length")),
            short => usize::from(short),
        };
        let mut text = vec![0; length];
        self.0.read_exact(&mut text).await.expect("a payload");
        serde_json::from_slice(&text).expect("JSON")
    }
}

#[tokio::test]
async fn a_realtime_session_hears_the_same_words_in_the_same_audio() {
    let double = start(quick()).await;
    let mut talk = Talk::open(&double).await;
    assert_eq!(talk.hear().await["type"], "session.created");
    talk.say(json!({"type": "input_audio_buffer.commit"})).await;
    assert_eq!(talk.hear().await["code"], "model_not_validated");
    talk.say(json!({"type": "session.update", "model": "none"})).await;
    assert_eq!(talk.hear().await["code"], "model_not_found");
    talk.say(json!({"type": "session.update", "model": "m"})).await;
    let mut heard = Vec::new();
    for _ in 0..2 {
        talk.say(json!({"type": "input_audio_buffer.commit"})).await;
        talk.say(json!({"type": "input_audio_buffer.append", "audio": "AAECAw=="})).await;
        talk.say(json!({"type": "input_audio_buffer.commit", "final": true})).await;
        let mut text = String::new();
        let done = loop {
            let event = talk.hear().await;
            match event["delta"].as_str() {
                Some(delta) => text.push_str(delta),
                None => break event,
            }
        };
        assert_eq!((&done["type"], &done["text"]), (&json!("transcription.done"), &json!(text)));
        heard.push(text);
    }
    assert_eq!(heard[0], heard[1]);
    talk.say(json!({"type": "what"})).await;
    assert_eq!(talk.hear().await["code"], "unknown_event");
    drop(talk);
    eventually("the connection is gone", || double.stats().open_sockets == 0).await;
    let plain = Client::connect(double.addr()).await.get("/v1/realtime").await;
    assert_eq!(plain.status, 404);
}

#[tokio::test]
async fn a_kill_ends_realtime_sessions_too() {
    let double = start(quick()).await;
    let mut talk = Talk::open(&double).await;
    talk.hear().await;
    double.kill().await;
    assert_eq!(double.stats().open_sockets, 0);
    assert!(matches!(talk.0.read(&mut [0]).await, Ok(0) | Err(_)));
}
