//! The routes beside chat and completions.

use super::*;

#[tokio::test]
async fn a_message_and_a_chat_of_the_same_words_share_the_cache() {
    let double = start(quick()).await;
    let body = json!({"model": "m", "max_tokens": 4, "system": long_text(),
        "messages": [{"role": "user", "content": "hello"}]});
    let cold = post(&double, "/v1/messages", &body).await.json();
    assert_eq!(cold["type"], "message");
    assert_eq!(cold["usage"]["cache_read_input_tokens"], 0);
    let chat = json!({"model": "m", "max_tokens": 4, "messages": [
        {"role": "system", "content": long_text()}, {"role": "user", "content": "hello"}]});
    let warm = self::chat(&double, chat).await.json();
    assert!(warm["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    let stream = post(&double, "/v1/messages", &with(body.clone(), json!({"stream": true}))).await;
    let kinds: Vec<String> = stream
        .events()
        .iter()
        .map(|data| serde_json::from_str::<Value>(data).expect("JSON")["type"].to_string())
        .collect();
    assert_eq!(kinds.first().map(String::as_str), Some("\"message_start\""));
    assert_eq!(kinds.last().map(String::as_str), Some("\"message_stop\""));
    assert_eq!(kinds.len(), 2 + 4 + 3);
    let count = post(&double, "/v1/messages/count_tokens", &body).await.json();
    assert_eq!(count["input_tokens"], warm["usage"]["prompt_tokens"]);
    let wrong = post(&double, "/v1/messages", &with(body, json!({"model": "none"}))).await;
    assert_eq!((wrong.status, wrong.json()["type"].as_str()), (404, Some("error")));
}

#[tokio::test]
async fn a_response_is_kept_and_gone_on_from() {
    let double = start(quick()).await;
    for stream in [false, true] {
        let body = json!({"model": "m", "input": long_text(), "max_output_tokens": 64,
            "stream": stream});
        let reply = post(&double, "/v1/responses", &body).await;
        let first = match stream {
            false => reply.json(),
            true => {
                let last = reply.events().pop().expect("an event");
                serde_json::from_str::<Value>(&last).expect("JSON")["response"].take()
            }
        };
        let id = first["id"].as_str().expect("an id");
        let path = format!("/v1/responses/{id}");
        let kept = Client::connect(double.addr()).await.get(&path).await;
        assert_eq!(kept.json(), first);
        let cancel = post(&double, &format!("{path}/cancel"), &json!({})).await;
        assert_eq!(cancel.status, 400);
        let next = json!({"model": "m", "input": "and?", "previous_response_id": id});
        let next = post(&double, "/v1/responses", &next).await.json();
        let cached = next["usage"]["input_tokens_details"]["cached_tokens"].as_u64();
        let (prompt, said) = (&first["usage"]["input_tokens"], &first["usage"]["output_tokens"]);
        let both = prompt.as_u64().zip(said.as_u64()).map(|(prompt, said)| prompt + said - 1);
        assert_eq!(cached, both.map(|tokens| tokens / 16 * 16));
    }
    let unknown = json!({"model": "m", "input": "x", "previous_response_id": "resp_none"});
    assert_eq!(post(&double, "/v1/responses", &unknown).await.status, 404);
}

#[tokio::test]
async fn token_ids_go_in_and_out_and_several_chats_have_one_answer() {
    let double = start(quick()).await;
    let ids: Vec<u32> = (0..40).collect();
    let generate = json!({"model": "m", "token_ids": ids, "sampling_params": {"max_tokens": 3}});
    let whole = post(&double, "/inference/v1/generate", &generate).await.json();
    assert_eq!(whole["choices"][0]["token_ids"].as_array().map(Vec::len), Some(3));
    assert_eq!(whole["usage"]["prompt_tokens"], 40);
    let streaming = with(generate, json!({"stream": true}));
    let events = post(&double, "/inference/v1/generate", &streaming).await.events();
    let first: Value = serde_json::from_str(&events[0]).expect("JSON");
    assert_eq!(first["choices"][0]["token_ids"][0], whole["choices"][0]["token_ids"][0]);
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let turn = |text: &str| json!([{"role": "user", "content": text}]);
    let batch = json!({"model": "m", "messages": [turn("a"), turn("b")], "max_tokens": 2});
    let batch = post(&double, "/v1/chat/completions/batch", &batch).await.json();
    assert_eq!(batch["choices"].as_array().map(Vec::len), Some(2));
    assert_eq!(batch["usage"]["completion_tokens"], 4);
}
