//! Conversations to compare an engine's rendering and tokenising with ours.

use serde_json::{Value, json};

/// Chat bodies without `model`: plain, with a system message, over several turns, with content
/// parts, with tools, with tool calls in the history. They hold text on which tokenizers and
/// templates differ: digits, blanks, other scripts, JSON.
pub fn samples() -> Vec<Value> {
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = json!({"role": "system", "content": "You answer in one short sentence."});
    let tools = json!([{
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city & its \"surroundings\".",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name, e.g. Zürich"},
                    "days": {"type": "integer", "minimum": 1, "default": 3}
                },
                "required": ["city"]
            }
        }
    }]);
    let call = json!({
        "role": "assistant",
        "content": null,
        "tool_calls": [{
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\", \"days\": 2}"}
        }]
    });
    let result = json!({
        "role": "tool",
        "tool_call_id": "call_1",
        "content": "{\"celsius\": [3.5, -1.0], \"sky\": \"clear\"}"
    });
    vec![
        json!({"messages": [user("What is 12345 + 67890?")]}),
        json!({"messages": [system, user("  Two  blanks,\n\na line,\tand a tab. ")]}),
        json!({"messages": [
            user("Name a colour."),
            {"role": "assistant", "content": "Blue, don't you think?"},
            user("Другой цвет, 请. \u{1f3a8}"),
        ]}),
        json!({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "First part."},
            {"type": "text", "text": "Second part."},
        ]}]}),
        json!({"messages": [system, user("How is the weather in Oslo?")], "tools": tools}),
        json!({
            "messages": [user("Weather in Oslo for 2 days?"), call, result, user("Thanks!")],
            "tools": tools,
        }),
    ]
}

#[cfg(test)]
mod tests {
    use crate::{ChatRequest, ModelFolder};

    #[test]
    fn every_sample_renders() {
        let folder = ModelFolder::builtin();
        for body in super::samples() {
            let request = ChatRequest::from_body(&body).unwrap();
            let prompt = folder.tokenize_chat(&request).unwrap();
            assert!(prompt.exact);
            assert!(prompt.tokens.len() > 16);
        }
    }
}
