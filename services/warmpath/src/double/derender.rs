//! What `…/derender` answers: generated token ids as the answer that they stand for, in one piece
//! or event by event with the client carrying the state.

use serde_json::{Value, json};

use super::engine::{Engine, unix_seconds};
use super::errors::EngineError;
use super::request::{Dialect, asked_model, field, missing, token_ids};

/// Reads a body of either endpoint and answers as it asks.
///
/// # Errors
/// A body without what was generated.
pub(crate) fn answer(
    engine: &Engine,
    dialect: Dialect,
    body: &Value,
) -> Result<String, EngineError> {
    if field(body, "stream").and_then(Value::as_bool).unwrap_or(false) {
        return event(engine, dialect, body);
    }
    let (name, responses) = match dialect {
        Dialect::Completion => {
            let name = "generate_responses";
            (name, field(body, name).and_then(Value::as_array).cloned())
        }
        _ => {
            let name = "generate_response";
            (name, field(body, name).map(|one| vec![one.clone()]))
        }
    };
    let responses = responses.ok_or_else(|| missing(body, name))?;
    if responses.is_empty() {
        return Err(EngineError::unrenderable(format!("{name} must not be empty")));
    }
    let (mut choices, mut completion_tokens) = (Vec::new(), 0);
    for choice in responses.iter().flat_map(choices_of) {
        let ids = ids_of(choice)?;
        completion_tokens += ids.len() as u64;
        let text = engine.folder.decode(&ids);
        choices.push(whole(dialect, choices.len(), &text, &choice["finish_reason"]));
    }
    let object = match dialect {
        Dialect::Completion => "text_completion",
        _ => "chat.completion",
    };
    let prompt_tokens = prompt_tokens(body);
    Ok(json!({
        "id": responses[0]["request_id"],
        "object": object,
        "created": unix_seconds(),
        "model": asked_model(body, engine),
        "choices": choices,
        "service_tier": null,
        "system_fingerprint": null,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": null,
            "completion_tokens_details": null,
        },
        "kv_transfer_params": responses[0].get("kv_transfer_params"),
        "metrics": null,
    })
    .to_string())
}

fn choices_of(response: &Value) -> impl Iterator<Item = &Value> {
    response["choices"].as_array().into_iter().flatten()
}

/// The token ids of a choice; none are an empty list.
fn ids_of(choice: &Value) -> Result<Vec<u32>, EngineError> {
    let Some(ids) = field(choice, "token_ids") else { return Ok(Vec::new()) };
    let message = "token_ids must be a list of token ids";
    token_ids(ids).ok_or_else(|| EngineError::bad_request("token_ids", message))
}

/// One number, or one for each prompt.
fn prompt_tokens(body: &Value) -> u64 {
    match field(body, "prompt_tokens") {
        Some(Value::Array(each)) => each.iter().filter_map(Value::as_u64).sum(),
        one => one.and_then(Value::as_u64).unwrap_or(0),
    }
}

fn whole(dialect: Dialect, index: usize, text: &str, reason: &Value) -> Value {
    if dialect == Dialect::Completion {
        return json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason,
            "stop_reason": null, "token_ids": null, "prompt_logprobs": null,
            "prompt_token_ids": null, "routed_experts": null});
    }
    let message = json!({"role": "assistant", "content": text, "refusal": null,
        "annotations": null, "audio": null, "function_call": null, "reasoning": null});
    json!({"index": index, "message": message, "logprobs": null, "finish_reason": reason,
        "stop_reason": null, "token_ids": null, "routed_experts": null})
}

/// One event of a stream: the text that its tokens add to those before, which the state has.
fn event(engine: &Engine, dialect: Dialect, body: &Value) -> Result<String, EngineError> {
    let chunk = field(body, "generate_chunk").ok_or_else(|| missing(body, "generate_chunk"))?;
    let mut choices = choices_of(chunk);
    let choice = choices.next().cloned().unwrap_or_default();
    if choices.next().is_some() {
        let message = "derender_chat_stream expects at most one choice per chunk.";
        return Err(EngineError::unrenderable(message));
    }
    let state = field(body, "stream_state").cloned().unwrap_or_default();
    let before = field(&state, "output_token_ids").and_then(token_ids).unwrap_or_default();
    let new = ids_of(&choice)?;
    let all = [before.as_slice(), &new].concat();
    if all.len() > engine.config.max_model_len as usize {
        return Err(EngineError::unrenderable("the tokens exceed max_model_len"));
    }
    let reason = field(&choice, "finish_reason").cloned().unwrap_or_default();
    let (old, now) = (told(engine, &before, false), told(engine, &all, !reason.is_null()));
    let text = now.strip_prefix(old.as_str()).unwrap_or_default();
    let index = choice.get("index").cloned().unwrap_or(json!(0));
    let role_sent = state["role_sent"] == true;
    let piece = match dialect {
        Dialect::Completion => json!({"index": index, "text": text, "logprobs": null,
            "finish_reason": reason, "stop_reason": null}),
        _ => {
            let delta = if role_sent {
                json!({"content": text})
            } else {
                json!({"role": "assistant", "content": text})
            };
            json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason})
        }
    };
    let object = match dialect {
        Dialect::Completion => "text_completion",
        _ => "chat.completion.chunk",
    };
    let mut lengths = state["output_chunk_lens"].as_array().cloned().unwrap_or_default();
    if !new.is_empty() {
        lengths.push(new.len().into());
    }
    let pieces = if choice.is_null() { Vec::new() } else { vec![piece] };
    Ok(json!({
        "chunk": {"id": chunk["request_id"], "object": object, "created": unix_seconds(),
            "model": asked_model(body, engine), "choices": pieces, "usage": chunk.get("usage")},
        "stream_state": {"prev_tokens": [], "prefix_offset": 0, "read_offset": 0,
            "role_sent": true, "logprob_context_token_ids": [],
            "logprob_text_offset": now.chars().count(), "output_token_ids": all,
            "output_chunk_lens": lengths, "tools_streamed": false, "last_tool_call_ids": []},
    })
    .to_string())
}

/// The text of tokens so far. A character that is not through is not told before the end.
fn told(engine: &Engine, tokens: &[u32], end: bool) -> String {
    let mut text = engine.folder.decode(tokens);
    while !end && text.ends_with(char::REPLACEMENT_CHARACTER) {
        text.pop();
    }
    text
}
