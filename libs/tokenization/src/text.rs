//! Canonical text: bytes that stand for a prompt where no tokenizer is at hand.
//!
//! It holds everything a template can read, in an order that keeps it stable between turns: what
//! a later request of the same conversation yields begins with what the earlier one yielded. It
//! is not what the model sees, but two requests with a common beginning here have one there.

use serde_json::Value as Json;

/// Ends a field of the head, and the head of a message.
const UNIT: u8 = 0x1f;
/// Begins a message.
const RECORD: u8 = 0x1e;

/// Fields of a chat body that templates print before the messages or that change how they print
/// them.
const HEAD: [&str; 5] =
    ["tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort"];

/// The text level's bytes for a parsed body: of a chat its head and messages, contents verbatim,
/// up to the first part that is not text; of a completion its prompt (the first, if it has
/// several), token ids as little-endian `u32`. Empty if the body has neither.
pub fn canonical_text(body: &Json, chat: bool) -> Vec<u8> {
    let mut out = Vec::new();
    if chat {
        chat_text(body, &mut out);
    } else {
        prompt_text(&body["prompt"], &mut out);
    }
    out
}

fn chat_text(body: &Json, out: &mut Vec<u8>) {
    for name in HEAD {
        if let Some(field) = body.get(name).filter(|field| !field.is_null()) {
            out.extend_from_slice(name.as_bytes());
            out.push(UNIT);
            json(field, out);
            out.push(UNIT);
        }
    }
    for message in body["messages"].as_array().into_iter().flatten() {
        out.push(RECORD);
        let Some(fields) = message.as_object() else {
            json(message, out);
            continue;
        };
        let role = fields.get("role").and_then(Json::as_str).unwrap_or_default();
        out.extend_from_slice(role.as_bytes());
        for (name, field) in fields {
            if !matches!(name.as_str(), "role" | "content") && !field.is_null() {
                out.push(UNIT);
                out.extend_from_slice(name.as_bytes());
                out.push(UNIT);
                json(field, out);
            }
        }
        out.push(UNIT);
        if !content(fields.get("content"), out) {
            return;
        }
    }
}

/// Appends a content; false if it ended at a part that is not text.
fn content(content: Option<&Json>, out: &mut Vec<u8>) -> bool {
    match content {
        Some(Json::String(text)) => out.extend_from_slice(text.as_bytes()),
        Some(Json::Array(parts)) => {
            for part in parts {
                let text = part.as_str().or_else(|| {
                    ["text", "refusal", "thinking"].iter().find_map(|name| part[*name].as_str())
                });
                let Some(text) = text else { return false };
                out.extend_from_slice(text.as_bytes());
                out.push(UNIT);
            }
        }
        _ => {}
    }
    true
}

fn prompt_text(prompt: &Json, out: &mut Vec<u8>) {
    match prompt {
        Json::String(text) => out.extend_from_slice(text.as_bytes()),
        Json::Array(items) => match items.first() {
            Some(Json::Number(_)) => {
                for token in items.iter().filter_map(Json::as_u64) {
                    // Token ids fit; what does not is no token id and only has to be distinct.
                    out.extend_from_slice(&(token as u32).to_le_bytes());
                }
            }
            Some(first) => prompt_text(first, out),
            None => {}
        },
        _ => {}
    }
}

fn json(value: &Json, out: &mut Vec<u8>) {
    // Writing a JSON value into a vector cannot fail: its keys are strings.
    let _ = serde_json::to_writer(&mut *out, value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_next_turn_begins_with_this_one() {
        let turns = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
                "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
            {"role": "assistant", "content": "It is 42.", "reasoning_content": "hm"},
            {"role": "user", "content": "Thanks"},
        ]);
        let turns = turns.as_array().unwrap();
        let text = |n: usize| {
            let body = json!({"model": "m", "messages": turns[..n], "tools": [{"x": 1}],
                "chat_template_kwargs": {"enable_thinking": false}, "max_tokens": n, "seed": n});
            canonical_text(&body, true)
        };
        for n in 1..turns.len() {
            assert!(text(n + 1).starts_with(&text(n)));
            assert!(text(n + 1).len() > text(n).len());
        }
    }

    #[test]
    fn all_that_a_template_reads_counts_and_the_rest_does_not() {
        let base = json!({"model": "m", "messages": [{"role": "user", "content": "Hello"}]});
        let text = |name: &str, value: Json| {
            let mut body = base.clone();
            body[name] = value;
            canonical_text(&body, true)
        };
        let plain = canonical_text(&base, true);
        for (name, value) in [
            ("tools", json!([{"type": "function"}])),
            ("documents", json!([{"text": "d"}])),
            ("chat_template", json!("x")),
            ("chat_template_kwargs", json!({"a": 1})),
            ("reasoning_effort", json!("low")),
            ("messages", json!([{"role": "system", "content": "Hello"}])),
            ("messages", json!([{"role": "user", "name": "x", "content": "Hello"}])),
        ] {
            assert_ne!(text(name, value), plain, "{name}");
        }
        for (name, value) in [("temperature", json!(1)), ("stream", json!(true)), ("n", json!(2))] {
            assert_eq!(text(name, value), plain, "{name}");
        }
        assert!(plain.ends_with(b"Hello"));
    }

    #[test]
    fn text_ends_before_the_first_part_that_is_not_text() {
        let with = |url: &str| {
            let body = json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": url}]},
                {"role": "user", "content": url}]});
            canonical_text(&body, true)
        };
        assert_eq!(with("a"), with("b"));
        assert!(with("a").windows(5).any(|w| w == b"Look:"));
    }

    #[test]
    fn of_several_prompts_the_first_counts() {
        let text = |prompt: Json| canonical_text(&json!({"prompt": prompt}), false);
        assert_eq!(text(json!("abc")), b"abc");
        assert_eq!(text(json!(["abc", "def"])), b"abc");
        assert_eq!(text(json!([1, 256])), [1, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(text(json!([[1], [2]])), [1, 0, 0, 0]);
        assert_eq!(text(json!(null)), b"");
        assert_eq!(canonical_text(&json!({}), true), b"");
    }
}
